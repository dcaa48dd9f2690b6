"""The user's YAML as it is deployed: Serve keeps each phase on its own nodes.

Every bundle of a phase's placement group asks for a sliver of a custom Ray resource that only the
phase's worker group offers (`baton_prefill`, `baton_decode`). A placement group is placed whole,
and Serve puts the replica's own actor into its first bundle (ray 2.60 `llm_server.py`,
`_merge_replica_actor_and_child_actor_bundles`), so neither the actor nor any of its workers can
land elsewhere. Ray's label selectors would say it more directly, but `placement_group_config` has
no key for them; and a resource that no node offers shows by its name in `ray status`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from baton.spec.rules.placement import PHASE

if TYPE_CHECKING:
    from baton.spec.checked import CheckedFile
    from baton.spec.schema import Role

SHARE = 0.001
"""Of the one unit that each worker offers: room for a thousand bundles."""
HTTP_PORT = 8000
"""Where KubeRay's Services expect Ray Serve."""


def phase_resource(role: Role) -> str:
    """The custom Ray resource of a phase's worker group."""
    return f"{PHASE}{role}"


def placed_group(group: dict[str, Any] | None, role: Role) -> dict[str, Any]:
    """A role's `placement_group_config` with the phase's resource in every bundle; a copy.

    Left out, Ray Serve LLM takes one GPU a worker; written down it is the same, with the resource.
    `STRICT_PACK` unless the user says otherwise: a worker pod has the GPUs of a whole replica.
    """
    placed: dict[str, Any] = copy.deepcopy(group) if group else {"bundle_per_worker": {"GPU": 1}}
    each = placed.get("bundle_per_worker")
    for bundle in [each] if isinstance(each, dict) else placed.get("bundles") or []:
        bundle.setdefault(phase_resource(role), SHARE)
    placed.setdefault("strategy", "STRICT_PACK")
    return placed


def serve_config(checked: CheckedFile, index: int) -> dict[str, Any]:
    """What goes into `serveConfigV2`: the checked file, placed, reachable in the cluster.

    Args:
        checked: The user's file.
        index: Which of its applications has the two phases.
    """
    config = checked.to_serve_config()
    args = config["applications"][index]["args"]
    roles: tuple[Role, ...] = ("prefill", "decode")
    for role in roles:
        own = args[f"{role}_config"]
        own["placement_group_config"] = placed_group(own.get("placement_group_config"), role)
    # A proxy on each node that has a replica: KubeRay's Service sends requests to every worker.
    config["proxy_location"] = "EveryNode"
    options = dict(config.get("http_options") or {})
    options.update(host="0.0.0.0", port=HTTP_PORT)  # noqa: S104 - a pod's address is the cluster's
    config["http_options"] = options
    first = ("proxy_location", "http_options")
    return {key: config[key] for key in (*first, *(k for k in config if k not in first))}


def adjustments(checked: CheckedFile) -> list[str]:
    """What of the file is not deployed as it stands, in words."""
    said = []
    location = checked.proxy_location
    if location not in (None, "EveryNode"):
        said.append(f"proxy_location: EveryNode, not {location}: every worker takes requests")
    host, port = (checked.http_options.get(key) for key in ("host", "port"))
    if host not in (None, "0.0.0.0") or port not in (None, HTTP_PORT):  # noqa: S104
        said.append(f"http_options: 0.0.0.0:{HTTP_PORT}, where KubeRay's Services look for Serve")
    return said
