"""Server-sent events as bytes: where one ends, and what is none."""

from __future__ import annotations

EVENT_END = b"\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients skip it, and load balancers see that the connection lives."""


class WholeEvents:
    """Cuts a byte stream behind the last event that is complete.

    A caller never gets half an event: when an engine dies in the middle of one, what follows
    (the rest of the answer from another engine, or an error event) stands on a clean line.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """All complete events so far, as they came."""
        rest = self._rest
        if not rest and chunk.endswith(EVENT_END):
            return chunk  # vLLM writes an event at a time: nearly always so
        start = max(0, len(rest) - 1)
        rest += chunk
        cut = rest.rfind(EVENT_END, start)
        if cut < 0:
            return b""
        whole = bytes(rest[: cut + 2])
        del rest[: cut + 2]
        return whole

    def rest(self) -> bytes:
        """What is left when the stream has ended."""
        return bytes(self._rest)
