"""A bad network: a TCP proxy that delays, throttles, and cuts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType

_PIECE = 16 * 1024
_PATIENCE_S = 5.0
# Close without a goodbye: the other side reads ECONNRESET, as when a link goes down.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Stands before one HTTP address.

    Args:
        target: `http://host:port` behind it.

    Attributes:
        delay_s: Each piece arrives so much later, one way. Pieces do not wait for each other.
        bytes_per_s: Of each connection and direction; 0 for no limit.
        passed: Bytes that went through.
        cuts: Connections that were cut.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.delay_s = 0.0
        self.bytes_per_s = 0.0
        self.passed = 0
        self.cuts = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        if self._tasks:  # their ends are gone, so they end by themselves
            await asyncio.wait(set(self._tasks), timeout=_PATIENCE_S)

    def cut(self) -> int:
        """Reset every connection that is open; how many that were."""
        cut = len(self._open) // 2
        self.cuts += cut
        for writer in list(self._open):
            raw = writer.get_extra_info("socket")
            if raw is not None:
                with contextlib.suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        self._open.clear()
        return cut

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, far_writer)
        self._open.update(ends)
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        there = asyncio.create_task(self._pass(reader, far_writer))
        back = asyncio.create_task(self._pass(far_reader, writer))
        try:
            # A side that has closed closes the other: HTTP/1.1 needs no half-open connections.
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in (there, back):
                half.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            for end in ends:
                self._open.discard(end)
                end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read and write at the same time, so that a delay costs no bandwidth."""
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1000)

        async def read() -> None:
            piece = b"-"
            while piece:
                try:
                    piece = await reader.read(_PIECE)
                except OSError:
                    piece = b""
                if piece and self.bytes_per_s:
                    await asyncio.sleep(len(piece) / self.bytes_per_s)
                await under_way.put((loop.time() + self.delay_s, piece))

        reading = asyncio.create_task(read())
        try:
            while True:
                due, piece = await under_way.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                if not piece:
                    return
                self.passed += len(piece)
                writer.write(piece)
                await writer.drain()
        except OSError:
            return
        finally:
            reading.cancel()
