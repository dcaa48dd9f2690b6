"""Calibrates a profile with answers that came as traffic does.

Shapes that are asked for in a row find everything warm: processors at full clock, caches full of
nothing else. Traffic comes now and then, of all lengths, and some of an engine's way is slower. So
a few answers are taken as traffic (`plan.measure_traffic`), quiet with pauses and busy with hardly
one; the simulator plays the same requests, and factors make what it says that of what was seen:

    first, first_s      what grows with prompts, and what every first token takes more
    step                steps of decode
    wake, wake_long     what short and long pauses cost
    beside_first        of a pair on one machine: what prompts cost beside the other engine
    uneven_first, uneven_step    what is left: chance

All but the last are searched for together, with TTFT of both kinds of traffic and TPOT of the quiet
one: in busy traffic it is prompts as much as steps. Each request is set beside itself, and hiccups
count by their logarithm. Nothing else is fitted. On engines that work evenly, as GPUs do, the
factors come out near 1, and seconds and unevenness near 0.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from baton.observe.percentile import percentile
from baton.plan.simulator import Fleet, FleetSettings, Pool, Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.plan.measure_traffic import Sent
    from baton.plan.profile_file import Calibration, Profile
    from baton.plan.simulator.outcome import Served

_WIDE = 0.4
"""Of the first steps of a search."""
_FACTORS = ("first", "step", "wake", "wake_long", "beside_first")
_PULL = 3.6
"""Divided by the answers: how strongly factors are held where they were, which is at 1 at first.
What answers do not tell apart stays as it was, and few tell less than many."""
_NEAR = 0.05
"""Distances below count by their squares."""
_HALVINGS = 8
"""Of the steps."""
_LEAST, _MOST = 0.5, 3.0
"""Of a factor: beyond, the engine does something that a profile does not know, and a factor would
only hide it."""
_MOST_PART, _MOST_S, _MOST_UNEVEN, _MOST_MORE = 4.0, 2.0, 1.0, 2.0
"""Of a part's factor, of `first_s` in shortest first tokens, of a deviation, and by what that is
made larger at most."""
NORMAL_90 = 1.2816
"""Deviations at which the 90th percentile of a normal distribution lies."""
DRAWS = 9
"""Of what is uneven: enough for percentiles of some dozen answers."""
MAX_SEQS = 256


@dataclass(frozen=True)
class Seen:
    """One answer of traffic. Seconds."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float

    @property
    def ended_s(self) -> float:
        """Its last token."""
        return self.arrival_s + self.ttft_s + self.tpot_s * (self.output_tokens - 1)

    @classmethod
    def of(cls, requests: Sequence[Request], sent: Sequence[Sent]) -> list[Seen]:
        """What came of requests; they arrived when they were sent."""
        return [
            cls(r.arrival_s + s.late_s, r.prompt_tokens, r.output_tokens, s.ttft_s, s.tpot_s)
            for r, s in zip(requests, sent, strict=True)
        ]


def played(
    profile: Profile, requests: Sequence[Request], *, apart: bool, max_seqs: int = MAX_SEQS,
    draws: int = 1,
) -> list[Served]:  # fmt: skip
    """Requests on the engine that was measured, or on the pair, in the simulator.

    Warm, as `measure_traffic.send` finds them. With several draws of what is uneven all answers of
    one come after those of another: a percentile of a hundred answers is chance itself.
    """
    apart = apart and bool(profile.handoff)
    costs, link = profile.step_costs(apart=apart), profile.handoff_cost()
    limits = profile.engine.limits(max_seqs)
    if apart and link is not None:
        pools = [Pool(role, costs, (0,), limits, link=link) for role in ("prefill", "decode")]
    else:
        pools = [Pool("both", costs, (0,), limits)]
    return [
        served
        for seed in range(draws)
        for served in Fleet(pools, FleetSettings(awake=True, seed=seed)).play(requests).served
    ]


def joined(parts: Sequence[Sequence[Seen]]) -> list[Seen]:
    """Answers of several short loads as of one: each begins when the one before has ended."""
    found: list[Seen] = []
    begun_s = 0.0
    for part in parts:
        found += [replace(one, arrival_s=begun_s + one.arrival_s) for one in part]
        begun_s = max((one.ended_s for one in found), default=0.0)
    return found


def calibrated(
    profile: Profile, quiet: Sequence[Seen], busy: Sequence[Seen], *, apart: bool = False
) -> Profile:
    """The profile with its factors, of one engine or of the pair.

    As it was where nothing was seen. A profile that was calibrated before is where it begins.
    """
    if not quiet or not busy:
        return profile
    field = "calibration_apart" if apart else "calibration"
    fit = _Fit(profile, field, quiet, busy)
    # Searched without unevenness: with it, each step would draw other luck, and distances be noise.
    fit.found = fit.uneven(fit.nearest(fit.found))
    answers = len(quiet) + len(busy)
    return profile.model_copy(update={field: fit.found.model_copy(update={"answers": answers})})


class _Fit:
    """Of one engine or a pair."""

    def __init__(
        self, profile: Profile, field: str, quiet: Sequence[Seen], busy: Sequence[Seen]
    ) -> None:
        self._profile, self._field = profile, field
        self._sets = [sorted(seen, key=lambda one: one.arrival_s) for seen in (quiet, busy)]
        self._apart = field == "calibration_apart"
        self._shared = self._apart and bool(profile.step_costs().beside)
        self._shortest_s = min(point.seconds for point in profile.prefill)
        self._known: Calibration = getattr(profile, field)
        alone = profile.calibration
        if self._apart and alone.answers and not self._known.answers:
            update = {"wake": alone.wake, "wake_long": alone.wake_long}
            self._known = self._known.model_copy(update=update)
        self._pull = _PULL / (len(quiet) + len(busy))
        self.found = self._known.model_copy(update={"uneven_first": 0.0, "uneven_step": 0.0})

    def _said(self, seen: Sequence[Seen], factors: Calibration, draws: int = 1) -> list[Served]:
        requests = [Request(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in seen]
        profile = self._profile.model_copy(update={self._field: factors})
        return played(profile, requests, apart=self._apart, draws=draws)

    def _amiss(self, factors: Calibration) -> float:
        """Mean distance of the logarithms: of all TTFT, and of the TPOT of quiet traffic.

        Round near nothing (pseudo-Huber), or a search stands still on the edges.
        """
        away = [(factors.first_s - self._known.first_s) / self._shortest_s]
        away += [getattr(factors, name) - getattr(self._known, name) for name in _FACTORS]
        total = self._pull * sum(one * one for one in away)
        for names, seen in zip((("ttft_s", "tpot_s"), ("ttft_s",)), self._sets, strict=True):
            said = self._said(seen, factors)
            for name in names:
                both = zip(_times(seen, name), _times(said, name), strict=True)
                total += sum(math.hypot(_NEAR, math.log(a / b)) for a, b in both) / len(seen)
        return total

    def nearest(self, start: Calibration) -> Calibration:
        """By steps in one factor at a time, and on in the direction that led nearer.

        R. Hooke and T. A. Jeeves, "Direct search" (1961). It asks for no slope, and distances of
        times that queues make have none.
        """
        most_s = _MOST_S * self._shortest_s
        spans = {"first": (_LEAST, _MOST), "first_s": (-most_s, most_s), "step": (_LEAST, _MOST)}
        parts = ("wake", "wake_long", "beside_first") if self._shared else ("wake", "wake_long")
        spans |= dict.fromkeys(parts, (0.0, _MOST_PART))
        steps = dict.fromkeys(spans, _WIDE) | {"first_s": _WIDE * self._shortest_s}

        def within(factors: Calibration, moves: Mapping[str, float]) -> Calibration:
            update = {}
            for name, move in moves.items():
                low, high = spans[name]
                update[name] = min(max(getattr(factors, name) + move, low), high)
            return factors.model_copy(update=update)

        def around(base: Calibration, amiss: float) -> tuple[Calibration, float]:
            for name, step in steps.items():
                for move in (step, -step):
                    other = within(base, {name: move})
                    other_amiss = self._amiss(other)
                    if other_amiss < amiss:
                        base, amiss = other, other_amiss
                        break
            return base, amiss

        found, least = start, self._amiss(start)
        for _ in range(_HALVINGS):
            nearer, amiss = around(found, least)
            while amiss < least:
                moves = {name: getattr(nearer, name) - getattr(found, name) for name in spans}
                found, least = nearer, amiss
                on = within(found, moves)
                nearer, amiss = around(on, self._amiss(on))
                if amiss >= least:
                    nearer, amiss = around(found, least)
            steps = {name: step / 2 for name, step in steps.items()}
        return found

    def uneven(self, factors: Calibration) -> Calibration:
        """With the deviations that answers show.

        Of prompts in both kinds of traffic; of steps in quiet one: in busy traffic TPOT is prompts.
        """
        even = factors.model_copy(update={"uneven_first": 0.0, "uneven_step": 0.0})
        for name, field, sets in (
            ("ttft_s", "uneven_first", self._sets),
            ("tpot_s", "uneven_step", self._sets[:1]),
        ):
            found = []
            for seen in sets:
                usual = self._said(seen, even)
                deviation = _deviation(seen, usual, name)
                # Only a part of the time is uneven in the simulator, and some of it evens out.
                spread = self._said(seen, even.model_copy(update={field: deviation}), DRAWS)
                shows = _deviation(spread, usual, name)
                more = min(max(deviation / shows, 1.0), _MOST_MORE) if shows else 1.0
                found.append(min(more * deviation, _MOST_UNEVEN))
            factors = factors.model_copy(update={field: sum(found) / len(found)})
        return factors


def _deviation(
    times: Sequence[Seen] | Sequence[Served], usual: Sequence[Served], name: str
) -> float:
    """Of the logarithm, as a normal distribution would have it that reaches as far upwards.

    Hiccups make it reach further upwards than downwards, and promises are kept or missed there.
    `times` may be of several draws.
    """
    both = zip(_times(times, name), itertools.cycle(_times(usual, name)), strict=False)
    logs = [math.log(a / b) for a, b in both]
    return (percentile(logs, 0.9) - percentile(logs, 0.5)) / NORMAL_90


def _times(answers: Sequence[Seen] | Sequence[Served], name: str) -> list[float]:
    return [max(getattr(one, name) or 0.0, 1e-9) for one in answers]
