"""Calibrates a profile with answers that came as traffic does.

Shapes that are asked for in a row find everything warm: processors at full clock, caches full of
nothing else. Traffic comes now and then, of all lengths, and some of an engine's way is slower. So
a few answers are taken as traffic (`plan.measure_traffic`), quiet with pauses and busy with hardly
one; the simulator plays the same requests, and factors make what it says that of what was seen:

    first         TTFT of both: a machine that is shared takes longer the busier it is
    wake          TTFT of quiet traffic
    step          TPOT of quiet traffic: in busy traffic it is prompts as much as steps
    uneven_first, uneven_step    how far from the middle one in ten of them is, in quiet traffic

Each request is set beside itself, and the middle of all counts. Nothing else is fitted. On engines
that work evenly, as GPUs do, the factors come out near 1 and the unevenness near 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.observe.percentile import percentile
from baton.plan.simulator import EngineLimits, Fleet, Pool, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.plan.measure_traffic import Sent
    from baton.plan.profile_file import Calibration, Profile
    from baton.plan.simulator.outcome import Served

_ROUNDS = 40
"""Each factor acts on what the others are fitted to, a little."""
NORMAL_90 = 1.2816
"""Deviations at which the 90th percentile of a normal distribution lies."""
_SHOWS, _SHOWN = 0.05, 5
"""Share of a first token that waking has to be, in so many answers, for its factor to be told."""
_LEAST, _MOST = 0.5, 3.0
"""Of a factor: beyond, the engine does something that a profile does not know, and a factor would
only hide it."""
_MOST_WAKE, _MOST_UNEVEN, _MOST_MORE = 4.0, 1.0, 2.0
"""Of waking's factor, of a deviation, and by what it is made larger at most."""
MAX_SEQS = 256


@dataclass(frozen=True)
class Seen:
    """One answer of traffic. Seconds."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float

    @classmethod
    def of(cls, requests: Sequence[Request], sent: Sequence[Sent]) -> list[Seen]:
        """What came of requests; they arrived when they were sent."""
        return [
            cls(r.arrival_s + s.late_s, r.prompt_tokens, r.output_tokens, s.ttft_s, s.tpot_s)
            for r, s in zip(requests, sent, strict=True)
        ]


def played(
    profile: Profile, requests: Sequence[Request], *, apart: bool, max_seqs: int = MAX_SEQS
) -> list[Served]:
    """Requests on the engine that was measured, or on the pair, in the simulator."""
    apart = apart and bool(profile.handoff)
    costs, link = profile.step_costs(apart=apart), profile.handoff_cost()
    limits = EngineLimits(profile.engine.max_num_batched_tokens, max_seqs)
    if apart and link is not None:
        pools = [Pool(role, costs, (0,), limits, link=link) for role in ("prefill", "decode")]
    else:
        pools = [Pool("both", costs, (0,), limits)]
    return list(Fleet(pools).play(requests).served)


def calibrated(
    profile: Profile, quiet: Sequence[Seen], busy: Sequence[Seen], *, apart: bool = False
) -> Profile:
    """The profile with its factors, of one engine or of the pair.

    As it was where nothing was seen.
    """
    if not quiet or not busy:
        return profile
    field = "calibration_apart" if apart else "calibration"
    found: Calibration = getattr(profile, field).model_copy(
        update={"answers": len(quiet) + len(busy)}
    )

    def said(seen: Sequence[Seen], factors: Calibration) -> list[Served]:
        requests = [Request(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in seen]
        return played(profile.model_copy(update={field: factors}), requests, apart=apart)

    quiet, busy = (sorted(seen, key=lambda one: one.arrival_s) for seen in (quiet, busy))
    for _ in range(_ROUNDS):
        is_busy, is_quiet = said(busy, found), said(quiet, found)
        awake = said(quiet, found.model_copy(update={"wake": 0.0}))
        found = found.model_copy(
            update={
                "first": _bounded(
                    found.first * _ratio([*quiet, *busy], [*is_quiet, *is_busy], "ttft_s")
                ),
                "step": _bounded(found.step * _ratio(quiet, is_quiet, "tpot_s")),
                "wake": _wake(found.wake, quiet, is_quiet, awake),
            }
        )
    even = said(quiet, found)
    for name, field_name in (("ttft_s", "uneven_first"), ("tpot_s", "uneven_step")):
        deviation = _deviation(_times(quiet, name), _times(even, name))
        # Only a part of the time is uneven in the simulator, and some of it evens out.
        shows = _deviation(
            _times(said(quiet, found.model_copy(update={field_name: deviation})), name),
            _times(even, name),
        )
        more = min(max(deviation / shows, 1.0), _MOST_MORE) if shows else 1.0
        found = found.model_copy(update={field_name: min(more * deviation, _MOST_UNEVEN)})
    return profile.model_copy(update={field: found})


def _times(answers: Sequence[Seen] | Sequence[Served], name: str) -> list[float]:
    return [max(getattr(one, name) or 0.0, 1e-9) for one in answers]


def _ratio(seen: Sequence[Seen], said: Sequence[Served], name: str) -> float:
    """By what factor answers took longer than is said of them: the middle one's."""
    both = zip(_times(seen, name), _times(said, name), strict=True)
    return float(percentile([a / b for a, b in both], 0.5))


def _deviation(times: Sequence[float], usual: Sequence[float]) -> float:
    """Of the logarithm, by the 90th percentile beside the middle."""
    ratios = [a / b for a, b in zip(times, usual, strict=True)]
    return math.log(percentile(ratios, 0.9) / percentile(ratios, 0.5)) / NORMAL_90


def _bounded(factor: float) -> float:
    return min(max(factor, _LEAST), _MOST)


def _wake(
    factor: float, seen: Sequence[Seen], said: Sequence[Served], awake: Sequence[Served]
) -> float:
    """A multiple of what was measured after pauses; as it was where waking hardly shows."""
    ratios = [
        (was - without) / (now - without)
        for was, now, without in zip(
            *(_times(x, "ttft_s") for x in (seen, said, awake)), strict=True
        )
        if now - without > _SHOWS * without
    ]
    if len(ratios) < _SHOWN:
        return factor
    return float(min(factor * max(percentile(ratios, 0.5), 0.0), _MOST_WAKE))
