"""Tells engines to send their spans where the gateway sends its own.

Needs no Ray and no vLLM. Without it a trace would end at the gateway: vLLM makes spans only when
its own `otlp_traces_endpoint` is set (0.29, vllm/tracing/otel.py), and speaks gRPC unless told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.observe.otlp import endpoint_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.spec.schema import BatonBlock

PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"


def with_tracing(config: Mapping[str, Any], settings: BatonBlock) -> dict[str, Any]:
    """A role's `LLMConfig` with the endpoint of `baton.tracing`; a copy. The user's own wins."""
    copy = dict(config)
    # Only what the file says: engines run on other machines, with other variables.
    endpoint = endpoint_of(settings.tracing, {})
    engine = dict(copy.get("engine_kwargs") or {})
    if endpoint is None or "otlp_traces_endpoint" in engine:
        return copy
    copy["engine_kwargs"] = {**engine, "otlp_traces_endpoint": endpoint}
    return _with_variable(copy, PROTOCOL, "http/protobuf")


def _with_variable(config: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    """Where the role's variables stand: of two places Ray takes one."""
    own = dict(config.get("runtime_env") or {})
    deployment = dict(config.get("deployment_config") or {})
    options = dict(deployment.get("ray_actor_options") or {})
    theirs = dict(options.get("runtime_env") or {})
    if "env_vars" in theirs and "env_vars" not in own:
        theirs["env_vars"] = {name: value, **theirs["env_vars"]}
        deployment["ray_actor_options"] = {**options, "runtime_env": theirs}
        return {**config, "deployment_config": deployment}
    own["env_vars"] = {name: value, **(own.get("env_vars") or {})}
    return {**config, "runtime_env": own}
