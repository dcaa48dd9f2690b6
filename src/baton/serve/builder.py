"""The Serve application: `import_path: baton:build_pd_openai_app`.

Takes the same `args` as Ray Serve LLM's own P/D builder plus one optional `baton` block, and
refuses what would not work before anything is placed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.llm import LLMConfig, build_llm_deployment

from baton.engine.replica import EngineReplica
from baton.serve.gateway import GatewayReplica
from baton.serve.registry import directory_actor
from baton.spec.check import check_args

if TYPE_CHECKING:
    from baton.spec.schema import BatonBlock, Role

log = logging.getLogger("baton.serve.builder")

# Serve waits this much longer than the drain before it kills a replica.
DRAIN_MARGIN_S = 15.0
# Requests reach engines over HTTP, not through Serve: its own limit must never be what refuses.
UNLIMITED_ONGOING = 1_000_000
HEALTH_CHECK_PERIOD_S = 2.0
LOCAL_MODEL_CALLBACK = "baton.engine.callbacks.LocalModel"


def build_pd_openai_app(args: dict[str, Any]) -> Any:
    """Build the application: prefill and decode deployments behind the gateway.

    Args:
        args: `prefill_config` and `decode_config` (Ray Serve LLM's `LLMConfig`), and `baton`.

    Raises:
        ConfigRefused: when a rule finds a fault; all faults are in the message.
    """
    checked = check_args(args)
    settings = checked.baton
    engines = [
        _engine_deployment(checked.args["prefill_config"], "prefill", settings),
        _engine_deployment(checked.args["decode_config"], "decode", settings),
    ]
    gateway = serve.deployment(
        GatewayReplica,
        name="Gateway",
        num_replicas=settings.gateway.num_replicas,
        max_ongoing_requests=UNLIMITED_ONGOING,
        ray_actor_options={"num_cpus": 0},
    )
    return gateway.bind(
        settings=settings.model_dump(mode="json"),
        model_id=checked.roles["prefill"].model_id,
        engines=engines,
    )


def _engine_deployment(config: dict[str, Any], role: Role, settings: BatonBlock) -> Any:
    llm_config = LLMConfig.model_validate(engine_config(config, settings))
    return build_llm_deployment(
        llm_config,
        name_prefix=f"{role.capitalize()}:",
        deployment_cls=EngineReplica,
        bind_kwargs={
            "role": role,
            "settings": settings.model_dump(mode="json"),
            "directory": directory_actor,
        },
    )


def engine_config(config: dict[str, Any], settings: BatonBlock) -> dict[str, Any]:
    """What Baton adds to the user's `LLMConfig`; a copy.

    - `log_engine_metrics: false`: with it on, Ray swaps vLLM's Prometheus logger for its own
      (ray 2.60 `engines/vllm/vllm_engine.py`, `_start_async_llm_engine`), the engine's `/metrics`
      is empty, and neither load nor KV bytes can be read.
    - `graceful_shutdown_timeout_s` above the drain: Serve kills what has not ended by then.
    - `health_check_period_s: 2`: Serve replaces a replica after three failed checks; with Ray Serve
      LLM's ten seconds a dead engine would be out for half a minute before it is started again.
    - no download step for a model that lies in a folder: it would import vLLM once more, in a
      process of its own, to find that there is nothing to do.
    """
    deployment = dict(config.get("deployment_config") or {})
    drain_s = settings.engines.drain_timeout_s + DRAIN_MARGIN_S
    deployment["graceful_shutdown_timeout_s"] = max(
        drain_s, float(deployment.get("graceful_shutdown_timeout_s") or 0.0)
    )
    deployment.setdefault("graceful_shutdown_wait_loop_s", 0.1)
    deployment.setdefault("health_check_period_s", HEALTH_CHECK_PERIOD_S)
    added: dict[str, Any] = {"deployment_config": deployment, "log_engine_metrics": False}
    if config.get("log_engine_metrics"):
        log.warning("log_engine_metrics is set to false: the engine's own /metrics needs it")
    if "callback_config" not in config:
        added["callback_config"] = {"callback_class": LOCAL_MODEL_CALLBACK}
    return {**config, **added}
