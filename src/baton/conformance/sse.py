"""Events out of the bytes of a stream, in whatever pieces they come.

The rules are those of the HTML living standard, "Server-sent events" (section "Interpreting an
event stream"): lines end with CR, LF or CRLF; a line that begins with a colon is a comment; several
`data` lines are one text; an empty line ends the event.
"""

from __future__ import annotations

import re

_END = re.compile(rb"\r\n|\n|\r(?!\Z)")


class SseReader:
    """Takes pieces, gives the `data` of each event that has become whole."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self.comments = 0
        self.stray: list[bytes] = []
        """Lines that no event stream has."""

    def feed(self, piece: bytes) -> list[str]:
        """One more piece, of any length.

        Raises:
            UnicodeDecodeError: An event is not UTF-8.
        """
        self._rest += piece
        # A carriage return at the end may be half of a CRLF: it waits for the next piece.
        *lines, self._rest = _END.split(self._rest)
        return [event for line in lines if (event := self._line(line)) is not None]

    def close(self) -> bytes:
        """What was begun and never ended; empty after a proper stream."""
        return self._rest.strip() or b"\n".join(self._data)

    def _line(self, line: bytes) -> str | None:
        if not line:
            whole, self._data = b"\n".join(self._data), []
            return whole.decode() if whole else None
        if line.startswith(b":"):
            self.comments += 1
            return None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name not in {b"event", b"id", b"retry"}:
            self.stray.append(line)
        return None
