"""What it costs and saves that CPU engines sleep while they wait on vLLM's shared memory.

One prefill and one decode engine of the tiny model behind `baton gateway`, started anew for each
round and in turn with vLLM's own waiting (`BATON_SHM_PAUSE_US=0`) and with ours. Measured: requests
a second and time to the first token with one caller and with eight; and of callers that hang up at
random moments, how many leave KV on an engine that is still held two seconds later. The JSON on
stdout goes to bench/results/shm_pace.json.

    python bench/shm_pace.py [ROUNDS] > bench/results/shm_pace.json
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.integration.gateway_process import running_gateway
from tests.real_engines import RealPair, start_pair

from baton.engine.shm_pace import PAUSE_US, SWITCH

PROMPT = "one runner hands the baton to the next and the crowd counts the steps. " * 7
HANG_UPS = 40
REQUESTS = 24
ALWAYS = {"x-baton-disaggregate": "always"}


def body(**more: Any) -> dict[str, Any]:
    """A request that no prefix cache knows."""
    return {
        "model": "tiny", "prompt": PROMPT, "max_tokens": 32, "temperature": 0,
        "stream": True, "cache_salt": uuid.uuid4().hex, **more,
    }  # fmt: skip


def first_token_s(url: str) -> float:
    """One request; seconds to its first chunk."""
    started = time.perf_counter()
    first = 0.0
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body(), headers=ALWAYS, timeout=120
    ) as answer:
        for _ in answer.iter_raw():
            first = first or time.perf_counter() - started
    return first


def load(url: str, callers: int) -> dict[str, float]:
    """Requests a second and the median TTFT with so many callers."""
    with ThreadPoolExecutor(callers) as pool:
        started = time.perf_counter()
        firsts = list(pool.map(lambda _: first_token_s(url), range(REQUESTS)))
        took = time.perf_counter() - started
    return {"requests_per_s": REQUESTS / took, "ttft_s": statistics.median(firsts)}


def held(pair: RealPair) -> bool:
    """Whether either engine holds KV."""
    for url in (pair.prefill_url, pair.decode_url):
        for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
            if line.startswith("vllm:kv_cache_usage_perc") and float(line.rsplit(" ", 1)[1]) > 0:
                return True
    return False


def hang_ups(url: str, pair: RealPair, rng: random.Random) -> int:
    """How many hang-ups leave KV that is held two seconds later."""
    slow = 0
    for _ in range(HANG_UPS):
        patience = httpx.Timeout(60, read=rng.uniform(0.002, 0.5))
        with contextlib.suppress(httpx.TimeoutException):
            httpx.post(
                f"{url}/v1/completions",
                json=body(prompt=PROMPT * 3, max_tokens=300, stream=False),
                headers=ALWAYS,
                timeout=patience,
            )
        time.sleep(2)
        if held(pair):
            slow += 1
            deadline = time.monotonic() + 40
            while held(pair) and time.monotonic() < deadline:
                time.sleep(0.5)
    return slow


def one(pause_us: int, seed: int) -> dict[str, float]:
    """A pair of engines with one way of waiting."""
    os.environ[SWITCH] = str(pause_us)
    with tempfile.TemporaryDirectory() as folder, start_pair(Path(folder)) as pair:
        log = Path(folder) / "gateway.log"
        with running_gateway([pair.prefill_url], [pair.decode_url], log) as url:
            load(url, 2)  # warm
            alone, many = load(url, 1), load(url, 8)
            return {
                **{f"c1_{name}": value for name, value in alone.items()},
                **{f"c8_{name}": value for name, value in many.items()},
                "held_after_2_s": hang_ups(url, pair, random.Random(seed)),
            }


def main() -> None:
    """Alternate the two settings and print medians."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    found: dict[int, list[dict[str, float]]] = {0: [], PAUSE_US: []}
    for number in range(rounds):
        for pause_us, measured in found.items():
            measured.append(one(pause_us, number))
    out: dict[str, Any] = {"rounds": rounds, "hang_ups_each": HANG_UPS}
    out["kernel"] = os.uname().release
    for pause_us, measured in found.items():
        out[f"pause_us_{pause_us}"] = {
            name: round(statistics.median(m[name] for m in measured), 4) for name in measured[0]
        }
    out["ratios"] = {
        name: round(
            statistics.median(b[name] / a[name] for a, b in zip(*found.values(), strict=True)), 3
        )
        for name in ("c1_requests_per_s", "c8_requests_per_s", "c1_ttft_s", "c8_ttft_s")
    }
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
