"""Gateway processes for drills: in front of engines that run, as many and as odd as wanted.

Each is `baton gateway`, the one for a lost directory is `leased_gateway`; all end with the block.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import TYPE_CHECKING

from baton.deploy.own_process import OwnProcess
from baton.errors import DeployFailed
from baton.spec.lease import DirectorySnapshot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from baton.spec.lease import EngineLease
    from baton.spec.schema import BatonBlock

SECRET_VARIABLE = "BATON_DRILL_ENGINE_SECRET"  # noqa: S105  (the variable's name)


class Gateways:
    """Starts gateways.

    Args:
        folder: For their config and logs.
        settings: Of each.
        engine_secret: What opens the engines' ports.
    """

    def __init__(
        self, folder: Path, settings: BatonBlock, engine_secret: str | None = None
    ) -> None:
        self._folder = folder
        self._secret = engine_secret
        self._settings = settings
        self._started = 0
        self._running: list[OwnProcess] = []
        data = settings.model_dump(mode="json", exclude_unset=True)
        # JSON is YAML: both kinds of gateway read these.
        self._block = folder / "baton.json"
        self._block.write_text(json.dumps(data), encoding="utf-8")
        self._file = folder / "baton.yaml"
        self._file.write_text(json.dumps({"baton": data}), encoding="utf-8")

    async def start(
        self, engines: Sequence[EngineLease], urls: Mapping[str, str] | None = None
    ) -> tuple[OwnProcess, str]:
        """One more gateway; `urls` replaces engines' addresses. Returns it and where it listens."""
        command = [sys.executable, "-m", "baton.cli", "gateway", "--port", "0"]
        command += ["--config", str(self._file)]
        for engine in engines:
            command += [f"--{engine.role}", (urls or {}).get(engine.url, engine.url)]
        environment = {}
        if self._secret is not None:
            command += ["--engine-secret-env", SECRET_VARIABLE]
            environment[SECRET_VARIABLE] = self._secret
        return await self._run(command, environment)

    async def _run(
        self, command: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[OwnProcess, str]:
        self._started += 1
        process = OwnProcess(
            command, self._folder / f"gateway-{self._started}.log", environment=environment
        )
        self._running.append(process)
        return process, await process.listens()

    @contextlib.asynccontextmanager
    async def _ended(self, *processes: OwnProcess) -> AsyncIterator[None]:
        """In good order: a gateway that is killed may leave KV behind, which is another drill."""
        try:
            yield
            await asyncio.gather(*(process.end() for process in processes))
        finally:
            for process in processes:
                process.end_now()

    @contextlib.asynccontextmanager
    async def rewired(
        self, engines: Sequence[EngineLease], urls: Mapping[str, str]
    ) -> AsyncIterator[str]:
        """A gateway that reaches its engines elsewhere."""
        process, endpoint = await self.start(engines, urls)
        async with self._ended(process):
            yield endpoint

    @contextlib.asynccontextmanager
    async def pair(self, engines: Sequence[EngineLease]) -> AsyncIterator[PairToBreak]:
        """Two gateways, one of which will be killed."""
        (first, one), (second, two) = await asyncio.gather(self.start(engines), self.start(engines))
        async with self._ended(first, second):
            yield PairToBreak(first, [one, two])

    @contextlib.asynccontextmanager
    async def with_directory(
        self, engines: Sequence[EngineLease]
    ) -> AsyncIterator[DirectoryToLose]:
        """A gateway with a directory of leases that can be taken away."""
        snapshot = DirectorySnapshot(engines=tuple(engines), engine_secret=self._secret)
        book = _Book(snapshot.model_dump_json().encode())
        await book.open()
        module = "baton.deploy.leased_gateway"
        try:
            process, endpoint = await self._run(
                [sys.executable, "-m", module, book.url, str(self._block)], {}
            )
            async with self._ended(process):
                yield DirectoryToLose(endpoint, book)
        finally:
            await book.close()

    def end_all(self) -> None:
        for process in self._running:
            process.end_now()


class PairToBreak:
    """See `baton.drill.injector.GatewayPair`."""

    def __init__(self, victim: OwnProcess, endpoints: Sequence[str]) -> None:
        self._victim = victim
        self.endpoints = endpoints

    async def kill_one(self) -> None:
        await self._victim.kill()


class DirectoryToLose:
    """See `baton.drill.injector.LostDirectory`."""

    def __init__(self, endpoint: str, book: _Book) -> None:
        self.endpoint = endpoint
        self._book = book

    async def lose(self) -> None:
        await self._book.close()

    async def find(self) -> None:
        await self._book.open()


class _Book:
    """A directory in our own process: the same leases for everybody who asks."""

    def __init__(self, snapshot: bytes) -> None:
        self._snapshot = snapshot
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/"

    async def open(self) -> None:
        try:
            self._server = await asyncio.start_server(self._answer, "127.0.0.1", self._port)
        except OSError as exc:
            raise DeployFailed(f"the directory cannot listen again: {exc.strerror}") from exc
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await reader.readuntil(b"\r\n\r\n")
            head = (
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
                f"content-length: {len(self._snapshot)}\r\n\r\n"
            )
            writer.write(head.encode() + self._snapshot)
            await writer.drain()
        writer.close()
