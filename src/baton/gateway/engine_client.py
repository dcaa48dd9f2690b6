"""HTTP to engines: connections kept open, failures told apart.

What a leg needs to know about a failure is its kind, because the kind decides what is tried next
(`recovery`). What goes over a connection is `engine_wire`'s; nothing above this file knows it.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from baton.errors import LegFailed
from baton.gateway.engine_wire import Broken, EngineConnection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.errors import FailureKind
    from baton.gateway.engine_wire import EngineAnswer
    from baton.spec.lease import EngineLease

CONNECT_TIMEOUT_S = 3.0
# vLLM's uvicorn closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE); ours go first,
# so that a request is never sent into a connection that is being closed.
KEEPALIVE_S = 4.0
SWEEP_S = 2.0


class _Peer:
    """One engine's address and the connections to it that rest, the latest last."""

    __slots__ = ("head", "host", "idle", "port", "tls")

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.host = parts.hostname or ""
        self.port = parts.port or (80 if self.tls is None else 443)
        self.head = f" HTTP/1.1\r\nhost: {parts.netloc.rpartition('@')[2]}\r\n"
        self.idle: list[EngineConnection] = []

    def take(self, now: float) -> EngineConnection | None:
        """The connection that rested least and may still be used."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_open and now - connection.idle_since < KEEPALIVE_S:
                return connection
            connection.abort()
        return None


class EngineClient:
    """Sends legs to engines. Made inside the event loop that uses it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, _Peer] = {}
        self._all: set[EngineConnection] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def send(
        self,
        engine: EngineLease,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> EngineAnswer:
        """Send a request and wait for the answer's status.

        Args:
            engine: Where to.
            method: GET or POST.
            path: With its query, quoted.
            body: Of the request.
            headers: Besides `host` and `content-length`.

        Raises:
            LegFailed: `refused`, `unreachable` or `disconnected`.
            ValueError: The path or a header would end its line.
        """
        peer = self._peers.get(engine.url)
        if peer is None:
            peer = self._peers[engine.url] = _Peer(engine.url)
        request = _request(peer.head, method, path, body, headers or {})
        connection = peer.take(self._loop.time())
        if connection is not None:
            try:
                return await self._ask(connection, request, engine)
            except Broken as exc:
                # It had rested and was just being closed. What may be done twice is done again.
                if method != "GET" or not exc.silent:
                    raise LegFailed("disconnected", engine.replica_id, str(exc)) from exc
        connection = await self._connect(peer, engine)
        try:
            return await self._ask(connection, request, engine)
        except Broken as exc:
            raise LegFailed("disconnected", engine.replica_id, str(exc)) from exc

    @staticmethod
    async def _ask(
        connection: EngineConnection, request: bytes, engine: EngineLease
    ) -> EngineAnswer:
        answer = connection.ask(request, engine.replica_id)
        await answer.head()
        return answer

    async def _connect(self, peer: _Peer, engine: EngineLease) -> EngineConnection:
        if self._closed:
            raise LegFailed("disconnected", engine.replica_id, "the gateway is closing")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._loop.create_connection(
                    lambda: EngineConnection(peer.idle, self._rest, self._all.discard),
                    peer.host,
                    peer.port,
                    ssl=peer.tls,
                )
        except TimeoutError as exc:
            raise LegFailed("unreachable", engine.replica_id, "no connection in time") from exc
        except OSError as exc:
            raise LegFailed("refused", engine.replica_id, str(exc)) from exc
        self._all.add(connection)
        return connection

    def _rest(self, connection: EngineConnection) -> None:
        """Its answer was whole: the next request may have it."""
        connection.idle_since = self._loop.time()
        connection.pool.append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Close what has rested too long; forget engines that nothing is open to."""
        now = self._loop.time()
        for peer in self._peers.values():
            for connection in [c for c in peer.idle if now - c.idle_since >= KEEPALIVE_S]:
                connection.abort()
            peer.idle[:] = [c for c in peer.idle if c.is_open]
        used = {id(connection.pool) for connection in self._all}
        self._peers = {url: peer for url, peer in self._peers.items() if id(peer.idle) in used}
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep) if self._all else None

    async def fetch(
        self,
        engine: EngineLease,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Send a request and read the whole answer.

        Raises:
            LegFailed: With `timeout` when it takes longer than `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.send(engine, method, path, body=body, headers=headers)
                try:
                    return answer.status, await answer.read()
                finally:
                    answer.close()
        except TimeoutError as exc:
            raise LegFailed("timeout", engine.replica_id, f"after {timeout_s:g} s") from exc

    async def close(self) -> None:
        """Close every connection, also one that an answer still comes over."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._all):
            connection.fail("the gateway is closing")
        self._peers.clear()
        await asyncio.sleep(0)  # they end in the loop's next turn


def _request(
    host: str, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> bytes:
    lines = [f"{method} {path}{host}"]
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    if body is not None or method != "GET":
        lines.append(f"content-length: {0 if body is None else len(body)}\r\n")
    head = "".join(lines)
    # A line of its own inside a value would be a header, or a request, that nobody checked.
    ends = len(lines) + 1
    if head.count("\n") != ends or head.count("\r") != ends or " " in path:
        raise ValueError("a path or a header with a space or a line's end in it")
    raw = head.encode("latin-1") + b"\r\n"
    return raw if body is None else raw + body


def failure_of_status(status: int) -> FailureKind | None:
    """What an engine's status means for the leg; None when the answer is the caller's."""
    if status in (401, 403):
        return "unauthorized"
    if status in (429, 503):
        return "busy"
    # 501 is vLLM's "this model cannot do that": no other engine of the deployment can.
    if status >= 500 and status != 501:  # noqa: PLR2004
        return "server_error"
    return None
