"""The caller's own connection behind ASGI, where it can be reached: one write for each piece.

ASGI hands each piece of an answer through a coroutine and a dict. For most pieces of a stream that
costs more than everything else that is done with them (docs/decisions/0016), and a callback cannot
await. So where uvicorn serves the caller, its transport is written to directly, in uvicorn's own
framing; the beginning and the end of an answer go the ordinary way, and so does everything whenever
uvicorn says that the caller reads slowly, is gone, or has not been answered yet.

Engines write the tokens of all their streams in one step, so pieces come together. They are read
first and written together when the loop's turn ends (`Outbox`): who reads them is woken once and
not for each, and to wake somebody is a good part of what a write costs.

Only what is known is reached through: the `send` of uvicorn's httptools protocol itself, or the one
that a server which knows its own wrappers has put into the scope (`SEND`). Behind any other `send`
may be somebody who changes what passes; then there is no wire.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

SEND = "baton.send"
"""Key in the scope: uvicorn's own `send`, from whoever wraps it and lets bodies pass unchanged."""
_UVICORN = "uvicorn.protocols.http.httptools_impl"


log = logging.getLogger("baton.gateway.caller_wire")


class Outbox:
    """What goes out when the loop's turn ends. One for each gateway."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[bytes], None], bytes]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, write: Callable[[bytes], None], data: bytes) -> None:
        waiting = self._waiting
        if not waiting:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self.flush)
        waiting.append((write, data))

    def flush(self) -> None:
        """Write it now, in the order in which it came."""
        waiting, self._waiting = self._waiting, []
        for write, data in waiting:
            try:
                write(data)
            except Exception:  # a transport that is closed: its own request hears of it
                log.debug("a caller's connection is closed", exc_info=True)


class CallerWire:
    """Writes pieces of a chunked answer that has begun.

    Args:
        cycle: uvicorn's `RequestResponseCycle`.
        outbox: Takes what is written.
    """

    __slots__ = ("_add", "_cycle", "_flow", "_write", "flush")

    def __init__(self, cycle: Any, outbox: Outbox) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write: Callable[[bytes], None] = cycle.transport.write
        self._add = outbox.add
        self.flush = outbox.flush
        """Before anything goes the ordinary way."""

    @property
    def ready(self) -> bool:
        """Whether a piece may be written now, without waiting and without losing it."""
        cycle = self._cycle
        return not (self._flow.write_paused or cycle.disconnected or cycle.response_complete)

    def write(self, piece: bytes) -> None:
        """One chunk of the answer's body. Only when `ready`; not empty."""
        self._add(self._write, b"%x\r\n%b\r\n" % (len(piece), piece))


def uvicorns(send: Any) -> Any:
    """The cycle whose bound `send` this is, or None."""
    module = sys.modules.get(_UVICORN)  # whoever is served by it has it imported
    cycle = getattr(send, "__self__", None)
    return cycle if module is not None and type(cycle) is module.RequestResponseCycle else None


def wire_behind(scope: MutableMapping[str, Any], send: Any, outbox: Outbox) -> CallerWire | None:
    """The wire of an answer whose head was sent; None where there is no way around ASGI."""
    cycle = uvicorns(scope.get(SEND, send))
    try:
        # `chunked_encoding` is None before the head, False with a length, and True for what has
        # neither: HEAD has it as well, and no body.
        usable = cycle is not None and cycle.chunked_encoding is True and scope["method"] != "HEAD"
        return CallerWire(cycle, outbox) if usable else None
    except AttributeError:  # another uvicorn than the one that was read
        return None
