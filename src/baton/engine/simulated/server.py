"""Runs a simulated engine: in the running event loop for tests, or as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from baton.engine.guard import EngineGuard
from baton.engine.simulated.app import EngineApp
from baton.engine.simulated.core import Core
from baton.engine.simulated.settings import EngineSettings, LatencyProfile
from baton.engine.simulated.writing import TRANSPORT
from baton.errors import PortTaken

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from starlette.types import ASGIApp, Receive, Scope, Send

_BACKLOG = 2048
_LAST_WORDS_S = 0.1


class _Protocol(HttpToolsProtocol):
    """Lets the app reach the connection, so that a fault can cut it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope[TRANSPORT] = self.transport


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
        self._listeners: list[asyncio.Server] = []
        self._state = ServerState()
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
            public = on_failure.enter_context(_listen(self._host, self._port))
            side = on_failure.enter_context(_listen(self._host, 0))
            self._port = public.getsockname()[1]
            side_port = side.getsockname()[1]
            self._core = Core(
                self.settings, side_channel=(self._host, side_port), on_death=self._after_death
            )
            self.app = EngineApp(self._core, on_kill=self.kill)
            self.app.faults.set(self._faults)
            app = _by_port(side_port, self.app.side_channel, EngineGuard(self.app, self._secret))
            await self._serve(app, public, side)
            on_failure.pop_all()
        return self

    async def _serve(self, app: ASGIApp, *sockets: socket.socket) -> None:
        # Only uvicorn's protocol, not its server: that one wants the process's signals, and takes
        # a tenth of a second to start and to stop.
        config = uvicorn.Config(
            app, ws="none", lifespan="off", log_config=None, access_log=False, date_header=False
        )
        config.load()
        self._state.default_headers = list(config.encoded_headers)

        def connected() -> _Protocol:
            return _Protocol(config=config, server_state=self._state, app_state={})

        loop = asyncio.get_running_loop()
        for listening in sockets:
            server = await loop.create_server(connected, sock=listening, backlog=_BACKLOG)
            self._listeners.append(server)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cut_off()
        requests = [task for task in self._state.tasks if task is not asyncio.current_task()]
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
        await self.core.close()

    async def serve_forever(self, *, on_ready: Callable[[], None]) -> None:
        """Serve as the process's main job, until SIGINT or SIGTERM ends it."""
        self._is_a_process = True
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        async with self:
            on_ready()
            await ended.wait()

    def kill(self) -> None:
        """End as a killed process does: no last word, on no connection."""
        if self._is_a_process:
            os.kill(os.getpid(), signal.SIGKILL)
        self._cut_off()

    def _after_death(self) -> None:
        """End a moment later, as vLLM's API server does once its EngineCore is dead."""
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.kill)

    def _cut_off(self) -> None:
        for listener in self._listeners:
            listener.close()
        for connection in list(self._state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def _by_port(side_port: int, side_channel: ASGIApp, public: ASGIApp) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        chosen = side_channel if scope["server"][1] == side_port else public
        await chosen(scope, receive, send)

    return app


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named so that asyncio turns Nagle off (see `engine/ports.py`).
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
