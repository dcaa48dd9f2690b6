"""Calibrates a profile with answers that came as traffic does.

Shapes that are asked for in a row find everything warm: processors at full clock, caches full of
nothing else. Traffic comes now and then, and then all of an engine's way is slower. So a few
answers are taken as traffic, the simulator plays the same requests, and two factors make the middle
of what it says that of what was seen: one for first tokens, one for steps. Nothing else is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.observe.percentile import percentile
from baton.plan.profile_file import Calibration
from baton.plan.simulator import EngineLimits, Fleet, Pool, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.plan.profile_file import Profile
    from baton.plan.simulator.outcome import Served

_ROUNDS = 6
"""A factor acts on what is said a little less than in proportion: pauses are not scaled."""
MAX_SEQS = 256


@dataclass(frozen=True)
class Seen:
    """One answer of traffic. Seconds."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float


def played(
    profile: Profile, requests: Sequence[Request], *, apart: bool, max_seqs: int = MAX_SEQS
) -> list[Served]:
    """Requests on the engine that was measured, or on the pair, in the simulator."""
    costs = profile.step_costs()
    limits = EngineLimits(profile.engine.max_num_batched_tokens, max_seqs)
    link = profile.handoff_cost()
    if apart and link is not None:
        pools = [Pool(role, costs, (0,), limits, link=link) for role in ("prefill", "decode")]
    else:
        pools = [Pool("both", costs, (0,), limits)]
    return list(Fleet(pools).play(requests).served)


def calibrated(profile: Profile, seen: Sequence[Seen]) -> Profile:
    """The profile with both factors; as it was where nothing was seen."""
    requests = [Request(one.arrival_s, one.prompt_tokens, one.output_tokens) for one in seen]
    if not requests:
        return profile
    ttft, tpot = _middle([one.ttft_s for one in seen]), _middle([one.tpot_s for one in seen])
    first, step = profile.calibration.first, profile.calibration.step
    for _ in range(_ROUNDS):
        said = played(profile, requests, apart=False)
        first *= ttft / _middle([one.ttft_s for one in said])
        step *= tpot / _middle([one.tpot_s or 0.0 for one in said])
        found = Calibration(first=first, step=step, answers=len(seen))
        profile = profile.model_copy(update={"calibration": found})
    return profile


def _middle(values: Sequence[float]) -> float:
    return max(percentile(values, 0.5), 1e-9)
