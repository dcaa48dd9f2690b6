"""The Serve application with simulated engines: `baton.serve.simulated:build_simulated_app`.

Gateway, directory, drain and autoscaling are those of `baton:build_pd_openai_app`; only the engines
have no model. It is how those are tested on a machine that could not run six engines, and how a
scaling config can be rehearsed before it costs anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray import serve

from baton.engine.simulated.replica import SimulatedReplica
from baton.serve.deployment_options import deployment_options
from baton.serve.gateway import gateway_deployment
from baton.serve.registry import directory_actor
from baton.spec.schema import BatonBlock

if TYPE_CHECKING:
    from baton.spec.schema import Role


def build_simulated_app(args: dict[str, Any]) -> Any:
    """Build the application.

    Args:
        args: `baton` as everywhere; `prefill_config` and `decode_config` each with
            `deployment_config` (Ray Serve's) and `simulated` (fields of the simulated engine's
            `EngineSettings`).
    """
    settings = BatonBlock.model_validate(args.get("baton") or {})
    roles: tuple[Role, ...] = ("prefill", "decode")
    configs = {role: args.get(f"{role}_config") or {} for role in roles}
    model_id = (configs["decode"].get("simulated") or {}).get("model_id", "simulated")
    return gateway_deployment(settings).bind(
        settings=settings.model_dump(mode="json"),
        model_id=model_id,
        engines=[_engine(role, config, settings) for role, config in configs.items()],
    )


def _engine(role: Role, config: dict[str, Any], settings: BatonBlock) -> Any:
    options = deployment_options(config.get("deployment_config"), role, settings)
    options.setdefault("ray_actor_options", {"num_cpus": 0})
    return serve.deployment(
        SimulatedReplica, name=f"{role.capitalize()}:simulated", **options
    ).bind(
        role=role,
        settings=settings.model_dump(mode="json"),
        directory=directory_actor,
        simulated=config.get("simulated") or {},
    )
