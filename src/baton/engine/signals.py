"""What an engine replica says of itself: its load in the lease, and the signals it scales by.

Everything is measured on the replica while it serves; nothing is assumed about model or hardware.
Rates are kept over recent looks and fade, so that they follow a change of traffic. The names in
`stats` are those that the policies of `baton.serve.scaling` read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.engine.load import EngineCounts
from baton.engine.occupancy import Seen
from baton.spec.lease import EngineLoad

if TYPE_CHECKING:
    from collections.abc import Callable

# Of what was known, so much counts beside a new look. A look is taken with every renewal of the
# lease (a second apart by default), so after five seconds a third is left.
FADE = 0.8
# Up to so many requests at once, the gap between tokens is that of a request which is alone.
ALONE = 1.05

_NOTHING = Seen(open_requests=0, open_bytes=0, done_bytes=0, busy_s=0.0, request_s=0.0)


class _Rate:
    """How much of one thing comes with another: two sums that fade.

    A look that saw only one of the two is kept until the other comes: a prompt that is read for
    five seconds brings its tokens with the last of them.
    """

    def __init__(self) -> None:
        self._of = 0.0
        self._per = 0.0
        self._new = (0.0, 0.0)

    def add(self, of: float, per: float) -> None:
        of, per = self._new[0] + of, self._new[1] + per
        if of <= 0 or per <= 0:
            self._new = (of, per)
            return
        self._new = (0.0, 0.0)
        self._of = self._of * FADE + of
        self._per = self._per * FADE + per

    @property
    def value(self) -> float:
        """0 while nothing is known."""
        return self._of / self._per if self._per else 0.0


class Signals:
    """Turns two looks at an engine into rates.

    Args:
        counts: The engine's own counts, now.
        seen: What the replica's HTTP face has seen, now.
        now: The clock, in seconds.
        slots: Sequences that the engine runs at once at most (vLLM's `max_num_seqs`).
    """

    def __init__(
        self,
        counts: Callable[[], EngineCounts],
        seen: Callable[[], Seen],
        *,
        now: Callable[[], float],
        slots: int,
    ) -> None:
        self._counts = counts
        self._seen = seen
        self._now = now
        self._slots = slots
        self._last = (now(), EngineCounts(), _NOTHING)
        self._tokens_per_byte = _Rate()
        self._tokens_per_s = _Rate()
        self._tpot = _Rate()
        self._busy_share = 0.0
        self._tpot_alone_s = 0.0

    def look(self) -> EngineLoad:
        """Learn from the time since the last look; returns the load for the lease."""
        at, counts, seen = self._now(), self._counts(), self._seen()
        self._learn(at, counts, seen)
        return EngineLoad(
            waiting=counts.waiting,
            running=counts.running,
            kv_usage=counts.kv_usage,
            queued_prompt_tokens=round(self._queued_tokens(seen)),
            prefill_tokens_per_s=round(self._tokens_per_s.value, 3),
            tpot_s=round(self._tpot.value, 6),
        )

    def stats(self) -> dict[str, float]:
        """For Ray Serve's autoscaler: one point in time, plain numbers.

        Rates are left out while they are not known, so that a mean over time never mixes a value
        with a blank.
        """
        counts, seen = self._counts(), self._seen()
        found = {
            "baton_open_requests": float(seen.open_requests),
            "baton_queued_prompt_tokens": self._queued_tokens(seen),
            "baton_busy_share": self._busy_share,
            "baton_running": float(counts.running),
            "baton_waiting": float(counts.waiting),
            "baton_kv_usage": counts.kv_usage,
            "baton_slots": float(self._slots),
        }
        optional = {
            "baton_prefill_tokens_per_s": self._tokens_per_s.value,
            "baton_tpot_s": self._tpot.value if counts.running else 0.0,
            "baton_tpot_alone_s": self._tpot_alone_s,
        }
        return found | {name: value for name, value in optional.items() if value > 0}

    def _queued_tokens(self, seen: Seen) -> float:
        return seen.open_bytes * self._tokens_per_byte.value

    def _learn(self, at: float, counts: EngineCounts, seen: Seen) -> None:
        was_at, were, had = self._last
        self._last = (at, counts, seen)
        tokens = counts.prompt_tokens - were.prompt_tokens
        busy_s = seen.busy_s - had.busy_s
        self._tokens_per_byte.add(tokens, seen.done_bytes - had.done_bytes)
        self._tokens_per_s.add(tokens, busy_s)
        if at > was_at:
            share = min(1.0, busy_s / (at - was_at))
            self._busy_share = self._busy_share * FADE + share * (1 - FADE)
        gaps = counts.itl_count - were.itl_count
        gap_s = counts.itl_sum_s - were.itl_sum_s
        self._tpot.add(gap_s, gaps)
        if gaps > 0 and busy_s > 0 and (seen.request_s - had.request_s) / busy_s <= ALONE:
            alone_s = gap_s / gaps
            self._tpot_alone_s = min(self._tpot_alone_s or alone_s, alone_s)
