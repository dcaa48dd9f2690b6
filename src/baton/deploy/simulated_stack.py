"""Simulated engines and a gateway as processes on loopback, and everything that can go wrong there.

What `baton drill --engines simulated` breaks. It implements `baton.drill.injector.Injector`: this
room does not import that one, mypy compares the two where `baton.cli` puts them together.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import httpx

from baton.deploy.gateways import Gateways
from baton.deploy.own_process import OwnProcess
from baton.errors import DeployFailed
from baton.spec.lease import EngineLease, all_used
from baton.spec.schema import Admission, BatonBlock, Disaggregate, Logging, Recovery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from baton.deploy.gateways import DirectoryToLose, PairToBreak
    from baton.spec.schema import Role

MODEL_ID = "simulated"
KV_LEASE_S = 7.0
"""A quarter of vLLM's: two scenarios wait for its end."""
SETTINGS = BatonBlock(
    # Each request is handed over, whatever it costs: that is what is drilled.
    # What `auto` does where engines have leases; these are given by their URLs.
    disaggregate=Disaggregate(mode="always", first_token="early"),  # noqa: S106 - of a text
    # Shorter than anybody would serve with, so that a hang is over while the drill watches.
    recovery=Recovery(
        prefill_timeout_s=3.0,
        decode_first_byte_timeout_s=10.0,  # longer than the lease, as it is by default
        request_timeout_s=60.0,
        kv_lease_s=KV_LEASE_S,
    ),
    admission=Admission(max_inflight=512),
    logging=Logging(level="warning"),
)
# Slow enough that prefill has a queue and an answer takes seconds, fast enough for three minutes.
_ENGINE = (
    *("--prefill-tokens-per-s", "20000", "--tpot-ms", "25", "--handoff-gbps", "5"),
    *("--answer-tokens", "200", "--max-model-len", "4096", "--lease-s", str(KV_LEASE_S)),
)
_READY_S = 60.0


@dataclass
class _Engine:
    lease: EngineLease
    process: OwnProcess
    should_live: bool = True


class SimulatedStack:
    """Engines and a gateway, running while the block lasts.

    Args:
        prefill: How many prefill engines.
        decode: How many decode engines.
        settings: Of the gateways.
    """

    engine_headers: Mapping[str, str] = {}
    kv_lease_s = KV_LEASE_S

    def __init__(
        self, *, prefill: int = 2, decode: int = 2, settings: BatonBlock = SETTINGS
    ) -> None:
        wanted: tuple[tuple[Role, int], ...] = (("prefill", prefill), ("decode", decode))
        self._roles = [role for role, count in wanted for _ in range(count)]
        self._temporary = tempfile.TemporaryDirectory(prefix="baton-drill-")
        self.folder = Path(self._temporary.name)
        self._engines: list[_Engine] = []
        self._started: list[OwnProcess] = []
        self._gateways = Gateways(self.folder, settings)
        self._http = httpx.AsyncClient(timeout=5.0, trust_env=False)
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        try:
            self._engines = list(
                await asyncio.gather(
                    *(self._start(role, number) for number, role in enumerate(self._roles))
                )
            )
            leases = [engine.lease for engine in self._engines]
            _, self.endpoint = await self._gateways.start(leases)
            await self._until_ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        self._gateways.end_all()
        for process in self._started:
            process.end_now()
        await self._http.aclose()
        self._temporary.cleanup()

    async def _start(self, role: Role, number: int, url: str | None = None) -> _Engine:
        port = url.rsplit(":", 1)[1] if url else "0"
        engine_id = f"{role}-{number}-{uuid.uuid4().hex[:6]}"
        process = OwnProcess(
            [
                *(sys.executable, "-m", "baton.cli", "engine", "--simulated", "--role", role),
                *("--port", port, "--engine-id", engine_id, "--model", MODEL_ID, *_ENGINE),
            ],
            self.folder / f"{role}-{number}.log",
        )
        self._started.append(process)
        url = await process.listens()
        lease = EngineLease(
            replica_id=url,
            role=role,
            url=url,
            engine_id=engine_id,
            model_id=MODEL_ID,
            pid=process.pid,
            max_model_len=4096,
        )
        return _Engine(lease, process)

    # -- what can be broken ----------------------------------------------------------------------

    def cannot(self, fault: str) -> str | None:  # noqa: ARG002
        """Everything can be done here."""
        return None

    async def engines(self) -> Sequence[EngineLease]:
        """The engines that nobody has killed."""
        return [engine.lease for engine in self._engines if engine.should_live]

    def _of(self, lease: EngineLease) -> _Engine:
        for engine in self._engines:
            if engine.lease.url == lease.url:
                return engine
        known = ", ".join(engine.lease.url for engine in self._engines) or "none"
        raise DeployFailed(f"no engine at {lease.url} is known here", cure=f"known: {known}")

    async def kill(self, engine: EngineLease, *, core_only: bool) -> None:
        """SIGKILL for the process, or an assertion that fails in its core."""
        victim = self._of(engine)
        victim.should_live = False
        if not core_only:
            await victim.process.kill()
            return
        # KV parameters without blocks: an assertion of vLLM's scheduler, which ends the core. The
        # HTTP server says so on every stream and ends a moment later.
        body = {
            "model": MODEL_ID,
            "prompt": "x",
            "max_tokens": 1,
            "kv_transfer_params": {"do_remote_prefill": True},
        }
        with contextlib.suppress(httpx.HTTPError):
            await self._http.post(f"{engine.url}/v1/completions", json=body)
        await victim.process.gone()

    async def freeze(self, engine: EngineLease) -> None:
        """SIGSTOP: the kernel goes on accepting connections, and nobody reads them."""
        self._of(engine).process.send(signal.SIGSTOP)

    async def thaw(self, engine: EngineLease) -> None:
        """SIGCONT."""
        self._of(engine).process.send(signal.SIGCONT)

    async def restart(self, engine: EngineLease) -> EngineLease:
        """SIGKILL, and a new engine on the same port under a new engine_id."""
        victim = self._of(engine)
        number = self._engines.index(victim)
        await victim.process.kill()
        self._engines[number] = await self._start(engine.role, number, engine.url)
        return self._engines[number].lease

    def rewired(self, urls: Mapping[str, str]) -> contextlib.AbstractAsyncContextManager[str]:
        """A gateway that reaches the engines by other addresses."""
        return self._gateways.rewired(self._alive(), urls)

    def two_gateways(self) -> contextlib.AbstractAsyncContextManager[PairToBreak]:
        """Two more gateways."""
        return self._gateways.pair(self._alive())

    def with_directory(self) -> contextlib.AbstractAsyncContextManager[DirectoryToLose]:
        """A gateway that reads leases."""
        return self._gateways.with_directory(self._alive())

    def _alive(self) -> list[EngineLease]:
        return [engine.lease for engine in self._engines if engine.should_live]

    async def restore(self) -> None:
        """Start again what was killed, in the same places, and wait until it is used."""
        for number, engine in enumerate(self._engines):
            engine.process.send(signal.SIGCONT)
            if not engine.process.alive:
                role, url = engine.lease.role, engine.lease.url
                self._engines[number] = await self._start(role, number, url)
        await self._until_ready()

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                view = (await self._http.get(f"{self.endpoint}/baton/engines")).json()
                if all_used(view["engines"]):
                    return
            await asyncio.sleep(0.05)
        raise DeployFailed(
            "the drill's gateway never had all engines ready", place=str(self.folder)
        )
