"""A simulated engine as a Ray Serve replica: everything but the model is the real thing.

Lease, guard, HTTP server, scaling signals and drain are `ReplicaLife`'s, as in `EngineReplica`
(`life` says what differs).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from ray import serve

from baton.engine.life import ActorDirectory
from baton.engine.ports import bind_first_free
from baton.engine.simulated.life import SimulatedLife
from baton.engine.simulated.server import SimulatedEngine
from baton.engine.simulated.settings import LatencyProfile
from baton.observe.logs import configure
from baton.spec.schema import BatonBlock

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.spec.schema import Role

HOST = "127.0.0.1"


class SimulatedReplica:
    """A prefill or decode engine without a model, as a Ray Serve replica.

    Args:
        role: `prefill` or `decode`.
        settings: the checked `baton:` block, as plain data.
        directory: finds the directory actor of an application by the application's name.
        simulated: fields of `EngineSettings`; `latency` as a mapping.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        *,
        role: Role,
        settings: dict[str, Any],
        directory: Callable[[str], Any],
        simulated: dict[str, Any],
    ) -> None:
        block = BatonBlock.model_validate(settings)
        configure(block.logging)
        context = serve.get_replica_context()
        more = {key: value for key, value in simulated.items() if key != "latency"}
        # Its own port is shut with a secret that nobody knows; what it is for is the side channel.
        self._engine = SimulatedEngine(
            role=role,
            engine_id=f"{role}-{uuid.uuid4().hex[:8]}",
            host=HOST,
            secret=uuid.uuid4().hex,
            latency=LatencyProfile.model_validate(simulated.get("latency") or {}),
            **more,
        )
        await self._engine.__aenter__()  # before there is a life that could end it
        self._life = SimulatedLife(
            self._engine,
            ActorDirectory(directory(context.app_name)),
            block.engines,
            replica_id=context.replica_id.unique_id,
            node=HOST,
        )
        ports = block.engines.port_min, block.engines.port_max
        await self._life.begin(lambda: bind_first_free(HOST, *ports))

    async def check_health(self) -> None:
        """As `EngineReplica.check_health`."""
        await self._life.check_engine()
        self._life.check_tasks()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """As `EngineReplica.record_autoscaling_stats`."""
        return self._life.stats()

    async def __del__(self) -> None:
        """As `EngineReplica.__del__`."""
        life = getattr(self, "_life", None)
        if life is None:
            return
        await life.end()
        await self._engine.__aexit__(None, None, None)
