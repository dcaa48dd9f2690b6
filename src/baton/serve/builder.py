"""The Serve application: `import_path: baton:build_pd_openai_app`.

Takes the same `args` as Ray Serve LLM's own P/D builder plus one optional `baton` block, and
refuses what would not work before anything is placed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ray.serve.llm import LLMConfig, build_llm_deployment

from baton.engine.replica import EngineReplica
from baton.serve.deployment_options import deployment_options
from baton.serve.gateway import gateway_deployment
from baton.serve.registry import directory_actor
from baton.serve.tracing import with_tracing
from baton.spec.check import check_args

if TYPE_CHECKING:
    from baton.spec.schema import BatonBlock, Role

log = logging.getLogger("baton.serve.builder")

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
    return gateway_deployment(settings).bind(
        settings=settings.model_dump(mode="json"),
        model_id=checked.roles["prefill"].model_id,
        engines=engines,
    )


def _engine_deployment(config: dict[str, Any], role: Role, settings: BatonBlock) -> Any:
    llm_config = LLMConfig.model_validate(engine_config(config, role, settings))
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


def engine_config(config: dict[str, Any], role: Role, settings: BatonBlock) -> dict[str, Any]:
    """What Baton adds to the user's `LLMConfig`, beside `deployment_options`; a copy.

    - `log_engine_metrics: false`: with it on, Ray swaps vLLM's Prometheus logger for its own
      (ray 2.60 `engines/vllm/vllm_engine.py`, `_start_async_llm_engine`), the engine's `/metrics`
      is empty, and neither load nor KV bytes can be read.
    - the endpoint of `baton.tracing` (`serve.tracing`).
    - no download step for a model that lies in a folder: it would import vLLM once more, in a
      process of its own, to find that there is nothing to do.
    """
    config = with_tracing(config, settings)
    added: dict[str, Any] = {
        "deployment_config": deployment_options(config.get("deployment_config"), role, settings),
        "log_engine_metrics": False,
    }
    if config.get("log_engine_metrics"):
        log.warning("log_engine_metrics is set to false: the engine's own /metrics needs it")
    if "callback_config" not in config:
        added["callback_config"] = {"callback_class": LOCAL_MODEL_CALLBACK}
    return {**config, **added}
