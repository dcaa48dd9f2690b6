"""What no simulation is needed for: what a request takes alone, and how many engines there must be.

All of it is a bound in the layout's favour: a layout that fails here fails in every simulation, and
fewer engines than these cannot carry the load. That is what makes the search short.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from baton.plan.costs import HandoffCost, StepCosts
    from baton.plan.simulator import EngineLimits
    from baton.plan.traffic import Traffic

Bound = Literal["none", "compute", "bandwidth", "kv_memory", "fabric", "queueing", "cost"]
"""Why a layout is not it. `compute`: a prompt alone takes longer than TTFT allows. `bandwidth`: a
step of one sequence takes longer than TPOT allows. `kv_memory`: weights, or one request's KV, have
no room. `fabric`: the handoff is too slow. `queueing`: each request alone would do, the load does
not. `cost`: it cannot be cheaper than what is known to do."""


UNCOUNTED = 1 << 29
"""So many engines mean: more than can be counted."""


@dataclass(frozen=True)
class Promise:
    """What callers are promised, and for which share of them."""

    ttft_s: float
    tpot_s: float
    percentile: float = 0.9


@dataclass(frozen=True)
class Alone:
    """A request that has the engines to itself, at the promised percentile of lengths."""

    ttft_s: float
    tpot_s: float


def alone(  # noqa: PLR0917 - two engines, what they serve, what was promised
    prefill: StepCosts, decode: StepCosts, traffic: Traffic, promise: Promise, budget: int,
    handoff: HandoffCost | None = None,
) -> Alone:  # fmt: skip
    """What the first and each further token take with nobody else there.

    With P/D the first token comes from decode: the KV's way and a step belong to it.
    """
    prompt = traffic.prompt_at(promise.percentile)
    ttft = prefill.request_s + prefill.prefill_s(prompt, budget=budget)
    context = decode.kv.of(traffic.context_at(promise.percentile))
    step = decode.step_s(0, 0.0, 1, context)
    if handoff is not None:
        ttft += handoff.seconds(prefill.kv.of(prompt)) + step
    return Alone(ttft, step)


def prefill_work_s(costs: StepCosts, traffic: Traffic, budget: int) -> float:
    """The least that a prompt occupies an engine on average: a share of full steps."""
    return (
        traffic.mean_prompt * costs.base(budget, 0) / budget
        + costs.pair_s * traffic.mean_prompt_squared / 2
    )


def largest_batch(costs: StepCosts, limits: EngineLimits, traffic: Traffic, tpot_s: float) -> int:
    """The most sequences that fit into KV and keep TPOT; 0 when not even one does."""
    each = costs.kv.of(round(traffic.mean_context))
    low, high = 0, limits.max_seqs
    if each > 0:
        high = min(high, int(costs.kv_capacity_bytes / each))
    while low < high:
        middle = (low + high + 1) // 2
        if costs.step_s(0, 0.0, middle, middle * each) <= tpot_s:
            low = middle
        else:
            high = middle - 1
    return low


def decode_work_s(costs: StepCosts, limits: EngineLimits, traffic: Traffic, tpot_s: float) -> float:
    """The least that an answer occupies an engine on average: its share of the fullest steps."""
    batch = largest_batch(costs, limits, traffic, tpot_s)
    if not batch:
        return math.inf
    each = costs.kv.of(round(traffic.mean_context))
    return traffic.mean_output * costs.step_s(0, 0.0, batch, batch * each) / batch


def least_engines(work_s: float, traffic: Traffic, promise: Promise) -> int:
    """Engines without which work piles up: the load, rounded up.

    Made-up traffic goes on like this. A trace ends, and its work may end later by as much as was
    promised: a burst need not be served at its own pace.
    """
    if traffic.goes_on:
        load = work_s * traffic.rate_rps
    else:
        later_s = promise.ttft_s + promise.tpot_s * traffic.longest_output
        load = work_s * len(traffic.requests) / (traffic.span_s + later_s)
    return max(1, math.ceil(load - 1e-9)) if math.isfinite(load) else 2 * UNCOUNTED


def kv_pace(prefill: StepCosts, traffic: Traffic, budget: int) -> float:
    """Bytes of KV a second that a busy prefill engine makes: the least a transport must carry."""
    work = prefill_work_s(prefill, traffic, budget)
    return prefill.kv.of(round(traffic.mean_prompt)) / work if work > 0 else 0.0
