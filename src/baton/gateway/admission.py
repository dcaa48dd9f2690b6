"""Lets requests in: so many at once, so many waiting, none for ever.

One pool for the whole gateway now; a pool for each phase and fairness between keys build on it.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING

from baton.errors import Saturated

if TYPE_CHECKING:
    from baton.spec.schema import Admission as Limits


class Admission:
    """First come, first served. A place is held from `enter` to `leave`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.inflight = 0

    @property
    def queued(self) -> int:
        """Callers that wait now."""
        return sum(1 for place in self._waiting if not place.done())

    async def enter(self) -> None:
        """Take a place, waiting `queue_timeout_s` at most.

        A caller that is cancelled while it waits leaves the queue, and a place that was just given
        to it goes to the next.

        Raises:
            Saturated: The queue is full, or no place came free in time.
        """
        if self.inflight < self._limits.max_inflight:
            self.inflight += 1
            return
        if self.queued >= self._limits.max_queue:
            raise self._saturated("all places and the queue are taken")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._limits.queue_timeout_s):
                await place
        except TimeoutError as exc:
            if place.done() and not place.cancelled():
                return  # The place came in the same moment: it is ours.
            raise self._saturated("no place came free in time") from exc
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise
        finally:
            if not place.done():
                place.cancel()

    def leave(self) -> None:
        """Give a place back: to the first who waits, or to nobody."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.inflight -= 1

    def _saturated(self, why: str) -> Saturated:
        retry_after_s = max(1, math.ceil(self._limits.queue_timeout_s / 2))
        return Saturated(
            f"The server is at capacity: {why}.",
            retry_after_s=retry_after_s,
            cure=f"try again in {retry_after_s} s",
        )
