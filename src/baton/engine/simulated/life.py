"""A replica's life beside a simulated engine: what it counts, and what its lease says of it.

The same under Ray (`replica`), on the console's stage and in tests.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from baton.engine.life import ReplicaLife
from baton.engine.load import EngineCounts
from baton.spec.lease import EngineLease, TransferEvidence
from baton.version import __version__

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from baton.engine.life import Directory
    from baton.engine.simulated.core import Core
    from baton.engine.simulated.server import SimulatedEngine
    from baton.spec.schema import Engines


class SimulatedLife(ReplicaLife):
    """One simulated replica's lease, HTTP face, signals and end.

    Args:
        engine: Is running when the life begins, and is ended by whoever started it.
        directory: Where the lease is kept.
        engines: The block's `engines` part: lease and drain times.
        replica_id: Its name in the directory.
        node: Where it says that it is.
    """

    def __init__(
        self,
        engine: SimulatedEngine,
        directory: Directory,
        engines: Engines,
        *,
        replica_id: str,
        node: str,
    ) -> None:
        self._engine = engine
        own = engine.settings
        lease = EngineLease(
            replica_id=replica_id, role=own.role, url="", engine_id="", model_id=own.model_id,
            state="starting", node=node, pid=os.getpid(),
        )  # fmt: skip
        super().__init__(
            lease,
            directory,
            engines,
            counts=lambda: counts_of(engine.core),
            check_engine=self.check_engine,
        )

    async def begin(self, listen: Callable[[], socket.socket]) -> None:
        """From entering the directory until gateways choose it.

        Args:
            listen: Makes the socket of its HTTP face.
        """
        own = self._engine.settings
        secret = await self.enter()
        listener = listen()
        host, port = listener.getsockname()
        await self.serve(self._engine.app, listener, secret, slots=own.max_num_seqs)
        facts = {
            "url": f"http://{host}:{port}",
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
        await self.be_ready(self.lease.model_copy(update=facts))

    async def check_engine(self) -> None:
        """Raises when the engine is dead."""
        if self._engine.core.dead:
            raise RuntimeError("the simulated engine is dead")


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
