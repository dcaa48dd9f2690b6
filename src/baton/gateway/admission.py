"""Lets requests in: so many at once, so many waiting, none for ever, no key before all others.

One queue for three pools: the whole gateway, the prefill phase, the decode phase. A request asks
for all the places it needs together and gets them together, before anything of it has begun. So KV
never waits at prefill for a place at decode while its lease runs out, two requests never hold what
the other needs, and what decode does alone passes by what waits for prefill. The prefill place is
given back when that leg is over, the rest at the end (docs/decisions/0008).

Who is next: start-time fair queueing over keys (Goyal, Vin, Cheng 1996), each request costing one
over its key's weight. A key with one waiting request is served before the second of a key with a
hundred, and when the queue is full the newest request of the key that fills it makes room.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Literal

from baton.errors import Saturated

if TYPE_CHECKING:
    from baton.spec.schema import Admission as Limits

State = Literal["waiting", "held", "pushed_out", "over"]
LONGEST_RETRY_AFTER_S = 60


class PoolState:
    """One pool: what it allows, what it holds."""

    __slots__ = ("inflight", "max_inflight", "max_queue", "max_tokens", "name", "queued", "tokens")

    def __init__(
        self, name: str, max_inflight: int | None, max_queue: int | None, max_tokens: int | None
    ) -> None:
        self.name = name
        self.max_inflight = math.inf if max_inflight is None else max_inflight
        self.max_queue = math.inf if max_queue is None else max_queue
        self.max_tokens = max_tokens
        self.inflight = 0
        self.queued = 0
        self.tokens = 0

    @property
    def is_open(self) -> bool:
        """Whether a prompt of no tokens would have room."""
        return self.inflight < self.max_inflight

    def has_room(self, tokens: int) -> bool:
        if self.inflight >= self.max_inflight:
            return False
        # A prompt above the whole limit runs when it is alone: waiting would not make it smaller.
        limit = self.max_tokens
        return limit is None or self.tokens == 0 or self.tokens + tokens <= limit

    def take(self, tokens: int) -> None:
        self.inflight += 1
        self.tokens += tokens

    def give_back(self, tokens: int) -> None:
        self.inflight -= 1
        self.tokens -= tokens


class Place:
    """A request's places: asked for, held, given back. `leave` is right in every state."""

    __slots__ = ("_admission", "future", "holds_prefill", "key", "pools", "state", "tokens", "turn")

    def __init__(
        self, admission: Admission, key: str, pools: tuple[PoolState, ...], tokens: int
    ) -> None:
        self._admission = admission
        self.key = key
        self.pools = pools
        self.tokens = tokens
        self.state: State = "waiting"
        self.turn = 0
        self.holds_prefill = False
        self.future: asyncio.Future[None] | None = None

    async def wait(self, seconds: float) -> bool:
        """Whether the places are held within so many seconds. May be asked again.

        Raises:
            Saturated: Another key's request took this one's place in the full queue.
        """
        if self.state == "waiting" and self.future is not None:
            await asyncio.wait((self.future,), timeout=seconds)
        if self.state == "pushed_out":
            raise self._admission.saturated("this key fills most of the full queue")
        return self.state == "held"

    def prefill_done(self) -> None:
        """The prefill leg is over, however it went."""
        if self.state == "held" and self.holds_prefill:
            self.holds_prefill = False
            self._admission.prefill_left(self)

    def leave(self) -> None:
        """Give everything back, or stop waiting."""
        if self.state == "held":
            self.state = "over"
            self._admission.left(self)
        elif self.state == "waiting":
            self.state = "over"
            self._admission.gave_up(self)


class _Line:
    """The waiting requests of one key, oldest first; those with a prefill leg apart."""

    __slots__ = ("alone", "pd", "start", "weight")

    def __init__(self, start: float, weight: float) -> None:
        self.start = start
        self.weight = weight
        self.alone: OrderedDict[Place, None] = OrderedDict()
        self.pd: OrderedDict[Place, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.alone) + len(self.pd)

    @property
    def share(self) -> float:
        """How much of the queue it fills, for its weight."""
        return len(self) / self.weight


class Admission:
    """The places of one gateway and the queue for them. Belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        prefill, decode = limits.prefill, limits.decode
        self.total = PoolState("gateway", limits.max_inflight, limits.max_queue, None)
        self.prefill = PoolState(
            "prefill", prefill.max_inflight, prefill.max_queue, prefill.max_prompt_tokens_inflight
        )
        self.decode = PoolState(
            "decode", decode.max_inflight, decode.max_queue, decode.max_prompt_tokens_inflight
        )
        self._alone = (self.total, self.decode)
        self._pd = (self.total, self.decode, self.prefill)
        self._lines: dict[str, _Line] = {}
        self._served_until: dict[str, float] = {}
        self._virtual = 0.0
        self._turn = 0
        self._gap_s = 0.0
        self._left_at = 0.0
        self.waiting_since: float | None = None
        """Since when somebody has waited without a break, on the clock of `time.monotonic`."""

    @property
    def pools(self) -> tuple[PoolState, ...]:
        """The whole gateway, decode, prefill."""
        return self._pd

    @property
    def inflight(self) -> int:
        """Requests that hold a place now."""
        return self.total.inflight

    @property
    def queued(self) -> int:
        """Requests that wait now."""
        return self.total.queued

    @property
    def needs_tokens(self) -> bool:
        """Whether a limit depends on how many tokens a prompt has."""
        limits = (self._limits.prefill, self._limits.decode)
        return self._limits.max_prompt_tokens is not None or any(
            pool.max_prompt_tokens_inflight is not None for pool in limits
        )

    def ask(self, key: str, *, prefill: bool, tokens: int = 0, weight: float = 1.0) -> Place:
        """Ask for places; they are held already when nobody has to wait.

        Args:
            key: The name of the caller's key: the unit of fairness.
            prefill: Whether the request has a prefill leg.
            tokens: Of its prompt; 0 when no limit depends on it.
            weight: Of the key: one of weight 2 gets two turns for another's one.

        Raises:
            Saturated: The queue is full, and no key fills it more than this one.
        """
        place = Place(self, key, self._pd if prefill else self._alone, tokens)
        if not self.total.queued:
            for pool in place.pools:
                if not pool.has_room(tokens):
                    break
            else:
                self._take(place)
                return place
        self._line_up(place, weight)
        self._let_in()
        if place.state == "waiting":
            self._keep_bounds(place)
        return place

    # -- places ----------------------------------------------------------------------------------

    def _take(self, place: Place) -> None:
        place.state = "held"
        place.holds_prefill = place.pools is self._pd
        for pool in place.pools:
            pool.take(place.tokens)

    def prefill_left(self, place: Place) -> None:
        """A prefill leg is over."""
        self.prefill.give_back(place.tokens)
        if self.total.queued:
            self._let_in()

    def left(self, place: Place) -> None:
        """A request is over."""
        for pool in self._alone:
            pool.give_back(place.tokens)
        if place.holds_prefill:
            self.prefill.give_back(place.tokens)
        if self.total.queued:
            self._note_pace()
            self._let_in()
        else:
            self._left_at = 0.0

    def _note_pace(self) -> None:
        """How long it takes until the next leaves, while somebody waits."""
        now = time.monotonic()
        if self._left_at:
            gap_s = now - self._left_at
            # A moving average over about the last ten departures.
            self._gap_s = gap_s if not self._gap_s else self._gap_s + 0.1 * (gap_s - self._gap_s)
        self._left_at = now

    # -- queue -----------------------------------------------------------------------------------

    def _line_up(self, place: Place, weight: float) -> None:
        line = self._lines.get(place.key)
        if line is None:
            start = max(self._virtual, self._served_until.get(place.key, 0.0))
            line = self._lines[place.key] = _Line(start, weight)
        self._turn += 1
        place.turn = self._turn
        place.future = asyncio.get_running_loop().create_future()
        (line.pd if place.pools is self._pd else line.alone)[place] = None
        for pool in place.pools:
            pool.queued += 1
        if self.waiting_since is None:
            self.waiting_since = time.monotonic()

    def _step_out(self, place: Place) -> _Line:
        line = self._lines[place.key]
        del (line.pd if place.pools is self._pd else line.alone)[place]
        for pool in place.pools:
            pool.queued -= 1
        if not len(line):
            del self._lines[place.key]
        if not self._lines:
            # Nobody waits: what was served so far no longer matters to anybody's turn.
            self._served_until.clear()
            self._virtual = 0.0
            self.waiting_since = None
        return line

    def _let_in(self) -> None:
        """Give places to whoever is next, as long as there are any."""
        # Everybody needs these two: when one is full, there is nobody to look for.
        while self._lines and self.total.is_open and self.decode.is_open:
            place = self._next()
            if place is None:
                return
            line = self._lines[place.key]
            self._virtual = line.start
            line.start += 1.0 / line.weight
            self._served_until[place.key] = line.start
            self._step_out(place)
            self._take(place)
            if place.future is not None and not place.future.done():
                place.future.set_result(None)

    def _next(self) -> Place | None:
        """The next whose places are free, not passing anybody who waits for the same pool."""
        short: set[PoolState] = set()
        for _, _, place in self._heads():
            if not short.isdisjoint(place.pools):
                continue
            lacking = [pool for pool in place.pools if not pool.has_room(place.tokens)]
            if not lacking:
                return place
            # Kept free for this one: smaller prompts behind it must not pass it for ever.
            short.update(lacking)
        return None

    def _heads(self) -> list[tuple[float, int, Place]]:
        heads = []
        for line in self._lines.values():
            for kind in (line.alone, line.pd):
                if kind:
                    place = next(iter(kind))
                    heads.append((line.start, place.turn, place))
        heads.sort()  # turns differ, so places are never compared
        return heads

    def _keep_bounds(self, place: Place) -> None:
        """Refuse the newcomer, or push out a request of the key that fills the queue more."""
        for pool in place.pools:
            if pool.queued <= pool.max_queue:
                continue
            victim = self._longest(place, pool)
            if victim is None:
                place.leave()
                raise self.saturated(_full(pool))
            victim.state = "pushed_out"
            self._step_out(victim)
            if victim.future is not None and not victim.future.done():
                victim.future.set_result(None)
            self._let_in()  # it may have kept a pool free for itself

    def _longest(self, place: Place, pool: PoolState) -> Place | None:
        mine = self._lines[place.key]
        longest, share = None, mine.share
        for line in self._lines.values():
            kinds = (line.pd,) if pool is self.prefill else (line.pd, line.alone)
            if line is not mine and line.share > share and any(kinds):
                longest, share = line, line.share
        if longest is None:
            return None
        kinds = (longest.pd,) if pool is self.prefill else (longest.pd, longest.alone)
        return max((next(reversed(k)) for k in kinds if k), key=lambda waiting: waiting.turn)

    def gave_up(self, place: Place) -> None:
        """A request stopped waiting: its caller went away, or its time was over."""
        self._step_out(place)
        if place.future is not None and not place.future.done():
            place.future.cancel()
        if self._lines:
            self._let_in()  # it may have kept a pool free for itself

    def saturated(self, why: str) -> Saturated:
        """What is told to a caller who cannot be let in, with a time that is worth trying after."""
        retry_after_s = self._retry_after_s()
        return Saturated(
            f"The server is at capacity: {why}.",
            retry_after_s=retry_after_s,
            cure=f"try again in {retry_after_s} s",
        )

    def _retry_after_s(self) -> int:
        """When the queue as it stands will have been served, at the pace of late."""
        if not self._gap_s:
            estimate = self._limits.queue_timeout_s / 2
        else:
            estimate = self._gap_s * (self.total.queued + 1)
        return min(LONGEST_RETRY_AFTER_S, max(1, math.ceil(estimate)))


def _full(pool: PoolState) -> str:
    if pool.name == "gateway":
        return "all places and the queue are taken"
    return f"all places of the {pool.name} pool and its queue are taken"


class HeldBodies:
    """Bytes of all bodies that are in memory: thousands of slow uploads must not fill it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Count so many bytes more.

        Raises:
            Saturated: They would be too many.
        """
        if self.held + size > self._limit:
            raise Saturated("The server is at capacity: too many large requests at once.")
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size
