"""Connections that carry one request at a time, and what was seen of the answers.

Bytes are searched and never parsed: what reads here shares the machine with what it measures. Times
are nanoseconds on CLOCK_MONOTONIC, which the engine stamps into each token as well.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway_engine import STAMP_DIGITS

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = b'"content":" '
tasks: set[asyncio.Future[None]] = set()


@dataclass
class Window:
    """What the requests of one window saw."""

    tokens: int
    """That each answer must have."""
    ttft_ns: array[int] = field(default_factory=lambda: array("q"))
    """First byte of the first leg sent → first token read."""
    gap_ns: array[int] = field(default_factory=lambda: array("q"))
    """Between two tokens of a stream."""
    way_ns: array[int] = field(default_factory=lambda: array("q"))
    """Token written by the engine → read here."""
    late_ns: array[int] = field(default_factory=lambda: array("q"))
    """Planned → sent: how well the generator kept its plan."""
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    took_s: float = 0.0
    in_time: int = 0
    """Tokens read before the window's end: `kept_busy` then waits for what is still open."""

    @property
    def chunks(self) -> int:
        return len(self.way_ns)


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, owner: Connections) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._window: Window | None = None
        self._done: Callable[[bytes | None], None]
        self.used_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def send(
        self,
        request: bytes,
        window: Window,
        began_ns: int,
        done: Callable[[bytes | None], None],
    ) -> None:
        """Send a request; `done` gets a whole body, nothing of a stream, None when it failed."""
        self._window, self._done, self._began = window, done, began_ns
        self._rest = b""
        self._length = -1
        self._headed = self._ended = False
        self._tokens = 0
        self._last = 0
        if self._transport is None or self._transport.is_closing():
            self._fail("connection closed")
            return
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        window = self._window
        if window is None:
            return
        if self._rest:
            data = self._rest + data
        if not self._headed:
            body = self._read_head(data)
            if body is None:
                return
            data = body
        if self._length >= 0:
            self._rest = data
            if len(data) >= self._length:
                self._finish(data[: self._length])
            return
        cut = data.rfind(b"\n\n")
        if cut >= 0:
            self._read_tokens(data, now, window)
            self._ended = self._ended or b"data: [DONE]" in data
        self._rest = data[cut + 2 :] if cut >= 0 else data
        if self._ended and data.endswith(b"0\r\n\r\n"):
            if self._tokens == window.tokens:
                self._finish(b"")
            else:
                self._fail("wrong number of tokens")

    def _read_head(self, data: bytes) -> bytes | None:
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self._rest = data
            return None
        if data[9:12] != b"200":
            self._fail(f"status {data[9:12].decode()}")
            return None
        head = data[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        if at >= 0:
            self._length = int(head[at + 17 :].partition(b"\r")[0])
        self._headed = True
        self._rest = b""
        return data[end + 4 :]

    def _read_tokens(self, data: bytes, now: int, window: Window) -> None:
        at = data.find(MARK)
        while at >= 0:
            at += len(MARK)
            end = at + STAMP_DIGITS
            window.way_ns.append(now - int(data[at:end]))
            if self._tokens:
                window.gap_ns.append(now - self._last)
            else:
                window.ttft_ns.append(now - self._began)
            self._last = now
            self._tokens += 1
            at = data.find(MARK, end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._window is not None:
            self._fail("connection lost" if exc is None else repr(exc))

    def _finish(self, body: bytes) -> None:
        self._window = None
        self._owner.free(self)
        self._done(body)

    def _fail(self, why: str) -> None:
        if self._window is not None:
            self._window.failed[why] += 1
            self._window = None
        self.close()
        self._done(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()


class Connections:
    """Connections to one address, kept open between requests."""

    STALE_S = 2.0
    """Servers close connections that rest for a few seconds: ours are not used after that."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.all: set[Connection] = set()
        self._idle: list[Connection] = []

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: Connection(self), *self.address)
        self.all.add(made)
        return made

    async def prepare(self, count: int) -> None:
        """Have so many fresh connections."""
        self.close()
        for _ in range(count):
            self.free(await self.connect())

    def free(self, connection: Connection) -> None:
        connection.used_at = time.monotonic()
        self._idle.append(connection)

    def take(self) -> Connection | None:
        """The connection that rested least, if any."""
        while self._idle:
            found = self._idle.pop()
            if found.is_open and time.monotonic() - found.used_at < self.STALE_S:
                return found
            self.all.discard(found)
            found.close()
        return None

    def send(
        self, request: bytes, window: Window, began_ns: int, done: Callable[[bytes | None], None]
    ) -> None:
        free = self.take()
        if free is not None:
            free.send(request, window, began_ns, done)
            return
        tasks.add(task := asyncio.ensure_future(self._send_on_new(request, window, began_ns, done)))
        task.add_done_callback(tasks.discard)

    async def _send_on_new(
        self, request: bytes, window: Window, began_ns: int, done: Callable[[bytes | None], None]
    ) -> None:
        try:
            connection = await self.connect()
        except OSError as exc:
            window.failed[repr(exc)] += 1
            done(None)
            return
        connection.send(request, window, began_ns, done)

    def close(self) -> None:
        for connection in self.all:
            connection.close()
        self.all.clear()
        self._idle.clear()
