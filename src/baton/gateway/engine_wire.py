"""One connection to an engine, on a bare asyncio protocol: a request goes out, an answer comes in.

Bytes of an answer take one of two ways. Whoever wants them asks (`next_chunk`, `read`), and what
nobody has asked for yet is kept, up to a mark where reading from the engine stops. Or a taker is
given (`flow`) and gets each piece in the callback in which it came: no task wakes up and no future
is made. A taker that does not want a piece says so, and the first way goes on with that piece; so
only what is plain has to be understood there (`stream`).

The framing is httptools' business (llhttp), which refuses what is no HTTP. Why there is a protocol
of our own where a client library was: docs/decisions/0016.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httptools

from baton.errors import LegFailed

if TYPE_CHECKING:
    from collections.abc import Callable

HIGH_WATER = 64 * 1024
"""So much of an answer is kept for somebody who reads slowly; then the engine has to wait."""
MAX_HEAD = 64 * 1024
_FINAL = 200
_NO_CONTENT = (204, 304)


class Broken(Exception):
    """The connection failed before an answer had begun.

    Args:
        why: What happened.
        silent: Nothing had come back: the connection may have been closed before it was asked.
    """

    def __init__(self, why: str, *, silent: bool) -> None:
        super().__init__(why)
        self.silent = silent


class EngineAnswer:
    """An engine's answer whose status is known and whose body may still be coming."""

    __slots__ = (
        "_connection", "_ended", "_engine", "_failure", "_fault", "_headers", "_held", "_size",
        "_taker", "_waiter", "content_type", "is_stream", "status",
    )  # fmt: skip

    def __init__(self, connection: EngineConnection, engine: str) -> None:
        self._connection: EngineConnection | None = connection
        self._engine = engine
        self._headers: dict[bytes, bytes] = {}
        self._held: list[bytes] = []
        self._size = 0
        self._taker: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._failure: str | None = None
        self._fault: BaseException | None = None
        self.status = 0
        self.content_type = "application/json"
        self.is_stream = False

    def header(self, name: str) -> str | None:
        value = self._headers.get(name.lower().encode("latin-1"))
        return None if value is None else value.decode("latin-1")

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            LegFailed: The body broke off.
        """
        if self._ended and len(self._held) == 1:  # nearly always so: it came with its head
            return self._held.pop()
        parts = []
        while chunk := await self.next_chunk():
            parts.append(chunk)
        return b"".join(parts)

    async def next_chunk(self) -> bytes:
        """The bytes that have come since the last call; waits for some. Empty at the proper end.

        Raises:
            LegFailed: The body broke off. A body that ends early is never taken for a whole one.
        """
        while not self._held:
            if self._failure is not None:
                raise LegFailed("truncated", self._engine, self._failure)
            if self._ended:
                return b""
            await self._wait()
        held = self._held
        chunk = held[0] if len(held) == 1 else b"".join(held)
        held.clear()
        self._size = 0
        if self._connection is not None:
            self._connection.resume()
        return chunk

    async def flow(self, taker: Callable[[bytes], bool]) -> None:
        """Have pieces taken as they come, until one is not, or nothing more comes.

        What was not taken, the end and a failure are then `next_chunk`'s to say.

        Args:
            taker: Called in the connection's own callback, must not block. False: not taken.

        Raises:
            BaseException: What the taker raised.
        """
        if self._held or self._ended or self._failure is not None:
            return
        self._taker = taker
        try:
            await self._wait()
        finally:
            self._taker = None
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault

    async def _wait(self) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Done with it. A body that was not read to its end closes the connection: vLLM aborts."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._held.clear()
            self._failure = self._failure or "closed here"
            connection.abort()
            self._wake()

    # -- what its connection says ----------------------------------------------------------------

    def begun(self, status: int, headers: dict[bytes, bytes]) -> None:
        """Status and headers have come."""
        self.status, self._headers = status, headers
        said = headers.get(b"content-type")
        if said is not None:
            self.content_type = said.decode("latin-1")
            self.is_stream = said.startswith(b"text/event-stream")
        self._wake()

    def came(self, chunk: bytes) -> None:
        """A piece of the body."""
        taker = self._taker
        if taker is not None:
            try:
                if taker(chunk):
                    return
            except BaseException as fault:  # noqa: BLE001 - raised where the answer is waited for
                self._fault = fault
            self._taker = None
        self._held.append(chunk)
        self._size += len(chunk)
        if self._size > HIGH_WATER and self._connection is not None:
            self._connection.pause()
        if self.status:
            self._wake()

    def over(self) -> None:
        """The body is whole, and its connection may already have another request."""
        self._connection = None
        self._ended = True
        self._wake()

    def broke(self, why: str) -> None:
        """No more will come."""
        self._connection = None
        self._failure = self._failure or why
        self._wake()

    async def head(self) -> None:
        """Wait for status and headers.

        Raises:
            Broken: They did not come.
        """
        connection = self._connection
        try:
            while not self.status and self._failure is None:
                await self._wait()
        except BaseException:
            self.close()
            raise
        if not self.status:
            silent = connection is None or connection.silent
            raise Broken(self._failure or "no answer", silent=silent)


class EngineConnection(asyncio.Protocol):
    """One connection, kept open from request to request.

    Args:
        pool: Where it rests between requests.
        free: Called when an answer was whole and the connection can take another request.
        gone: Called once, when the connection is closed.
    """

    __slots__ = (
        "_answer", "_feed", "_free", "_gone", "_got", "_headers", "_headers_size", "_interim",
        "_keep", "_parser", "_paused", "_transport", "_until_close", "_whole", "idle_since",
        "on_body", "pool", "silent",
    )  # fmt: skip

    def __init__(
        self,
        pool: list[EngineConnection],
        free: Callable[[EngineConnection], None],
        gone: Callable[[EngineConnection], None],
    ) -> None:
        self.pool = pool
        self._free, self._gone = free, gone
        self._got: list[bytes] = []
        # Bound at once: httptools looks its callbacks up when the parser is made, and a list's own
        # method is the cheapest that there is.
        self.on_body = self._got.append
        self._parser: Any = httptools.HttpResponseParser(self)
        self._feed: Callable[[bytes], None] = self._parser.feed_data
        self._answer: EngineAnswer | None = None
        self._transport: asyncio.Transport | None = None
        self._headers: dict[bytes, bytes] = {}
        self._headers_size = 0
        self._interim = self._until_close = self._whole = self._paused = self._keep = False
        self.silent = True
        """Nothing has come since the request was sent."""
        self.idle_since = 0.0

    # -- for the client --------------------------------------------------------------------------

    def ask(self, request: bytes, engine: str) -> EngineAnswer:
        """Send a request: its answer, which has not come yet (`EngineAnswer.head`)."""
        answer = EngineAnswer(self, engine)
        self._headers, self._headers_size = {}, 0
        self._interim = self._until_close = self._whole = False
        self.silent = True
        if self._transport is None or self._transport.is_closing():
            answer.broke("the connection was closed")
            return answer
        self._answer = answer
        self._transport.write(request)
        return answer

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close it now, whatever is on the way."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Let the engine wait: nobody takes what it says."""
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # -- asyncio's callbacks ---------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:
            self.abort()  # nobody asked anything
            return
        self.silent = False
        why = None
        try:
            self._feed(data)
        except httptools.HttpParserError as exc:
            why = f"no HTTP: {exc}"
        except httptools.HttpParserUpgrade:
            why = "it wants to speak another protocol"
        got = self._got
        if got:
            chunk = got[0] if len(got) == 1 else b"".join(got)
            got.clear()
            answer.came(chunk)
        if self._whole:
            # What came behind a whole answer is nobody's: the answer stands, the connection ends.
            self._over(answer, keep=self._keep and why is None)
        elif why is not None:
            self.fail(why)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        answer, self._answer = self._answer, None
        self._parser = self._feed = self.on_body = None  # type: ignore[assignment]  # a cycle
        if answer is not None:
            if self._until_close and exc is None:
                answer.over()
            else:
                answer.broke("the engine closed the connection" if exc is None else repr(exc))
        self._gone(self)

    def _over(self, answer: EngineAnswer, *, keep: bool) -> None:
        self._answer = None
        transport = self._transport
        answer.over()
        if transport is None:
            return
        if not keep or transport.get_write_buffer_size():
            transport.abort()  # answered before it had read the request: nothing else may follow
            return
        self.resume()
        self._free(self)

    def fail(self, why: str) -> None:
        """Close it; whoever waits for its answer hears why."""
        answer = self._answer
        self.abort()
        if answer is not None:
            answer.broke(why)

    # -- the parser's callbacks ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._whole:
            raise ValueError("bytes behind the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers_size += len(name) + len(value)
        if self._headers_size > MAX_HEAD:
            raise ValueError("the head is too long")
        self._headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        status, headers = self._parser.get_status_code(), self._headers
        if status < _FINAL:
            self._interim = True
            return
        self._until_close = not (
            b"content-length" in headers or b"transfer-encoding" in headers or status in _NO_CONTENT
        )
        if self._answer is not None:
            self._answer.begun(status, headers)

    def on_message_complete(self) -> None:
        if self._interim:  # 100 Continue, 103 Early Hints: the answer is still to come
            self._interim = False
            self._headers = {}
            return
        self._whole = True
        self._keep = self._parser.should_keep_alive()
