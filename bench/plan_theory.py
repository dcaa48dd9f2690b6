"""The simulator against closed forms: M/D/1 and M/M/c, mean waits over several seeds.

Each engine takes one request at a time, so the fleet is a queue before c servers. The deviation of
the mean over the seeds stands beside it: what lies within two of them is noise. Where hardly
anybody waits (16 servers at half load: one in a hundred) it takes more requests to be as sure.

    python bench/plan_theory.py --json bench/results/plan_theory.json
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from pathlib import Path
from typing import Any

from output import write

from baton.plan.costs import KvShape, StepCosts
from baton.plan.simulator import EngineLimits, Fleet, FleetSettings, Pool, Request

SEEDS = 12
REQUESTS = 20_000
RARELY_S, REQUESTS_WHERE_RARE = 0.005, 500_000
"""Mean waits below this are made by few requests."""
WARM_UP_S = 200.0
SERVICE_TOKENS = 1000  # 1 ms each: a second of service


def mean_wait(
    engines: int, load: float, seed: int, requests: int, *, random_service: bool
) -> float:
    """Mean seconds in the queue of one run."""
    chance = random.Random(seed)
    now, trace = 0.0, []
    for _ in range(requests):
        now += chance.expovariate(load * engines)
        drawn = max(1, round(chance.expovariate(1 / SERVICE_TOKENS)))
        trace.append(Request(now, drawn if random_service else SERVICE_TOKENS, 1))
    costs = StepCosts(
        base=lambda tokens, _: 1e-3 * tokens, pair_s=0.0, kv_byte_s=0.0, kv=KvShape(1.0),
        kv_capacity_bytes=math.inf,
    )  # fmt: skip
    pool = Pool("both", costs, tuple(range(engines)), EngineLimits(1 << 30, 1))
    outcome = Fleet([pool], FleetSettings(max_open_per_engine=1)).play(trace)
    return outcome.mean("queue_s", WARM_UP_S)


def m_d_1(load: float) -> float:
    """Pollaczek and Khinchine, service of one second."""
    return load / (2 * (1 - load))


def m_m_c(engines: int, load: float) -> float:
    """Erlang's C, service of one second."""
    offered = load * engines
    last = offered**engines / math.factorial(engines) / (1 - load)
    waits = last / (sum(offered**k / math.factorial(k) for k in range(engines)) + last)
    return waits / (engines - offered)


def row(engines: int, load: float, *, random_service: bool) -> dict[str, Any]:
    """Theory, simulation, and how far apart they are."""
    theory = m_m_c(engines, load) if random_service else m_d_1(load)
    requests = REQUESTS if theory > RARELY_S else REQUESTS_WHERE_RARE
    found = [
        mean_wait(engines, load, seed, requests, random_service=random_service)
        for seed in range(SEEDS)
    ]
    mean = statistics.mean(found)
    return {
        "queue": f"M/{'M' if random_service else 'D'}/{engines}",
        "load": load,
        "requests": requests,
        "theory_s": round(theory, 5),
        "simulated_s": round(mean, 5),
        "deviation_of_mean_s": round(statistics.stdev(found) / math.sqrt(SEEDS), 5),
        "error_percent": round(100 * (mean / theory - 1), 1),
    }


def main() -> None:
    """All rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = [row(1, load, random_service=False) for load in (0.3, 0.5, 0.7, 0.8)]
    for engines in (1, 2, 4, 16):
        rows += [row(engines, load, random_service=True) for load in (0.5, 0.7, 0.8)]
    write({"seeds": SEEDS, "rows": rows}, asked.json)


if __name__ == "__main__":
    main()
