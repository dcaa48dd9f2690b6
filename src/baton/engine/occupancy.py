"""How busy an engine's HTTP face has been: the part of the scaling signals that vLLM cannot tell.

vLLM counts requests that wait, not their tokens, and a gauge that is read every few seconds says
nothing about the time between. So the replica's own middleware notes when requests begin and end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Seen:
    """Sums since the start, and what is open now.

    Attributes:
        open_requests: Requests that are open now.
        open_bytes: Bytes of their bodies.
        done_bytes: Bytes of the bodies of requests that have ended.
        busy_s: Time in which at least one request was open.
        request_s: Time times open requests. `request_s / busy_s` is how many shared the engine.
    """

    open_requests: int
    open_bytes: int
    done_bytes: int
    busy_s: float
    request_s: float


class Occupancy:
    """Requests that are open, and for how long there were any."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._at = now()
        self._open = 0
        self._open_bytes = 0
        self._done_bytes = 0
        self._busy_s = 0.0
        self._request_s = 0.0

    @property
    def count(self) -> int:
        """Requests that are open now."""
        return self._open

    def begin(self, size: int) -> None:
        """A request with a body of `size` bytes has come."""
        self._pass_time()
        self._open += 1
        self._open_bytes += size

    def end(self, size: int) -> None:
        """It has ended, however it ended."""
        self._pass_time()
        self._open -= 1
        self._open_bytes -= size
        self._done_bytes += size

    def seen(self) -> Seen:
        """The sums up to now."""
        self._pass_time()
        return Seen(
            open_requests=self._open,
            open_bytes=self._open_bytes,
            done_bytes=self._done_bytes,
            busy_s=self._busy_s,
            request_s=self._request_s,
        )

    def _pass_time(self) -> None:
        at = self._now()
        if self._open:
            self._busy_s += at - self._at
            self._request_s += self._open * (at - self._at)
        self._at = at
