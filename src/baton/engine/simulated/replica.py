"""A simulated engine as a Ray Serve replica: everything but the model is the real thing.

Lease, guard, HTTP server, scaling signals and drain are `ReplicaLife`'s, as in `EngineReplica`.
"""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING, Any

from ray import serve

from baton.engine.life import ActorDirectory, ReplicaLife
from baton.engine.load import EngineCounts
from baton.engine.ports import bind_first_free
from baton.engine.simulated.server import SimulatedEngine
from baton.engine.simulated.settings import LatencyProfile
from baton.observe.logs import configure
from baton.spec.lease import EngineLease, TransferEvidence
from baton.spec.schema import BatonBlock
from baton.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.engine.simulated.core import Core
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
        own = self._engine.settings
        await self._engine.__aenter__()  # before there is a life that could end it
        self._life = ReplicaLife(
            EngineLease(
                replica_id=context.replica_id.unique_id,
                role=role,
                url="",
                engine_id="",
                model_id=own.model_id,
                state="starting",
                node=HOST,
                pid=os.getpid(),
            ),
            ActorDirectory(directory(context.app_name)),
            block.engines,
            counts=lambda: counts_of(self._engine.core),
            check_engine=self._check_engine,
        )
        secret = await self._life.enter()
        listener = bind_first_free(HOST, block.engines.port_min, block.engines.port_max)
        await self._life.serve(self._engine.app, listener, secret, slots=own.max_num_seqs)
        await self._life.be_ready(
            self._life.lease.model_copy(
                update={
                    "url": f"http://{HOST}:{listener.getsockname()[1]}",
                    "engine_id": own.engine_id,
                    "max_model_len": own.max_model_len,
                    "block_size": own.block_size,
                    "kv_lease_s": own.kv_lease_s,
                    "kv_bytes_per_token": own.kv_bytes_per_token,
                    "continues": "chat",
                    "vllm_version": own.vllm_version,
                    "baton_version": __version__,
                    "evidence": TransferEvidence(connector="simulated"),
                }
            )
        )

    async def _check_engine(self) -> None:
        if self._engine.core.dead:
            raise RuntimeError("the simulated engine is dead")

    async def check_health(self) -> None:
        """As `EngineReplica.check_health`."""
        await self._check_engine()
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


def counts_of(core: Core) -> EngineCounts:
    """A simulated engine's counts, as vLLM's metrics would say them."""
    counts = core.counts
    return EngineCounts(
        waiting=counts.waiting_capacity + counts.waiting_deferred,
        running=counts.running,
        kv_usage=core.pool.usage,
        prompt_tokens=float(counts.prompt_tokens.total()),
        itl_sum_s=counts.itl.sum,
        itl_count=float(counts.itl.count),
    )
