"""Real vLLM engines as a drill breaks them: `baton.drill.injector.Injector` over processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import psutil

from baton.deploy import engine_processes
from baton.deploy.gateways import Gateways
from baton.spec.lease import EngineLease
from baton.spec.schema import Admission, BatonBlock, Disaggregate, Logging
from tests import real_engines
from tests.real_engines import MODEL_ID, RealEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

SETTINGS = BatonBlock(
    disaggregate=Disaggregate(mode="always"),
    admission=Admission(max_inflight=512),
    logging=Logging(level="warning"),
)


class RealFaults:
    """Engines that `real_engines.start_engines` started, and gateways of the drill's own.

    Args:
        engines: They run. One that is killed is started again in its place, `restarts` times in
            all, each time under another engine_id; `engines` is kept up to date.
        folder: Theirs, with the model.
        kv_lease_s: What they were started with.
        restarts: A start takes most of a minute.
    """

    engine_headers: Mapping[str, str] = {}

    def __init__(
        self, engines: list[RealEngine], folder: Path, *, kv_lease_s: int, restarts: int
    ) -> None:
        self._engines = engines
        self._folder = folder
        self._restarts = restarts
        self._dead: set[str] = set()
        recovery = SETTINGS.recovery.model_copy(update={"kv_lease_s": float(kv_lease_s)})
        self._gateways = Gateways(folder, SETTINGS.model_copy(update={"recovery": recovery}))
        self.kv_lease_s = float(kv_lease_s)
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        _, self.endpoint = await self._gateways.start(await self.engines())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gateways.end_all()

    def cannot(self, fault: str) -> str | None:
        return None

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

    async def freeze(self, engine: EngineLease) -> None:
        engine_processes.freeze(engine.pid)

    async def thaw(self, engine: EngineLease) -> None:
        engine_processes.thaw(engine.pid)

    async def restart(self, engine: EngineLease) -> EngineLease:
        self._of(engine).kill()
        await self._start_again(self._of(engine))
        return next(lease for lease in await self.engines() if lease.url == engine.url)

    async def _start_again(self, engine: RealEngine) -> None:
        role = engine.spec.role
        spec = dataclasses.replace(engine.spec, engine_id=f"{role}-{uuid.uuid4().hex[:6]}")
        again = real_engines._start(
            spec,
            model=self._folder / "model",
            folder=self._folder,
            model_id=MODEL_ID,
            http=urlsplit(engine.url).port or 0,
            side=engine.side_channel_port,
        )
        self._engines[self._engines.index(engine)] = again
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(real_engines._wait_until_healthy, again, loop.time() + 300)

    @contextlib.asynccontextmanager
    async def rewired(self, urls: Mapping[str, str]) -> AsyncIterator[str]:
        async with self._gateways.rewired(await self.engines(), urls) as endpoint:
            yield endpoint

    @contextlib.asynccontextmanager
    async def two_gateways(self) -> AsyncIterator[Any]:
        async with self._gateways.pair(await self.engines()) as pair:
            yield pair

    @contextlib.asynccontextmanager
    async def with_directory(self) -> AsyncIterator[Any]:
        async with self._gateways.with_directory(await self.engines()) as lost:
            yield lost

    async def restore(self) -> None:
        for engine in list(self._engines):
            if engine.engine_id in self._dead and self._restarts:
                self._restarts -= 1
                engine.kill()  # what its core left behind
                await self._start_again(engine)
