"""What can be broken in a deployment that `baton up` made on this machine.

Implements `baton.drill.injector.Injector`. Engines are found in the directory, with their pids;
what was killed is started again by Ray Serve. Gateways that a drill kills or rewires are further
ones, before the same engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx
import psutil

from baton.deploy import engine_processes, serve_app
from baton.deploy.gateways import Gateways
from baton.deploy.processes import members
from baton.deploy.ray_head import client_environment
from baton.errors import DeployFailed, EnvironmentUnfit, NotRunning
from baton.gateway.directory import SECRET_HEADER
from baton.spec.lease import is_used
from baton.spec.schema import BatonBlock, Disaggregate, Logging

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType

    from baton.deploy.gateways import DirectoryToLose, PairToBreak
    from baton.deploy.state import Deployment
    from baton.spec.lease import EngineLease

_READY_S = 400.0
_LOOK_S = 0.5
_ACTOR = "DirectoryActor"
_SETTINGS = BatonBlock(disaggregate=Disaggregate(mode="always"), logging=Logging(level="warning"))


class LocalFaults:
    """See `baton.drill.injector.Injector`.

    Args:
        deployment: What to break.
        headers: Of requests to its endpoint; a key, perhaps.

    Raises:
        EnvironmentUnfit: On entering: it was not made by Baton's own builder, or does not answer.
    """

    def __init__(self, deployment: Deployment, headers: Mapping[str, str]) -> None:
        self._deployment = deployment
        self._headers = dict(headers)
        self._app = deployment.apps[0] if deployment.apps else ""
        self._dead: set[str] = set()
        self._frozen: set[int] = set()
        self._whole: Counter[str] = Counter()
        self._stack = contextlib.AsyncExitStack()
        self.endpoint = deployment.endpoint
        self.kv_lease_s = _SETTINGS.recovery.kv_lease_s
        self.engine_headers: dict[str, str] = {}
        self._gateways: Gateways

    async def __aenter__(self) -> Self:
        if self._deployment.builder != "baton":
            raise EnvironmentUnfit(
                f"{self._deployment.name} runs Ray Serve LLM's own application, which has no "
                "directory to find engines in",
                cure="deploy it with `baton up FILE`, or drill it with --url",
            )
        async with self._stack:
            environment = client_environment(self._deployment.ray_auth_token)
            self._stack.enter_context(
                serve_app.connected(self._deployment.ray_address, environment)
            )
            snapshot = await asyncio.to_thread(serve_app.engines, self._app)
            if not snapshot.engines:
                raise NotRunning(
                    f"no engine of {self._deployment.name} is alive", cure="look: baton status"
                )
            leases = [e.kv_lease_s for e in snapshot.engines if e.kv_lease_s]
            self.kv_lease_s = max(leases, default=self.kv_lease_s)
            # A gateway with a list of URLs does not know how long offers live: it is told.
            recovery = _SETTINGS.recovery.model_copy(
                update={"kv_lease_s": min(leases, default=self.kv_lease_s)}
            )
            self._whole.update(engine.role for engine in snapshot.engines)
            if snapshot.engine_secret is not None:
                self.engine_headers[SECRET_HEADER] = snapshot.engine_secret
            folder = Path(
                self._stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-drill-"))
            )
            self._gateways = Gateways(
                folder, _SETTINGS.model_copy(update={"recovery": recovery}), snapshot.engine_secret
            )
            self._stack.callback(self._gateways.end_all)
            self._stack.callback(self._thaw_all)
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def _thaw_all(self) -> None:
        for pid in self._frozen:
            engine_processes.thaw(pid)

    def cannot(self, fault: str) -> str | None:
        """Why a fault is not to be had in a deployment."""
        if fault == "outlast_lease":
            return "Ray Serve replaces a replica that is silent for as long as a KV lease lasts"
        if fault == "lose_directory" and self._directory_process() is None:
            return "the directory's process is not on this machine"
        return None

    async def engines(self) -> Sequence[EngineLease]:
        """The engines in the directory that no drill has killed.

        One that still starts has neither an address nor an id yet.
        """
        snapshot = await asyncio.to_thread(serve_app.engines, self._app)
        return [
            engine
            for engine in snapshot.engines
            if engine.state != "starting" and engine.engine_id not in self._dead
        ]

    async def kill(self, engine: EngineLease, *, core_only: bool) -> None:
        """SIGKILL for the replica and all below it, or for its EngineCore."""
        self._dead.add(engine.engine_id)
        await asyncio.to_thread(engine_processes.kill, engine.pid, core_only=core_only)

    async def freeze(self, engine: EngineLease) -> None:
        """SIGSTOP for the replica and all below it."""
        self._frozen.add(engine.pid)
        engine_processes.freeze(engine.pid)

    async def thaw(self, engine: EngineLease) -> None:
        """SIGCONT."""
        engine_processes.thaw(engine.pid)
        self._frozen.discard(engine.pid)

    async def restart(self, engine: EngineLease) -> EngineLease:
        """SIGKILL; Ray Serve starts another, with a new engine_id and a free port of the node."""
        before = {other.engine_id for other in await self.engines()}
        if not before:
            raise NotRunning("the directory names no engine", cure="look: baton status")
        await self.kill(engine, core_only=False)
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            for other in await self.engines():
                if other.role == engine.role and other.engine_id not in before:
                    return other
            await asyncio.sleep(_LOOK_S)
        raise DeployFailed(
            f"Ray Serve started no new {engine.role} engine within {_READY_S:.0f} s",
            cure="look: baton status",
        )

    @contextlib.asynccontextmanager
    async def rewired(self, urls: Mapping[str, str]) -> AsyncIterator[str]:
        """A gateway of its own before the deployment's engines."""
        async with self._gateways.rewired(await self.engines(), urls) as endpoint:
            yield endpoint

    @contextlib.asynccontextmanager
    async def two_gateways(self) -> AsyncIterator[PairToBreak]:
        """Two gateways of their own before the deployment's engines."""
        async with self._gateways.pair(await self.engines()) as pair:
            yield pair

    @contextlib.asynccontextmanager
    async def with_directory(self) -> AsyncIterator[DirectoryToLose | _Actor]:
        """The deployment's own gateways; its directory actor can be frozen."""
        process = self._directory_process()
        if process is None:
            raise NotRunning("the directory's process is not on this machine")
        actor = _Actor(self.endpoint, process)
        try:
            yield actor
        finally:
            await actor.find()

    def _directory_process(self) -> psutil.Process | None:
        for process in members(self._deployment.marker, self._deployment.folder):
            with contextlib.suppress(psutil.Error):
                if _ACTOR in " ".join(process.cmdline()):
                    return process
        return None

    async def restore(self) -> None:
        """Wait until Ray Serve has as many engines as before, and the gateways know them."""
        self._thaw_all()
        deadline = time.monotonic() + _READY_S
        async with httpx.AsyncClient(timeout=5.0, trust_env=False, headers=self._headers) as client:
            while time.monotonic() < deadline:
                alive = await self.engines()
                there = Counter(engine.role for engine in alive)
                if there == self._whole and await _knows(client, self.endpoint, alive):
                    return
                await asyncio.sleep(_LOOK_S)
        raise DeployFailed(
            f"Ray Serve did not bring all engines back within {_READY_S:.0f} s",
            cure="look: baton status",
        )


class _Actor:
    """The directory's process, to be frozen: Ray would start a killed one again at once."""

    def __init__(self, endpoint: str, process: psutil.Process) -> None:
        self.endpoint = endpoint
        self._process = process

    async def lose(self) -> None:
        self._process.suspend()

    async def find(self) -> None:
        with contextlib.suppress(psutil.Error):
            self._process.resume()


async def _knows(client: httpx.AsyncClient, endpoint: str, engines: Sequence[EngineLease]) -> bool:
    with contextlib.suppress(httpx.HTTPError, ValueError):
        view = (await client.get(f"{endpoint}/baton/engines")).json()["engines"]
        ready = {engine["engine_id"] for engine in view if is_used(engine)}
        return ready == {engine.engine_id for engine in engines}
    return False
