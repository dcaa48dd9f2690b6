"""What a run came to: the definitions of TTFT, TPOT and goodput, and how busy each pool was."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from baton.observe.percentile import percentile

_Role = TypeVar("_Role", bound=str)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.plan.simulator.engine import Engine
    from baton.plan.simulator.job import Job


@dataclass(frozen=True)
class Served:
    """One request. Seconds; `tpot_s` is None for answers of one token."""

    ident: int
    end: str
    arrival_s: float
    ttft_s: float
    tpot_s: float | None
    end_s: float
    queue_s: float
    """Until prefill began."""
    prefill_s: float
    handoff_s: float
    """From prefill's end until KV was on decode; 0 without P/D."""


@dataclass(frozen=True)
class Outcome:
    """All requests, in order of arrival."""

    served: tuple[Served, ...]
    counts: Mapping[str, int]
    ended_s: float
    busy: Mapping[str, float]
    """Share of the time in which a pool's engines had a step under way."""
    engine_s: Mapping[str, float]
    """Seconds of engines that were paid for."""
    preemptions: int

    @classmethod
    def of(
        cls,
        jobs: Sequence[Job],
        engines: Mapping[_Role, Sequence[Engine]],
        ended_s: float,
        gone_s: Mapping[_Role, float],
    ) -> Outcome:
        """Count."""
        counts = dict.fromkeys(("finished", "refused", "lost"), 0)
        for job in jobs:
            counts[str(job.end)] += 1
        paid: dict[str, float] = {}
        busy: dict[str, float] = {}
        for role, pool in engines.items():
            living = sum(ended_s - e.started_s for e in pool if e.up)
            paid[role] = living + gone_s.get(role, 0.0)
            total = sum(e.busy_s for e in pool)
            busy[role] = total / paid[role] if paid[role] > 0 else 0.0
        return cls(
            served=tuple(_served(job) for job in jobs),
            counts=counts,
            ended_s=ended_s,
            busy=busy,
            engine_s=paid,
            preemptions=sum(e.preemptions for pool in engines.values() for e in pool),
        )

    def after(self, seconds: float) -> list[Served]:
        """Those that arrived then or later: the fleet is no longer empty by then."""
        return [one for one in self.served if one.arrival_s >= seconds]

    def ttft(self, share: float, since_s: float = 0.0) -> float:
        """A percentile; requests that never got a token count as infinite."""
        values = [one.ttft_s for one in self.after(since_s)]
        return percentile(values, share) if values else math.nan

    def tpot(self, share: float, since_s: float = 0.0) -> float:
        """A percentile over answers of two tokens or more."""
        values = [one.tpot_s for one in self.after(since_s) if one.tpot_s is not None]
        return percentile(values, share) if values else 0.0

    def goodput(self, ttft_s: float, tpot_s: float, since_s: float = 0.0) -> float:
        """Requests a second that kept both promises, over the time in which they arrived."""
        those = self.after(since_s)
        if not those:
            return 0.0
        good = sum(one.ttft_s <= ttft_s and (one.tpot_s or 0.0) <= tpot_s for one in those)
        span = those[-1].arrival_s - those[0].arrival_s
        # n arrivals span n - 1 gaps.
        return good / (span * len(those) / (len(those) - 1)) if span > 0 else float(good)

    def mean(self, what: str, since_s: float = 0.0) -> float:
        """Mean of `queue_s`, `prefill_s`, `handoff_s` or `ttft_s`, of those that have one."""
        values = [getattr(one, what) for one in self.after(since_s)]
        values = [value for value in values if math.isfinite(value)]
        return sum(values) / len(values) if values else math.inf


def _served(job: Job) -> Served:
    nothing = math.inf
    first, started, read = job.first_s, job.started_s, job.prefilled_s
    whole = job.end == "finished" and first is not None and job.end_s is not None
    tpot: float | None = None
    if job.output > 1:
        tpot = nothing
        if whole and first is not None and job.end_s is not None:
            tpot = (job.end_s - first) / (job.output - 1)
    return Served(
        ident=job.ident,
        end=str(job.end),
        arrival_s=job.arrival_s,
        ttft_s=first - job.arrival_s if whole and first is not None else nothing,
        tpot_s=tpot,
        end_s=job.end_s if job.end_s is not None else nothing,
        queue_s=started - job.arrival_s if started is not None else nothing,
        prefill_s=read - started if read is not None and started is not None else nothing,
        handoff_s=(
            job.transferred_s - read if job.transferred_s is not None and read is not None else 0.0
        ),
    )
