"""What Ray Serve and Ray Serve LLM themselves refuse, found before a cluster does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from baton.spec import catalog
from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.suggest import nearest
from baton.spec.view import AppView, mapping, text, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import RoleView

_GONE_ARGS = {
    "proxy_deployment_config": (
        "the P/D proxy deployment is gone: decode hands over by itself",
        (
            "for Baton's gateway set baton: {gateway: {num_replicas: …}}; for Ray's own ingress"
            " `ingress_deployment_config`"
        ),
    ),
    "proxy_config": (
        "the P/D proxy is gone: decode hands over by itself",
        "remove it; for Baton's gateway set baton: {gateway: {num_replicas: …}}",
    ),
    "proxy_cls_config": (
        "the P/D proxy class is gone: decode hands over by itself",
        "remove it; Ray's own ingress is set by `ingress_cls_config`",
    ),
}


def gone_argument(key: object) -> str | None:
    """The older key that this one is, however it is spelt; None when it is none."""
    plain = str(key).replace("-", "").replace("_", "").lower()
    return next((name for name in _GONE_ARGS if name.replace("_", "") == plain), None)


@rule("BTN-160", "error", "a key of an older Ray Serve LLM")
def gone_arguments(app: AppView) -> Iterator[Finding]:
    """Older releases had a proxy deployment between ingress and engines, with a config of its own.

    Source: ray 2.60 `prefill_decode/builder.py`, `PDServingArgs` (`ingress_cls_config`,
    `ingress_deployment_config`; extra keys forbidden).
    """
    holders = [(app.app, app.path), (app.args, app.args_path)]
    holders += [(role.config, role.path) for role in app.roles]
    for holder, path in holders:
        for key in holder:
            name = gone_argument(key)
            if name is None:
                continue
            why, cure = _GONE_ARGS[name]
            yield Finding(
                (*path, key),
                f"`{key}` no longer exists: {why}",
                found=str(key),
                allowed="baton.gateway, ingress_deployment_config",
                cure=cure,
            )
    for role in app.roles:
        experimental = mapping(role.config.get("experimental_configs"))
        if "num_router_replicas" in experimental:
            yield Finding(
                role.at("experimental_configs", "num_router_replicas"),
                "`num_router_replicas` was renamed",
                found="num_router_replicas",
                allowed="num_ingress_replicas",
                cure="write num_ingress_replicas",
            )


@rule("BTN-161", "error", "a replica count that Ray Serve refuses")
def replica_counts(app: AppView) -> Iterator[Finding]:
    """A fixed number of replicas and autoscaling exclude each other; zero replicas serve nobody.

    Source: ray 2.60 `serve/api.py`, `deployment`: "Manually setting num_replicas is not allowed
    when autoscaling_config is provided.", "num_replicas is expected to larger than 0";
    `serve/config.py`, `AutoscalingConfig.replicas_settings_valid`.
    """
    for role in app.roles:
        count = role.deployment.get("num_replicas")
        scaling = role.deployment.get("autoscaling_config")
        if count not in (None, "auto") and scaling is not None:
            yield Finding(
                role.at("deployment_config", "autoscaling_config"),
                "`num_replicas` and `autoscaling_config` exclude each other",
                found=f"num_replicas: {shown(count)}",
                allowed="one of the two",
                cure="choose one; with autoscaling set min_replicas and max_replicas",
                related=(("num_replicas", role.at("deployment_config", "num_replicas")),),
            )
        if count == 0 and not isinstance(count, bool):
            yield Finding(
                role.at("deployment_config", "num_replicas"),
                "no replica serves nobody",
                found="0",
                allowed="1 or more",
                cure="set num_replicas: 1",
                at_value=True,
            )
        yield from _scaling(role.at("deployment_config", "autoscaling_config"), mapping(scaling))


def _scaling(path: tuple[object, ...], scaling: dict[object, object]) -> Iterator[Finding]:
    low, high = whole(scaling.get("min_replicas"), 1), whole(scaling.get("max_replicas"), 1)
    start = whole(scaling.get("initial_replicas"), low)
    if low > high:
        yield Finding(
            (*path, "max_replicas"),
            f"max_replicas {high} is below min_replicas {low}",
            found=str(high),
            allowed=f"{low} or more",
            cure="raise max_replicas",
        )
    elif not low <= start <= high:
        yield Finding(
            (*path, "initial_replicas"),
            f"initial_replicas {start} is not between min_replicas {low} and max_replicas {high}",
            found=str(start),
            allowed=f"{low} to {high}",
            cure="change initial_replicas",
        )


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


@rule("BTN-163", "error", "an engine argument that Ray Serve LLM sets itself")
def arguments_of_ray(app: AppView) -> Iterator[Finding]:
    """The model and its public name come from `model_loading_config`; the executor is Ray's.

    Source: ray 2.60 `vllm_models.py`, `get_initialization_kwargs`.
    """
    for role in app.roles:
        for key in ("model", "served_model_name"):
            if key in role.engine:
                name = "model_source" if key == "model" else "model_id"
                yield Finding(
                    role.engine_at(key),
                    f"`{key}` is not allowed in engine_kwargs",
                    found=shown(role.engine[key]),
                    allowed=f"model_loading_config.{name}",
                    cure=f"write model_loading_config: {{{name}: {shown(role.engine[key])}}}",
                )
        executor = role.engine.get("distributed_executor_backend", "ray")
        if executor != "ray" and not role.on_cpu:
            yield Finding(
                role.engine_at("distributed_executor_backend"),
                "a GPU engine under Ray Serve LLM runs on Ray's executor",
                found=shown(executor),
                allowed="ray",
                cure="remove it",
                at_value=True,
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


@rule("BTN-167", "error", "engine metrics without engine statistics")
def log_stats(app: AppView) -> Iterator[Finding]:
    """Ray Serve LLM refuses `disable_log_stats` unless `log_engine_metrics` is off.

    Baton needs the engine's own metrics to know its load.

    Source: ray 2.60 `llm_config.py`, `_check_log_stats_with_metrics`.
    """
    for role in app.roles:
        if not role.engine.get("disable_log_stats"):
            continue
        if role.config.get("log_engine_metrics", True) or not app.is_rays:
            yield Finding(
                role.engine_at("disable_log_stats"),
                "engine statistics are needed and turned off",
                found="true",
                allowed="false",
                cure="remove disable_log_stats",
                at_value=True,
            )


@rule("BTN-168", "warning", "a setting that Baton's application does not use")
def unused_by_baton(app: AppView) -> Iterator[Finding]:
    """Baton's gateway takes the place of Ray's ingress, and its replica that of Ray's server class.

    Source: `baton.serve.builder`.
    """
    if app.is_rays:
        return
    for key in ("ingress_cls_config", "ingress_deployment_config"):
        if app.args.get(key):
            yield Finding(
                (*app.args_path, key),
                f"`{key}` has no effect: Baton's gateway is the ingress",
                found=key,
                cure="set baton: {gateway: {num_replicas: …}}",
            )
    for role in app.roles:
        if role.config.get("server_cls") is not None:
            yield Finding(
                role.at("server_cls"),
                "`server_cls` has no effect: Baton brings its own",
                found=shown(role.config["server_cls"]),
                cure="remove it",
            )


@rule("BTN-169", "error", "a `runtime_env` that a deployed app cannot have")
def application_runtime_env(app: AppView) -> Iterator[Finding]:
    """The `runtime_env` of an application may name remote archives only.

    Source: ray 2.60 `serve/schema.py`, `ServeApplicationSchema.runtime_env_contains_remote_uris`.
    """
    env = mapping(app.app.get("runtime_env"))
    modules = env.get("py_modules")
    uris = list(modules) if isinstance(modules, list) else []
    for key, uri in [*(("py_modules", u) for u in uris), ("working_dir", env.get("working_dir"))]:
        if isinstance(uri, str) and "://" not in uri:
            yield Finding(
                (*app.path, "runtime_env", key),
                f"`{key}` must be a remote archive",
                found=uri,
                allowed="https://, s3://, gs:// or local://",
                cure="upload it, or use local:// for a folder that is on every node",
            )
