"""Pools that grow and shrink by the very rules that Baton's deployment uses (`serve/scaling.py`).

Simplified: no look-back period and no damping; an engine that is stopped drains first, and one that
is started is there `start_s` later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.serve.scaling import DEFAULT_TTFT_S, Report, decode_demand, prefill_demand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.plan.simulator.engine import Engine


@dataclass(frozen=True)
class Scaling:
    """How many engines a pool may have, and how soon."""

    least: int
    most: int
    start_s: float = 120.0
    interval_s: float = 10.0


def wanted(
    scaling: Scaling, role: str, engines: Sequence[Engine], ttft_s: float, tpot_s: float
) -> int:
    """How many engines the pool should have now."""
    reports = tuple(_report(engine) for engine in engines if engine.up)
    asked: list[float] = []
    if role != "decode":
        promise = ttft_s if math.isfinite(ttft_s) else DEFAULT_TTFT_S
        asked.append(prefill_demand(reports, ttft_s=promise) or 0.0)
    if role != "prefill":
        promised = tpot_s if math.isfinite(tpot_s) else None
        asked.append(decode_demand(reports, tpot_s=promised))
    return min(max(math.ceil(max(asked) - 1e-9), scaling.least), scaling.most)


def _report(engine: Engine) -> Report:
    costs, running = engine.costs, len(engine.running)
    rate = 1000.0 / costs.prefill_s(1000)
    capacity = costs.kv_capacity_bytes
    return Report(
        open_requests=engine.open,
        queued_prompt_tokens=engine.queued_tokens,
        busy_share=1.0 if engine.open else 0.0,
        prefill_tokens_per_s=rate,
        running=running,
        waiting=len(engine.waiting) + len(engine.late) + len(engine.pending),
        kv_usage=engine.kv_used / capacity if math.isfinite(capacity) and capacity else 0.0,
        slots=engine.limits.max_seqs,
        tpot_s=costs.decode_base_s(running) if running else None,
        tpot_alone_s=costs.decode_base_s(1),
    )
