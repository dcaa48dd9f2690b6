"""Real vLLM engines as a drill breaks them: `baton.drill.injector.Injector` over processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import psutil

from baton.deploy import engine_processes
from baton.deploy.gateways import Gateways
from baton.drill.outside import Outside
from baton.spec.lease import EngineLease
from baton.spec.schema import Admission, BatonBlock, Disaggregate, Logging
from tests.real_engines import MODEL_ID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.real_engines import RealEngine

SETTINGS = BatonBlock(
    disaggregate=Disaggregate(mode="always"),
    admission=Admission(max_inflight=512),
    logging=Logging(level="warning"),
)


class RealFaults(Outside):
    """Engines that `real_engines.start_engines` started, and a gateway of the drill's own.

    They can be looked at and killed; everything else is as from outside.

    Args:
        engines: They run.
        folder: Theirs.
        kv_lease_s: What they were started with.
    """

    def __init__(self, engines: Sequence[RealEngine], folder: Path, *, kv_lease_s: int) -> None:
        super().__init__("")
        self._engines = engines
        self._dead: set[str] = set()
        recovery = SETTINGS.recovery.model_copy(update={"kv_lease_s": float(kv_lease_s)})
        self._gateways = Gateways(folder, SETTINGS.model_copy(update={"recovery": recovery}))
        self.kv_lease_s = float(kv_lease_s)

    async def __aenter__(self) -> Self:
        _, self.endpoint = await self._gateways.start(await self.engines())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gateways.end_all()

    def cannot(self, fault: str) -> str | None:
        return None if fault in ("see_engines", "kill", "kill_core") else super().cannot(fault)

    async def engines(self) -> Sequence[EngineLease]:
        return [
            EngineLease(
                replica_id=engine.url,
                role="prefill" if engine.spec.role == "prefill" else "decode",
                url=engine.url,
                engine_id=engine.engine_id,
                model_id=MODEL_ID,
                pid=engine.process.pid,
            )
            for engine in self._engines
            if engine.engine_id not in self._dead
        ]

    async def kill(self, engine: EngineLease, *, core_only: bool) -> None:
        self._dead.add(engine.engine_id)
        if core_only:
            core = engine_processes.core_of(engine.pid)
            await asyncio.to_thread(engine_processes.kill, engine.pid, core_only=True)
            assert not psutil.pid_exists(core.pid) or core.status() == psutil.STATUS_ZOMBIE
        else:
            self._of(engine).kill()

    def _of(self, lease: EngineLease) -> RealEngine:
        return next(engine for engine in self._engines if engine.url == lease.url)

    async def restore(self) -> None:
        """A start takes most of a minute: who is dead stays dead."""
