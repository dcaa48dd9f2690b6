"""How many engines each pool should have: one policy a phase, each with a promise of its own.

Prefill is scaled so that queued prompt tokens are read within the TTFT promise; decode so that
sequences and their KV fit and the gap between tokens keeps the TPOT promise. Neither looks at the
other's queue: a slow prefill never starts decode engines, nor the other way round.

Ray Serve's own measure, ongoing requests, is 0 for engines that are reached over HTTP, and is used
by neither. Bounds, delays and factors of the user's `autoscaling_config` are applied by Ray around
the number that a policy returns (ray 2.60, serve/autoscaling_policy.py `_apply_autoscaling_config`,
serve/_private/autoscaling_state.py `get_decision_num_replicas`).

Ray pickles this module by value and runs it in its controller (serve/config.py
`AutoscalingPolicy.serialize_policy`), where Baton need not be installed: so it imports nothing but
the standard library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

PREFILL_POLICY = "baton.serve.scaling:PrefillPolicy"
DECODE_POLICY = "baton.serve.scaling:DecodePolicy"

# What a queue may take when nothing was promised.
DEFAULT_TTFT_S = 2.0
# The part of TTFT that the queue in front of prefill may use up: the handoff and decode's first
# token come out of the same promise.
QUEUE_SHARE = 0.5
# How full an engine should be. Beyond it, queues grow faster than load does.
FULL = 0.8
# One step at most doubles a pool: what has queued up says how large the queue is, not how large
# the traffic, and engines that have started take part of it.
STEP = 2.0


@dataclass(frozen=True)
class Report:
    """What one engine reported; None for a rate that is not known yet.

    Each value is the mean over `look_back_period_s`, or what `aggregation_function` makes of it.
    """

    open_requests: float = 0.0
    queued_prompt_tokens: float = 0.0
    busy_share: float = 0.0
    prefill_tokens_per_s: float | None = None
    running: float = 0.0
    waiting: float = 0.0
    kv_usage: float = 0.0
    slots: float = 256.0
    tpot_s: float | None = None
    tpot_alone_s: float | None = None


@dataclass(frozen=True)
class Pool:
    """One role's engines, as the policy sees them.

    Attributes:
        running: Engines that serve now.
        target: Engines that Serve is working towards.
        reports: One for each running engine that has reported.
    """

    running: int
    target: int
    reports: tuple[Report, ...]


def prefill_demand(reports: tuple[Report, ...], *, ttft_s: float) -> float | None:
    """How many engines' worth of prompts there is; None when the speed is not known yet.

    The queue's time over what it may take, and the time that engines were busy over how busy they
    should be, whichever is more. Never more than there are requests: a single long prompt is not
    read faster by two engines.
    """
    requests = sum(r.open_requests for r in reports)
    speeds = [r.prefill_tokens_per_s for r in reports if r.prefill_tokens_per_s]
    if not speeds:
        return None if any(r.queued_prompt_tokens or r.open_requests for r in reports) else 0.0
    usual = sum(speeds) / len(speeds)
    queue_s = sum(r.queued_prompt_tokens / (r.prefill_tokens_per_s or usual) for r in reports)
    by_queue = queue_s / (ttft_s * QUEUE_SHARE)
    by_time = sum(r.busy_share for r in reports) / FULL
    return min(max(by_queue, by_time), math.ceil(requests))


def decode_demand(reports: tuple[Report, ...], *, tpot_s: float | None) -> float:
    """How many engines' worth of sequences there is. Never more than there are sequences."""
    sequences = sum(r.running + r.waiting for r in reports)
    return min(sum(_decode_share(r, tpot_s) for r in reports), math.ceil(sequences))


def _decode_share(report: Report, tpot_s: float | None) -> float:
    """How full one engine is, 1 for as full as it should be: slots, KV, and gaps between tokens."""
    sequences = report.running + report.waiting
    if sequences <= 0:
        return 0.0
    by_slots = sequences / report.slots
    # Sequences that wait for room hold no KV yet and will want as much as those that run.
    by_kv = report.kv_usage * sequences / max(report.running, 1.0)
    return max(by_slots, by_kv, _by_gaps(report, tpot_s)) / FULL


def _by_gaps(report: Report, tpot_s: float | None) -> float:
    """The part of the promised gap that is used up, beyond what a lone sequence needs.

    The gap of a batch grows about in a line: `alone + each x sequences`. So many sequences keep the
    promise as fit between `alone` and the promise. An engine that misses it with one sequence
    misses it with any number of engines beside it: that is no reason to start some.
    """
    if tpot_s is None or report.tpot_s is None:
        return 0.0
    alone_s = min(report.tpot_alone_s or 0.0, report.tpot_s)
    if alone_s >= tpot_s:
        return 0.0
    return (report.tpot_s - alone_s) / (tpot_s - alone_s)


def decide(pool: Pool, demand: float | None) -> float:
    """The number of engines to ask Ray for, before the user's bounds and delays.

    Unknown is never a reason to change anything: without a demand, or while an engine has not
    reported, the pool is not made smaller; while engines are still starting, not larger.
    """
    if demand is None or not pool.reports:
        return float(pool.target)
    wanted = min(max(demand, 1.0), max(pool.running, 1) * STEP)
    # Away from 2.0000000001, which Ray would round up to 3.
    wanted = round(wanted, 3)
    if len(pool.reports) < pool.running:
        wanted = max(wanted, float(pool.target))
    if pool.running < pool.target:
        wanted = min(wanted, float(pool.target))
    return wanted


def pool_of(ctx: Any) -> Pool:
    """The policy's view of Ray's `AutoscalingContext`."""
    metrics = ctx.aggregated_metrics or {}
    names = {field: f"baton_{field}" for field in Report.__dataclass_fields__}
    reports = []
    for replica in ctx.running_replicas:
        values = {
            field: metrics[name][replica]
            for field, name in names.items()
            if replica in metrics.get(name, ())
        }
        if values:
            reports.append(Report(**values))
    return Pool(
        running=ctx.current_num_replicas,
        target=ctx.target_num_replicas,
        reports=tuple(reports),
    )


class PrefillPolicy:
    """Ray Serve autoscaling policy for prefill engines."""

    def __init__(self, ttft_s: float | None = None) -> None:
        self._ttft_s = ttft_s or DEFAULT_TTFT_S

    def __call__(self, ctx: Any) -> tuple[float, dict[str, Any]]:
        """The number of engines that Ray should aim at, and no state of ours."""
        pool = pool_of(ctx)
        return decide(pool, prefill_demand(pool.reports, ttft_s=self._ttft_s)), {}


class DecodePolicy:
    """Ray Serve autoscaling policy for decode engines."""

    def __init__(self, tpot_s: float | None = None) -> None:
        self._tpot_s = tpot_s

    def __call__(self, ctx: Any) -> tuple[float, dict[str, Any]]:
        """The number of engines that Ray should aim at, and no state of ours."""
        pool = pool_of(ctx)
        return decide(pool, decode_demand(pool.reports, tpot_s=self._tpot_s)), {}
