"""Where the phases run in a cluster: `baton.placement`, and what it adds to the bundles."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_LONGEST_PREFIX = 253
PHASE = "baton_"
"""`baton_prefill`, `baton_decode`: custom Ray resources that keep a phase on its nodes."""


@rule("BTN-197", "error", "a node label that Kubernetes does not have")
def node_labels(app: AppView) -> Iterator[Finding]:
    """`prefill_node_selector` and `decode_node_selector` hold labels as Kubernetes takes them.

    A name of at most 63 letters, digits, `-`, `_` and `.`, that may follow a DNS prefix and `/`;
    values have the same form, or are empty. Values are text: `"true"`, not `true`.

    Source: Kubernetes `validation.IsQualifiedName`, `IsValidLabelValue`.
    """
    for role in app.roles:
        name = f"{role.role}_node_selector"
        where = (*app.baton_path, "placement", name)
        for key, value in app.baton.placement.of(role.role).items():
            prefix, slash, short = key.rpartition("/")
            fits = _PREFIX.fullmatch(prefix) and len(prefix) <= _LONGEST_PREFIX if slash else True
            if not fits or not _NAME.fullmatch(short):
                yield Finding(
                    (*where, key),
                    f"`{key}` is no label of a Kubernetes node",
                    found=shown(key),
                    allowed="name or prefix.example/name, of letters, digits, `-`, `_` and `.`",
                    cure="look at `kubectl get nodes --show-labels`",
                )
            if value and not _NAME.fullmatch(value):
                yield Finding(
                    (*where, key),
                    f"{shown(value)} is no value of a Kubernetes label",
                    found=shown(value),
                    allowed="at most 63 letters, digits, `-`, `_` and `.`",
                    cure="look at `kubectl get nodes --show-labels`",
                    at_value=True,
                )


@rule("BTN-198", "error", "a bundle that asks for the other phase's nodes")
def phase_resources(app: AppView) -> Iterator[Finding]:
    """`baton eks render` adds `baton_prefill` or `baton_decode` to every bundle of a phase.

    The Ray nodes of the phase's worker group offer that resource, so that Serve can place the
    replica nowhere else. On the wrong role, or misspelt, it would make Serve wait without end.

    Source: `baton.deploy.eks.placement`; ray 2.60 `llm_server.py`, `get_deployment_options` puts
    the replica's own actor into the first bundle.
    """
    for role in app.roles:
        group = role.config.get("placement_group_config")
        each = isinstance(group, dict) and isinstance(group.get("bundle_per_worker"), dict)
        bundles = role.bundles[:1] if each else role.bundles  # one bundle, repeated
        for index, bundle in enumerate(bundles):
            for key in bundle:
                if not str(key).startswith(PHASE) or key == f"{PHASE}{role.role}":
                    continue
                part = ("bundle_per_worker",) if each else ("bundles", index)
                yield Finding(
                    role.at("placement_group_config", *part, key),
                    f"{role.role} asks for `{key}`, which its nodes do not offer",
                    found=str(key),
                    allowed=f"{PHASE}{role.role}",
                    cure=f"remove it: `baton eks render` adds `{PHASE}{role.role}` itself",
                )
