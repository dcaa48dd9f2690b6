"""What admission, keys and the entrance add to a request that has to wait for nothing.

Compares this tree with an older commit in one process, in alternating rounds: key look-up, place
taken, place given back. Then the same here with what only some deployments use: a thousand keys,
limits for each key, a queue of other keys. Prints JSON: medians in microseconds and the ratio.

    PYTHONPATH=src python bench/admission_cost.py --json bench/results/admission_cost.json
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

from output import write

from baton.gateway.admission import Admission
from baton.gateway.auth import Keys
from baton.spec.key_file import CallerKey
from baton.spec.schema import Admission as Limits
from baton.spec.schema import Auth

ROOT = Path(__file__).resolve().parent.parent
HEADER = b"Bearer key-0"
ENVIRON = {"KEYS": "n0:key-0,n1:key-1,n2:key-2"}


def old_module(commit: str, name: str) -> Any:
    """A module of the gateway as it was."""
    path = f"src/baton/gateway/{name}.py"
    text = subprocess.run(
        ["git", "show", f"{commit}:{path}"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    module = types.ModuleType(f"old_{name}")
    exec(compile(text, path, "exec"), module.__dict__)
    return module


async def before(old_admission: Any, old_keys: Any, count: int) -> float:
    """Seconds for so many requests as they were let in."""
    admission = old_admission.Admission(Limits())
    keys = old_keys.Keys.from_settings(Auth(api_keys_env="KEYS"), ENVIRON)
    started = time.perf_counter()
    for _ in range(count):
        keys.name_of(HEADER, None)
        await admission.enter()
        admission.leave()
    return time.perf_counter() - started


async def after(keys: Keys, count: int, *, prefill: bool = True) -> float:
    """The same, as they are let in now."""
    admission = Admission(Limits())
    started = time.perf_counter()
    for _ in range(count):
        holder = keys.holder_of(HEADER, None)
        holder.begin()
        place = admission.ask(holder.name, prefill=prefill, weight=holder.weight)
        place.prefill_done()
        place.leave()
        holder.end()
    return time.perf_counter() - started


async def behind_a_queue(keys: int, count: int) -> float:
    """A place that comes free goes to the next of so many keys, each with one waiting."""
    admission = Admission(Limits(max_inflight=1, max_queue=keys + 1))
    held = admission.ask("first", prefill=True)
    waiting = {f"k{n}": admission.ask(f"k{n}", prefill=True) for n in range(keys)}
    started = time.perf_counter()
    for _ in range(count):
        held.leave()
        held = next(place for place in waiting.values() if place.state == "held")
        waiting[held.key] = admission.ask(held.key, prefill=True)
    return time.perf_counter() - started


def many(number: int, **limits: Any) -> Keys:
    return Keys(tuple(CallerKey(name=f"n{n}", key=f"key-{n}", **limits) for n in range(number)))


async def measure(commit: str, rounds: int, count: int) -> dict[str, Any]:
    old_admission, old_keys = old_module(commit, "admission"), old_module(commit, "auth")
    few = Keys.from_settings(Auth(api_keys_env="KEYS"), ENVIRON)
    limited = many(1, requests_per_min=1e9, burst=10**9, max_concurrency=10)
    thousand = many(1000)
    cases = {
        "before": lambda: before(old_admission, old_keys, count),
        "now": lambda: after(few, count),
        "now_decode_alone": lambda: after(few, count, prefill=False),
        "now_key_limits": lambda: after(limited, count),
        "now_1000_keys": lambda: after(thousand, count),
        "now_queue_of_64_keys": lambda: behind_a_queue(64, count // 20),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            seconds[name].append(await case() / (count // 20 if "queue" in name else count))
    medians = {name: round(statistics.median(s) * 1e6, 2) for name, s in seconds.items()}
    return {
        "before_commit": commit,
        "rounds": rounds,
        "requests_a_round": count,
        "median_us_per_request": medians,
        "ratio_now_to_before": round(medians["now"] / medians["before"], 2),
        "added_us_per_request": round(medians["now"] - medians["before"], 2),
        "python": sys.version.split()[0],
        "machine": platform.machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default="8a9fcd1")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = asyncio.run(measure(options.before, options.rounds, options.count))
    write(result, options.json)


if __name__ == "__main__":
    main()
