"""Decides for each prompt whether handing its KV over pays, from what was measured. Pure.

Both ways are compared in seconds that callers wait (decision 0014):

    P/D     prefill(n) + handoff(n), and what failures have cost lately
    local   local_prefill(n), and prefill's part of it once more for every stream that decodes

`prefill(n)`, `handoff(n)` and `local_prefill(n)` are curves (`curve`) that each request's own legs
teach. A prompt that is read on a decode engine holds its streams up for about as long as reading
takes, in one piece or in several. Where no stream runs, one is counted all the same: decode engines
are there for streams, and with equal engines the comparison is then the handoff against the stall,
as in the design's cost model.

It does not flap: the other way has to be a fifth cheaper, and a length stays three seconds on the
way that it changed to. It can come back: a bounded share of streamed requests goes the other way to
see what that takes (`_Probes`). Until enough is known, P/D it is.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from baton.gateway.curve import Curve, size_class

if TYPE_CHECKING:
    from collections.abc import Callable

Way = Literal["pd", "local"]
Reason = Literal["unmeasured", "cheaper", "kept", "explore", "handoff_failing"]
LOCAL_REASONS: frozenset[str] = frozenset({"cheaper", "kept", "explore", "handoff_failing"})
"""Why a prompt that P/D could do right was left to decode."""

MARGIN = 0.2
"""The other way must be so much cheaper before it is taken."""
DWELL_S = 3.0
OVERDUE_S = 1.0
OVERDUE_TIMES = 3.0
"""A handoff under way counts as slow after so long, and so many times what it should take."""
MOST_OVERDUE = 5
OPEN = 512
"""Handoffs under way that are watched; of more, the newest."""
OUTCOMES = 8
OUTCOME_LIVES_S = 60.0
FAILING = 0.5
"""From this share of failures on, failures are the reason."""
SURE = 0.95
"""The failure share that is counted with at most, so that costs stay finite."""
PROBE_EVERY = (12, 20)
PROBE_SOON = (2, 4)
"""Eligible requests between two probes, drawn anew each time so that no rhythm is met."""
PROBE_TIME_SHARE = 20.0
PROBE_PAUSE_S = 10.0
"""A probe that lost time is followed by a pause of twenty times as much, ten seconds at most."""


@dataclass(frozen=True)
class WayChoice:
    """The way of one prompt.

    Args:
        way: `pd`, or `local`: prefill on the decode engine.
        reason: `unmeasured` too little is known, `cheaper`, `kept` the other way is not enough
            cheaper or was left a moment ago, `explore` a probe, `handoff_failing`.
        tokens: Of the prompt, counted or estimated.
        pd_s: Predicted seconds to the first byte by P/D; None while unknown.
        local_s: The same on decode alone.
        stall_s: Seconds that streams would stand still meanwhile, added up.
    """

    way: Way
    reason: Reason
    tokens: int
    pd_s: float | None = None
    local_s: float | None = None
    stall_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, seconds to the microsecond."""
        predicted = {"pd_s": self.pd_s, "local_s": self.local_s, "stall_s": self.stall_s}
        return {
            "way": self.way,
            "reason": self.reason,
            "prompt_tokens": self.tokens,
            **{key: None if s is None else round(s, 6) for key, s in predicted.items()},
        }


@dataclass(frozen=True)
class Learned:
    """What the model believes now, for people to look at. None: not measured.

    `handoff_fixed_s` is what the first byte takes longer behind an empty handoff than on decode
    alone. `break_even_tokens` is infinite where a handoff never pays.
    """

    prefill_s_per_1000: float | None
    local_prefill_s_per_1000: float | None
    handoff_fixed_s: float | None
    handoff_tokens_per_s: float | None
    break_even_tokens: float | None
    failed_share: float


class CostModel:
    """One gateway's knowledge of one deployment.

    Args:
        now: The clock, in seconds.
        seed: Of the draws that space the probes.
    """

    def __init__(self, *, now: Callable[[], float], seed: int = 0) -> None:
        self._now = now
        self._prefill = Curve()
        self._handoff = Curve()
        self._local = Curve()
        self._outcomes: deque[tuple[float, float | None]] = deque(maxlen=OUTCOMES)
        self._held: dict[int, tuple[Way, float]] = {}
        self._open: dict[int, tuple[float, float]] = {}
        self._opened = 0
        self._probes = _Probes(random.Random(seed))  # noqa: S311  # spreads probes, guards nothing

    # -- deciding --------------------------------------------------------------------------------

    def decide(self, tokens: float, running: float, *, can_teach: bool) -> WayChoice:
        """Choose a way.

        Args:
            tokens: Of the prompt.
            running: Streams that decode on an engine now.
            can_teach: Whether its first byte will be seen: an answer that is not streamed shows no
                border between handoff and decode, so it is no probe.
        """
        now = self._now()
        way: Way = "pd"
        reason: Reason = "unmeasured"
        predicted: tuple[float, float, float] | tuple[()] = ()
        failing = self._failed(now)[0] >= FAILING
        if self.is_known:
            predicted = self._predicted(tokens, running, now)
            pd_s, local_s, stall_s = predicted
            way, reason = self._held_way(size_class(tokens), pd_s, local_s + stall_s, now)
        elif failing:
            way, reason = "local", "handoff_failing"
        wanted = self.is_known or failing or not self._local.is_known
        # Whether a handoff works shows in any answer.
        soon = not self.is_known and not failing
        if wanted and (can_teach or failing) and self._probes.due(now, soon=soon):
            way, reason = ("local" if way == "pd" else "pd"), "explore"
        return WayChoice(way, reason, round(tokens), *predicted)

    @property
    def is_known(self) -> bool:
        """Whether both ways were measured."""
        return self._prefill.is_known and self._handoff.is_known and self._local.is_known

    def _predicted(self, tokens: float, running: float, now: float) -> tuple[float, float, float]:
        prefill_s = self._prefill.seconds(tokens)
        pd_s = prefill_s + self._handoff.seconds(tokens, self._overdue(now))
        failed, lost_s = self._failed(now)
        if failed:
            # Each try fails with this probability, and is followed by another one.
            pd_s += failed / (1 - failed) * (prefill_s + lost_s)
        fixed_s, per_token_s = self._local.parts(tokens)
        reading_s = per_token_s * tokens
        return pd_s, fixed_s + reading_s, max(1.0, running) * reading_s

    def _held_way(self, klass: int, pd_s: float, local_s: float, now: float) -> tuple[Way, Reason]:
        way, since = self._held.get(klass, ("pd", now - DWELL_S))
        here_s, there_s = (pd_s, local_s) if way == "pd" else (local_s, pd_s)
        failing = self._failed(now)[0] >= FAILING
        if there_s < here_s * (1 - MARGIN) and (now - since >= DWELL_S or failing):
            way = "local" if way == "pd" else "pd"
            self._held[klass] = (way, now)
            here_s, there_s = there_s, here_s
        if way == "local" and failing:
            return way, "handoff_failing"
        return way, "cheaper" if here_s <= there_s else "kept"

    def _failed(self, now: float) -> tuple[float, float]:
        """The share of the last handoffs that failed, and what one cost in seconds. One is none."""
        outcomes = self._outcomes
        while outcomes and now - outcomes[0][0] > OUTCOME_LIVES_S:
            outcomes.popleft()
        lost = [lost_s for _, lost_s in outcomes if lost_s is not None]
        if len(lost) < 2:  # noqa: PLR2004
            return 0.0, 0.0
        return min(SURE, len(lost) / len(outcomes)), sum(lost) / len(lost)

    def _overdue(self, now: float) -> list[float]:
        """How far handoffs under way have passed what they should take. Those that hang say so."""
        found: list[float] = []
        for began, tokens in self._open.values():
            taken_s = now - began
            if taken_s < OVERDUE_S or len(found) == MOST_OVERDUE:
                break  # they are in the order in which they began
            times = taken_s / max(self._handoff.line_seconds(tokens), 1e-6)
            if times > OVERDUE_TIMES:
                found.append(times)
        return found

    # -- learning --------------------------------------------------------------------------------

    def prefilled(self, tokens: float, seconds: float) -> None:
        """A prefill leg took so long."""
        self._prefill.add(self._now(), tokens, seconds)

    def local_prefilled(self, tokens: float, seconds: float) -> None:
        """A decode engine that read the prompt itself took so long to the first byte."""
        self._local.add(self._now(), tokens, seconds)

    def handoff_begins(self, tokens: float) -> int:
        """Decode is asked with KV to fetch. Returns a number for `handoff_ends`."""
        self._opened += 1
        self._open[self._opened] = (self._now(), tokens)
        if len(self._open) > OPEN:
            del self._open[next(iter(self._open))]
        return self._opened

    def handoff_ends(self, number: int) -> None:
        """It is over, however it went."""
        self._open.pop(number, None)

    def handed_over(self, tokens: float, seconds: float) -> None:
        """Decode took so long to the first byte with KV that was handed over."""
        self._handoff.add(self._now(), tokens, seconds)
        self.handoff_worked()

    def handoff_worked(self) -> None:
        """Decode has answered from KV that was handed over; how soon is not known."""
        self._outcomes.append((self._now(), None))

    def handoff_failed(self, lost_s: float) -> None:
        """P/D failed for a prompt, after so many seconds."""
        self._outcomes.append((self._now(), lost_s))

    def probe_took(self, choice: WayChoice, seconds: float) -> None:
        """A probe's first byte came after so many seconds of its legs."""
        if choice.pd_s is None or choice.local_s is None or choice.stall_s is None:
            self._probes.ended(self._now(), regret_s=0.0, surprised=False)
            return
        local_s = choice.local_s + choice.stall_s
        there_s, here_s = (
            (seconds, local_s) if choice.way == "pd" else (seconds + choice.stall_s, choice.pd_s)
        )
        self._probes.ended(
            self._now(),
            regret_s=max(0.0, there_s - here_s),
            surprised=there_s < here_s * (1 - MARGIN),
        )

    def probe_lost(self, seconds: float) -> None:
        """A probe taught nothing: it failed after so many seconds, or its caller went away."""
        self._probes.ended(self._now(), regret_s=seconds, surprised=False)

    def prefill_seconds(self, tokens: float) -> float | None:
        """What a prefill leg of so many tokens takes now; None while that is not known."""
        return self._prefill.seconds(tokens) if self._prefill.is_known else None

    # -- showing ---------------------------------------------------------------------------------

    def learned(self, running: float = 0.0) -> Learned:
        """What is believed now. Lines are told as they are for prompts of a thousand tokens."""
        about, now = 1000.0, self._now()
        prefill, local, handoff = (
            curve.parts(about) if curve.is_known else None
            for curve in (self._prefill, self._local, self._handoff)
        )

        def per_1000(parts: tuple[float, float] | None) -> float | None:
            return None if parts is None else parts[0] + 1000 * parts[1]

        even = None
        if prefill is not None and local is not None and handoff is not None:
            stalled = 1 + max(1.0, running)
            failed, lost_s = self._failed(now)
            again = failed / (1 - failed)
            even = break_even(
                prefill[0] * (1 + again) + handoff[0] + again * lost_s - local[0],
                stalled * local[1] - prefill[1] * (1 + again) - handoff[1],
            )
        rate = None
        if handoff is not None and handoff[1] > 0:
            rate = 1 / handoff[1]
        return Learned(
            prefill_s_per_1000=per_1000(prefill),
            local_prefill_s_per_1000=per_1000(local),
            handoff_fixed_s=(
                None if handoff is None else max(0.0, handoff[0] - (local[0] if local else 0.0))
            ),
            handoff_tokens_per_s=rate,
            break_even_tokens=even,
            failed_share=self._failed(now)[0],
        )


def break_even(more_s: float, less_s_per_token: float) -> float:
    """The prompt length from which on a handoff pays.

    Args:
        more_s: What P/D takes longer, whatever the length.
        less_s_per_token: What it saves for each token.

    Returns:
        Tokens; infinite when it never pays for long prompts.
    """
    if less_s_per_token <= 0:
        return float("inf")
    return max(0.0, more_s / less_s_per_token)


class _Probes:
    """When a request goes the other way, to see what that takes.

    At most one of twelve requests: a probe that lost time is followed by a pause of twenty times as
    much, ten seconds at most. One probe at a time. While nothing is known of a way, or when the
    last probe found it better than it is believed to be, the next one comes after two to four
    requests.
    """

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws
        # Whoever tries out a new deployment with a few requests sees P/D.
        self._left = draws.randint(*PROBE_EVERY)
        self._not_before = float("-inf")
        self._open_until = float("-inf")

    def due(self, now: float, *, soon: bool) -> bool:
        """Whether the request that is asked about is a probe; it has to be ended then."""
        self._left = max(0, self._left - 1)
        if self._left or now < self._open_until or now < self._not_before:
            return False
        self._open_until = now + PROBE_PAUSE_S
        self._left = self._draws.randint(*(PROBE_SOON if soon else PROBE_EVERY))
        return True

    def ended(self, now: float, *, regret_s: float, surprised: bool) -> None:
        self._open_until = now
        self._not_before = now + min(PROBE_PAUSE_S, PROBE_TIME_SHARE * regret_s)
        if surprised:
            self._left = min(self._left, self._draws.randint(*PROBE_SOON))
