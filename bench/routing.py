"""What a choice of an engine costs, and what choosing by prefix is worth.

`cost`: microseconds of CPU time a choice, with 2 to 1,000 engines, a prompt of 5 KB, its keys and
the directory's candidates included. The rest runs a model of prefill pools (`prefix_pools.py`; no
vLLM in it) behind the gateway's own router: `worth` policies against each other, `compare` how many
engines to compare, `bounds` how much busier an engine with the prefix may be. Prints JSON: medians
over rounds; those of the model are with other seeds, and come out the same each time.

    PYTHONPATH=src python bench/routing.py --json bench/results/routing.json
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from output import write
from prefix_pools import LOADS, chat, lease, median_of

from baton.gateway import routing
from baton.gateway.directory import LeaseDirectory
from baton.gateway.prefixes import KEPT_KEYS, LENGTHS, PrefixIndex, Prompt
from baton.gateway.routing import Choice, InFlight, Router

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY: dict[str, Any] = {"utilisation": 1.2}


def median_us(action: Callable[[], object], rounds: int, count: int) -> float:
    """Microseconds of CPU time: nothing here waits, and others may be using the machine."""
    taken = []
    for _ in range(rounds):
        started = time.thread_time()
        for _ in range(count):
            action()
        taken.append((time.thread_time() - started) / count * 1e6)
    return round(statistics.median(taken), 2)


def cost_at(engines: int, rounds: int, count: int) -> dict[str, float]:
    """One choice: the directory's candidates, the prompt's keys, the index, the loads."""
    draw = random.Random(engines)
    directory = LeaseDirectory(None)  # type: ignore[arg-type]  # is never started
    leases = tuple(lease(n, draw.randrange(4), draw.randrange(2)) for n in range(engines))
    directory._see(leases)
    index = PrefixIndex()
    router = Router(InFlight(), draw, index)
    by_load, all_compared = Router(InFlight(), draw), Router(InFlight(), draw)
    all_compared._compared = engines
    bodies = [chat(f"{n} " + "You are careful. " * 240, "What is next? " * 20) for n in range(64)]
    for body in bodies:
        for _ in range(4):
            index.learn(Prompt(body).keys, draw.choice(leases))
    tried = {leases[0].replica_id}

    def choose(router: Router, exclude: set[str] = frozenset()) -> Choice | None:  # type: ignore[assignment]
        prompt = Prompt(bodies[int(draw.random() * len(bodies))])
        return router.pick(directory.prefill_engines(), exclude, prompt)

    found = {
        "load": median_us(lambda: choose(by_load), rounds, count),
        "prefix": median_us(lambda: choose(router), rounds, count),
        "prefix_one_tried": median_us(lambda: choose(router, tried), rounds, count),
    }
    broken = directory.breakers._circuit(leases[-1])
    broken.opened, broken.closes_at = 1, float("inf")
    found["prefix_one_circuit_open"] = median_us(lambda: choose(router), rounds, count)
    found["compare_all"] = median_us(lambda: choose(all_compared), rounds, count)
    return found


def cost_of_keys(rounds: int, count: int) -> dict[str, float]:
    """Keys of a prompt by its size, and what remembering it costs."""
    found = {}
    for kib in (1, 4, 16, 64, 1024):
        body = chat("x" * (kib * 1024), "What is next?")
        found[f"keys_of_{kib}_KiB"] = median_us(lambda b=body: Prompt(b).keys, rounds, count)  # type: ignore[misc]
    index, engine = PrefixIndex(), lease(0)
    prompts = iter(range(10**9))
    found["learn_16_KiB"] = median_us(
        lambda: index.learn([hash((next(prompts), n)) for n in range(17)], engine), rounds, count
    )
    return found


def memory() -> dict[str, float]:
    """A full index, whose prompts have 16 keys each and every key four holders."""
    draw = random.Random(0)
    engines = [lease(n) for n in range(1000)]
    tracemalloc.start()
    index = PrefixIndex()
    for _ in range(KEPT_KEYS // 16 + 500):
        keys = [draw.getrandbits(61) for _ in range(16)]
        for engine in draw.sample(engines, 4):
            index.learn(keys, engine)
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "keys": len(index),
        "MiB": round(size / 2**20, 1),
        "peak_MiB": round(peak / 2**20, 1),
        "keys_a_prompt_at_most": len(LENGTHS),
    }


def worth(rounds: int) -> dict[str, Any]:
    """Policies against each other: hits, balance, time to the first token."""
    cases: list[dict[str, Any]] = [
        {"load": load, "gateways": gateways} for load in LOADS for gateways in (1, 2, 4)
    ]
    cases.append({"load": "shared_prefix", "slow": 2})
    found: dict[str, Any] = {}
    for case in cases:
        of = found[", ".join(f"{name} {value}" for name, value in case.items())] = {
            policy: median_of(rounds, policy, **case)
            for policy in ("round_robin", "load", "prefix")
        }
        of["prefix_to_round_robin"] = {
            name: round(value / of["round_robin"][name], 2)
            for name, value in of["prefix"].items()
            if of["round_robin"][name]
        }
    return found


def how_many_to_compare(rounds: int) -> dict[str, Any]:
    """Mean time to the first token: all engines compared, relative to the better of two drawn."""
    return {
        f"{gateways} gateway(s)": {
            f"{engines} engines": round(
                median_of(
                    rounds, "load", engines=engines, gateways=gateways, compared=engines, **BUSY
                )["ttft_mean_s"]
                / median_of(rounds, "load", engines=engines, gateways=gateways, compared=2, **BUSY)[
                    "ttft_mean_s"
                ],
                2,
            )
            for engines in (4, 8, 16, 32)
        }
        for gateways in (1, 2, 4, 8)
    }


def bounds(rounds: int) -> dict[str, Any]:
    """What the bound costs or gives: hits and mean time to the first token, one gateway, busy."""
    found: dict[str, Any] = {}
    chosen = routing.BOUND_LOAD, routing.BOUND_REQUESTS
    try:
        for part, requests in ((0.0, 0.0), (0.0, 1.0), (0.25, 2.0), chosen, (0.5, 6.0), (1.0, 16)):
            routing.BOUND_LOAD, routing.BOUND_REQUESTS = part, requests
            runs = {
                load: median_of(rounds, "prefix", load=load, utilisation=busy)
                for load, busy in (
                    ("shared_prefix", 1.8),
                    ("conversations", 1.8),
                    ("short_share", 0.9),
                )
            }
            found[f"{part:g} of the load, {requests:g} requests"] = {
                load: {name: run[name] for name in ("hit_rate", "busiest_to_mean", "ttft_mean_s")}
                for load, run in runs.items()
            }
    finally:
        routing.BOUND_LOAD, routing.BOUND_REQUESTS = chosen
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cost-rounds", type=int, default=11)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument(
        "--only", choices=["cost", "worth", "compare", "bounds"], help="one part; keeps the others"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = options.rounds
    parts: dict[str, Callable[[], Any]] = {
        "cost": lambda: {
            "median_us_per_choice": {
                str(n): cost_at(n, options.cost_rounds, options.count) for n in (2, 10, 100, 1000)
            },
            "median_us": cost_of_keys(options.cost_rounds, options.count),
            "full_index": memory(),
        },
        "worth": lambda: worth(rounds),
        "compare": lambda: how_many_to_compare(rounds),
        "bounds": lambda: bounds(rounds),
    }
    result: dict[str, Any] = {}
    if options.only and options.json is not None and options.json.exists():
        result = json.loads(options.json.read_text(encoding="utf-8"))
    for name, part in parts.items():
        if options.only in (None, name):
            result[name] = part()
    result |= {
        "rounds": rounds,
        "python": sys.version.split()[0],
        "machine": platform.machine(),
    }
    write(result, options.json)


if __name__ == "__main__":
    main()
