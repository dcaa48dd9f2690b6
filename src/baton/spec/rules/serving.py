"""What Ray Serve and Ray Serve LLM themselves refuse, found before a cluster does.

Where workers are placed has rules of its own (`bundles`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.view import AppView, mapping, whole

if TYPE_CHECKING:
    from collections.abc import Iterator


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
