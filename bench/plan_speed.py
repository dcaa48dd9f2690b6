"""What the simulator costs: CPU seconds by requests and by engines, without P/D and with it.

200 engines at two thirds of what they can carry, traces of growing length; then 20,000 requests on
growing fleets. CPU time of this one process, so that other work on the machine counts for little.

    python bench/plan_speed.py --json bench/results/plan_speed.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from output import write
from plan_models import QWEN3_8B

from baton.plan.costs import HandoffCost
from baton.plan.devices import find_hardware
from baton.plan.model import shape_from_config
from baton.plan.roofline import roofline
from baton.plan.simulator import EngineLimits, Fleet, Pool
from baton.plan.traffic import made_up

RATE_PER_ENGINE = 5.0
PROMPT, ANSWER, SPREAD = 2000, 250, 0.6
NIC_BYTES_PER_S = 35e9


def pools(engines: int, *, apart: bool) -> list[Pool]:
    """Qwen3-8B on H200s; with P/D two fifths of them prefill."""
    costs = roofline(shape_from_config(QWEN3_8B, "qwen3-8b"), find_hardware("H200").gpu, 1)
    limits = EngineLimits(2048, 256, async_scheduling=True)
    if not apart:
        return [Pool("both", costs, tuple(range(engines)), limits)]
    readers = max(1, engines * 2 // 5)
    network = HandoffCost(0.02, NIC_BYTES_PER_S)
    return [
        Pool(role, costs, nodes, limits, nic_bytes_per_s=NIC_BYTES_PER_S, network=network)
        for role, nodes in (
            ("prefill", tuple(range(readers))),
            ("decode", tuple(range(readers, engines))),
        )
    ]


def run(engines: int, requests: int, *, apart: bool) -> dict[str, Any]:
    """One simulation."""
    trace = made_up(
        prompt_tokens=PROMPT, output_tokens=ANSWER, rate_rps=RATE_PER_ENGINE * engines,
        spread=SPREAD, count=requests, seed=1,
    ).requests  # fmt: skip
    fleet = Fleet(pools(engines, apart=apart))
    begun = time.process_time()
    outcome = fleet.play(trace)
    cpu_s = time.process_time() - begun
    if outcome.counts["finished"] != requests:
        raise SystemExit(f"error: {outcome.counts}")
    return {
        "engines": engines,
        "requests": requests,
        "cpu_s": round(cpu_s, 2),
        "us_per_request": round(1e6 * cpu_s / requests, 1),
        "simulated_s": round(outcome.ended_s, 1),
    }


def main() -> None:
    """Measure both ways and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    figures: dict[str, Any] = {"prompt_tokens": PROMPT, "answer_tokens": ANSWER, "spread": SPREAD}
    for name, apart in (("without_pd", False), ("with_pd", True)):
        lengths = (6_250, 12_500, 25_000, 50_000, 100_000)
        figures[name] = {
            "by_requests": [run(200, count, apart=apart) for count in lengths],
            "by_engines": [run(count, 20_000, apart=apart) for count in (2, 20, 200)],
        }
    write(figures, asked.json)


if __name__ == "__main__":
    main()
