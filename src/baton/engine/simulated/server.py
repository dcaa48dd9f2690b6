"""Runs a simulated engine: in the running event loop for tests, or as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from baton.engine.guard import EngineGuard
from baton.engine.simulated.app import EngineApp
from baton.engine.simulated.core import Core
from baton.engine.simulated.settings import EngineSettings, LatencyProfile
from baton.engine.simulated.writing import TRANSPORT
from baton.errors import EngineStartFailed, PortTaken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from starlette.types import Receive, Scope, Send

logger = logging.getLogger(__name__)

_START_TRIES = 200


class _Protocol(HttpToolsProtocol):
    """Lets the app reach the connection, so that a fault can cut it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope[TRANSPORT] = self.transport


class _Server(uvicorn.Server):
    """Leaves signals alone when it is a guest in somebody else's process."""

    def __init__(self, config: uvicorn.Config, *, handles_signals: bool) -> None:
        super().__init__(config)
        self._handles_signals = handles_signals

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals() if self._handles_signals else contextlib.nullcontext():
            yield


class SimulatedEngine:
    """A simulated engine in the running event loop.

    >>> async with SimulatedEngine(role="prefill", engine_id="p0") as engine:
    ...     print(engine.url)

    Args:
        role: What it is asked for; both roles can do everything, as in vLLM.
        engine_id: Its name for KV transfers.
        host: The address that it listens on, and that peers find its KV at.
        port: HTTP port; 0 takes a free one.
        secret: Wanted in every request (see `baton.engine.guard`); None for an open engine.
        faults: Faults that are on from the start (see `baton.engine.simulated.faults`).
        more: Further fields of `EngineSettings`; those of `LatencyProfile` go as `latency`.

    Raises:
        PortTaken: Another process has the port.
        ConfigRefused: A fault that cannot be read, or KV blocks that hold no request.
    """

    def __init__(
        self,
        *,
        role: Literal["prefill", "decode"],
        engine_id: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: str | None = None,
        faults: Sequence[str] = (),
        latency: LatencyProfile | None = None,
        **more: Any,
    ) -> None:
        self.settings = EngineSettings(
            role=role, engine_id=engine_id or role, latency=latency or LatencyProfile(), **more
        )
        self._host, self._port = host, port
        self._secret = secret
        self._faults = list(faults)
        self._is_a_process = False
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._core: Core | None = None
        self.app: EngineApp

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def core(self) -> Core:
        if self._core is None:
            raise RuntimeError("the engine has not been started")
        return self._core

    async def __aenter__(self) -> Self:
        with contextlib.ExitStack() as on_failure:
            listening = on_failure.enter_context(_listen(self._host, self._port))
            side = on_failure.enter_context(_listen(self._host, 0))
            self._port = listening.getsockname()[1]
            side_port = side.getsockname()[1]
            self._core = Core(
                self.settings, side_channel=(self._host, side_port), on_death=self._after_death
            )
            self.app = EngineApp(self._core, on_kill=self.kill)
            self.app.faults.set(self._faults)
            config = uvicorn.Config(
                _by_port(side_port, self.app.side_channel, EngineGuard(self.app, self._secret)),
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=1,
            )
            self._server = _Server(config, handles_signals=self._is_a_process)
            self._serving = asyncio.get_running_loop().create_task(
                self._server.serve(sockets=[listening, side])
            )
            await self._until_started()
            on_failure.pop_all()
        return self

    async def _until_started(self) -> None:
        for _ in range(_START_TRIES):
            if self._server is not None and self._server.started:
                return
            await asyncio.sleep(0.01)
        raise EngineStartFailed("the simulated engine did not start", place=self.url)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cut_connections()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            with contextlib.suppress(asyncio.CancelledError):
                await self._serving
        await self.core.close()

    async def serve_forever(self, *, on_ready: Callable[[], None]) -> None:
        """Serve as the process's main job, until a signal ends it."""
        self._is_a_process = True
        async with self:
            on_ready()
            if self._serving is not None:
                await self._serving

    def kill(self) -> None:
        """End as a killed process does: no last word, on no connection."""
        if self._is_a_process:
            os.kill(os.getpid(), signal.SIGKILL)
        self._cut_connections()
        if self._server is not None:
            for server in self._server.servers:
                server.close()

    def _after_death(self) -> None:
        """End a moment later, as vLLM's API server does once its EngineCore is dead."""
        asyncio.get_running_loop().call_later(0.1, self.kill)

    def _cut_connections(self) -> None:
        if self._server is not None:
            for connection in list(self._server.server_state.connections):
                transport = getattr(connection, "transport", None)
                if transport is not None:
                    transport.abort()


def _by_port(side_port: int, side_channel: Any, public: Any) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        chosen = side_channel if scope["server"][1] == side_port else public
        await chosen(scope, receive, send)

    return app


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as exc:
        listening.close()
        raise PortTaken(
            f"cannot listen on {host}:{port}: {exc.strerror}",
            cure="choose another --port, or 0 for a free one",
        ) from exc
    return listening
