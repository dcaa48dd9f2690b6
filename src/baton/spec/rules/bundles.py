"""What a replica's workers ask Ray for: bundles, accelerators, and where in the file they stand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from baton.spec import catalog
from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.suggest import nearest
from baton.spec.view import AppView, mapping, text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import RoleView


@rule("BTN-162", "error", "placement in the wrong place")
def placement_keys(app: AppView) -> Iterator[Finding]:
    """Bundles belong in `placement_group_config`; Ray Serve LLM computes the rest from them.

    Source: ray 2.60 `llm_server.py`, `get_deployment_options`: "placement_group_bundles and
    placement_group_strategy must not be specified in deployment_config"; `common/placement.py`,
    `PlacementGroupConfig.validate_bundle_options`; `serve/api.py` refuses `gang_scheduling_config`
    beside a placement strategy, which Ray Serve LLM always sets, and `_private/config.py` refuses
    `max_replicas_per_node` beside bundles, which it always sets as well. What the replica's actor
    asks for is added to them: a null there ends in a TypeError, an infinite amount in an
    OverflowError (`_merge_replica_actor_and_child_actor_bundles`). A label selector goes to
    `ray.util.placement_group.validate_placement_group`; a single one is repeated for each bundle
    (`serve/_private/config.py`, `_normalize_bundle_label_selector`).
    """
    for role in app.roles:
        yield from _label_selector(role)
        yield from _actor_options(role)
        for key in (
            "placement_group_bundles",
            "placement_group_strategy",
            "gang_scheduling_config",
            "max_replicas_per_node",
        ):
            nullable = key in ("gang_scheduling_config", "max_replicas_per_node")
            unset = nullable and role.deployment.get(key) is None
            if key in role.deployment and not unset:
                yield Finding(
                    role.at("deployment_config", key),
                    f"`{key}` is not allowed here",
                    found=key,
                    allowed="placement_group_config",
                    cure="write placement_group_config: "
                    "{bundles: […], strategy: PACK} beside deployment_config",
                )
        group = role.config.get("placement_group_config")
        if isinstance(group, dict):
            both = {"bundles", "bundle_per_worker"} & {k for k, v in group.items() if v is not None}
            unknown = set(group) - {"bundles", "bundle_per_worker", "strategy"}
            if len(both) > 1 or not (both or unknown):
                yield Finding(
                    role.at("placement_group_config"),
                    "`placement_group_config` wants one of bundles and bundle_per_worker",
                    found=", ".join(sorted(both)) or "neither",
                    allowed="bundles or bundle_per_worker",
                    cure="write bundle_per_worker: {GPU: 1}",
                )


def _label_selector(role: RoleView) -> Iterator[Finding]:
    key = "placement_group_bundle_label_selector"
    asked = role.deployment.get(key)
    if asked is None:
        return
    count = len(role.bundles)
    of_labels = isinstance(asked, list) and all(
        isinstance(labels, dict)
        and all(isinstance(part, str) for pair in labels.items() for part in pair)
        for labels in asked
    )
    if not of_labels or len(asked) not in (1, count):
        yield Finding(
            role.at("deployment_config", key),
            f"`{key}` is no list of labels, one for each bundle",
            found=shown(asked),
            allowed=f"a list of 1 or {count} mappings from a label to a value, both texts",
            cure='write [{"ray.io/market-type": "spot"}]',
        )


def _actor_options(role: RoleView) -> Iterator[Finding]:
    options = mapping(role.deployment.get("ray_actor_options"))
    for key in ("num_cpus", "num_gpus", "memory", "resources"):
        if key not in options:
            continue
        value = options[key]
        amounts = value.values() if isinstance(value, dict) else (value,)
        endless = any(isinstance(amount, float) and not math.isfinite(amount) for amount in amounts)
        if value is None or endless:
            yield Finding(
                role.at("deployment_config", "ray_actor_options", key),
                f"`{key}` is {'no number' if endless else 'empty'}, and Ray Serve LLM adds it to"
                " the bundles",
                found=shown(value),
                allowed="a mapping" if key == "resources" else "a number",
                cure=f"remove {key}, or give it a value",
            )


@rule("BTN-164", "error", "an accelerator that does not fit the placement")
def accelerator(app: AppView) -> Iterator[Finding]:
    """`accelerator_type` has to be one of Ray's names, and of the kind that the bundles ask for.

    Source: ray 2.60 `llm_config.py`, `validate_accelerator_type` and
    `_check_accelerator_type_matches_hardware`.
    """
    known = catalog.ray()["accelerator_types"]
    for role in app.roles:
        kind = text(role.config.get("accelerator_type"))
        if kind is None:
            continue
        path = role.at("accelerator_type")
        if kind not in known and kind != "A10":
            near = nearest(kind, known)
            yield Finding(
                path,
                f"Ray knows no accelerator `{kind}`",
                found=kind,
                allowed=", ".join(known),
                cure=f"did you mean `{near}`?" if near else "remove it, or use one of these",
                at_value=True,
            )
        elif role.on_cpu:
            yield Finding(
                path,
                f"accelerator_type `{kind}` cannot be used with CPU bundles",
                found=kind,
                allowed="nothing, with CPU bundles",
                cure="remove accelerator_type",
                related=(("bundles", role.at("placement_group_config")),),
            )
        elif kind.startswith("TPU") and role.gpus:
            yield Finding(
                path,
                f"accelerator_type `{kind}` is a TPU and the bundles ask for GPUs",
                found=kind,
                allowed="a GPU's name, or nothing",
                cure="remove accelerator_type",
            )


@rule("BTN-166", "warning", "bundles that do not match the number of workers")
def bundle_count(app: AppView) -> Iterator[Finding]:
    """An engine starts TP x PP workers, and each takes one bundle with a GPU (or, on a CPU, cores).

    With fewer, vLLM waits for a placement that never comes; with more, the rest stands idle.
    `gpu` in small letters is a resource that no node has. Bundles with TPUs are left to Ray.

    Source: ray 2.60 `vllm_models.py`, `placement_bundles`; vLLM 0.29 `v1/executor/ray_utils.py`.
    """
    for role in app.roles:
        group = mapping(role.config.get("placement_group_config"))
        asked = group.get("bundles")
        yield from _resource_names(role, group)
        if not isinstance(asked, list) or role.on_cpu or role.dp > 1 or _on_tpu(role):
            continue
        gpus, workers = role.gpus, role.tp * role.pp
        fractional = any(
            0 < float(mapping(b).get("GPU") or 0) < 1
            for b in asked
            if isinstance(mapping(b).get("GPU"), (int, float))
        )
        if not fractional and int(gpus) != workers:
            yield Finding(
                role.at("placement_group_config", "bundles"),
                f"the bundles hold {gpus:g} GPUs and the engine has {workers} workers (TP x PP)",
                found=shown(asked),
                allowed=f"{workers} bundles with one GPU each",
                cure="write bundle_per_worker: {GPU: 1}; Ray repeats it as often as needed",
                severity="error" if gpus < workers else None,
            )


def _on_tpu(role: RoleView) -> bool:
    return any(bundle.get("TPU") for bundle in role.bundles)


def _resource_names(role: RoleView, group: dict[Any, Any]) -> Iterator[Finding]:
    """`gpu` is a resource of the user's own to Ray, which waits for a node that has it."""
    each, listed = group.get("bundle_per_worker"), group.get("bundles")
    holders: list[tuple[tuple[Any, ...], Any]] = [(("bundle_per_worker",), each)]
    holders += [
        (("bundles", n), b) for n, b in enumerate(listed if isinstance(listed, list) else ())
    ]
    for where, bundle in holders:
        for key in mapping(bundle):
            right = next((n for n in ("CPU", "GPU", "TPU") if str(key).upper() == n), key)
            if key != right:
                yield Finding(
                    role.at("placement_group_config", *where, key),
                    f"Ray has no resource `{key}`, unless a node is started with one",
                    found=str(key),
                    allowed="CPU, GPU, TPU",
                    cure=f"did you mean `{right}`?",
                    severity="warning",
                )
