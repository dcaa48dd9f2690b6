"""A layout that was tried, and what is said of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.plan.bounds import Bound, Promise
    from baton.plan.layouts import Layout
    from baton.plan.simulator import Outcome


@dataclass(frozen=True)
class Tried:
    """A layout and what became of it. `seconds` are at the promised percentile."""

    layout: Layout | None
    name: str
    disaggregated: bool
    meets: bool
    bound: Bound
    why: str
    ttft_s: float | None = None
    tpot_s: float | None = None
    goodput_rps: float | None = None
    usd_per_million_tokens: float | None = None
    simulated: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For JSON: unknown is null."""
        return {
            "layout": self.name,
            "disaggregated": self.disaggregated,
            "gpus": self.layout.gpus if self.layout else None,
            "gpus_bought": self.layout.gpus_bought if self.layout else None,
            "meets_slo": self.meets,
            "ttft_s": _rounded(self.ttft_s),
            "tpot_s": _rounded(self.tpot_s),
            "goodput_rps": _rounded(self.goodput_rps),
            "usd_per_hour": self.layout.usd_per_hour if self.layout else None,
            "usd_per_million_tokens": _rounded(self.usd_per_million_tokens),
            "bound": self.bound,
            "why": self.why,
            "simulated": self.simulated,
            **(self.layout.as_dict() if self.layout else {}),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def bound_of(outcome: Outcome) -> Bound:
    """Why a simulated layout does not keep the promise."""
    return "kv_memory" if outcome.counts["refused"] else "queueing"


def story_of(outcome: Outcome, ttft: float, tpot: float, promise: Promise) -> str:
    """How busy the engines were, and what came too late."""
    busy = ", ".join(f"{role} busy {share:.0%}" for role, share in outcome.busy.items())
    parts = [busy]
    if ttft > promise.ttft_s:
        parts.append(f"TTFT {shown_s(ttft)}: {shown_s(ttft - promise.ttft_s)} too long under load")
    if tpot > promise.tpot_s:
        parts.append(f"TPOT {shown_s(tpot)}: {shown_s(tpot - promise.tpot_s)} too long under load")
    if outcome.preemptions:
        parts.append(f"{outcome.preemptions} preemptions")
    return "; ".join(parts)


def shown_s(seconds: float) -> str:
    """Seconds as a person reads them."""
    if not math.isfinite(seconds):
        return "forever"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
