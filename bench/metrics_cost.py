"""What watching a request costs the gateway.

Microseconds of one thread, best of several rounds (the machine's other work only adds): all that
metrics and timeline take of a streamed P/D request besides its pieces, and what one piece takes.
Spans are apart, for they are made only where an OTLP endpoint is configured.

    PYTHONPATH=src python bench/metrics_cost.py --json bench/results/metrics_cost.json
"""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

from output import write

from baton.observe import trace
from baton.observe.metrics import GatewayMetrics
from baton.observe.otlp import spans_of
from baton.observe.otlp_sdk import make_span
from baton.observe.timeline import Timeline, TimelineRing
from baton.spec.schema import Slo

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, REQUESTS, PIECES = 15, 2_000, 100_000
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":512,"completion_tokens":32}}'


def request(metrics: GatewayMetrics, ring: TimelineRing, *, traced: bool) -> Timeline:
    """Every call that the gateway makes for a streamed P/D request, in order."""
    timeline = Timeline("r" * 32, "/v1/chat/completions")
    if traced:
        timeline.trace = trace.begin(None, None, sample=1.0)
    timeline.generates = True
    timeline.route, timeline.reason = "pd", "mode_always"
    now = timeline.now()
    timeline.add("admit", 0.001)
    for leg in ("prefill", "decode"):
        timeline.add("route", 0.0001)
        timeline.choices[leg] = {"why": "load", "held": 0.0}
        metrics.choices.labels(leg, "load").inc()
        timeline.leg(leg, "engine")
        timeline.add("prefill" if leg == "prefill" else "handoff", 0.02, since=now)
        timeline.came(now)
    metrics.handoffs.done("p0", "d0", kv_bytes=1_000_000, seconds=0.02)
    timeline.streams().note(now)
    timeline.streamed = True
    timeline.first_byte()
    timeline.add("decode", 0.5)
    timeline.count_usage(USAGE)
    timeline.finish("ok", 200)
    metrics.observe(timeline)
    metrics.key_requests.labels("ann", "ok").inc()
    ring.add(timeline)
    return timeline


def best_us(work: Callable[[], None], times: int) -> float:
    """Of one call, in microseconds."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(times):
            work()
        rounds.append((time.perf_counter() - started) / times * 1e6)
    return round(min(rounds), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    metrics, ring = GatewayMetrics(Slo(ttft_s=2.0, tpot_s=0.05)), TimelineRing()
    gaps = Timeline("r", "/p").streams()
    seen = request(metrics, ring, traced=True)
    found = seen.trace
    assert found is not None
    result = {
        "what": "microseconds of one thread, best of rounds",
        "rounds": ROUNDS,
        "python": platform.python_version(),
        "request_us": best_us(lambda: void(request(metrics, ring, traced=False)), REQUESTS),
        "of_it_metrics_us": best_us(lambda: metrics.observe(seen), REQUESTS),
        "piece_us": best_us(lambda: gaps.note(time.perf_counter()), PIECES),
        "clock_alone_us": best_us(lambda: void(time.perf_counter()), PIECES),
        "spans_us": best_us(lambda: void([make_span(**s) for s in spans_of(seen, found)]), 500),
    }
    write(result, options.json)


def void(_: object) -> None:
    """Nothing is kept."""


if __name__ == "__main__":
    main()
