r"""Sets a profile's prediction beside a load that it was not measured with.

Sends Poisson traffic to the engine (with --decode-url to the pair, as the gateway would: prefill,
then decode with its parameters), measures TTFT and TPOT, plays the very same arrivals and lengths
in the simulator with the profile's costs, and sets p50 and p90 side by side.

    python bench/plan_validate.py --url http://127.0.0.1:8000 --profile profile.json \
        --load 300:24:2 --load 800:16:1 --json bench/results/plan_validate.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from output import write

from baton.observe.percentile import percentile
from baton.plan.costs import HandoffCost
from baton.plan.measure import Prober
from baton.plan.profile_file import Profile, read_profile
from baton.plan.simulator import EngineLimits, Fleet, Pool
from baton.plan.traffic import Traffic, made_up

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SEQS = 256
ASK = {"do_remote_decode": True, "do_remote_prefill": False}


async def one(
    prefill: Prober, decode: Prober | None, prompt: list[int], tokens: int
) -> tuple[float, float]:
    """TTFT and TPOT of one request."""
    begun, more = time.perf_counter(), {}
    if decode is not None:
        body = prefill.body(prompt, 1, kv_transfer_params=ASK)
        more["kv_transfer_params"] = (await prefill.answer(body))[1]["kv_transfer_params"]
    asked = decode or prefill
    times = await asked.token_times(asked.body(prompt, tokens, **more))
    return times[1] - begun, (times[-1] - times[1]) / (tokens - 1)


async def load(url: str, decode_url: str | None, traffic: Traffic) -> list[tuple[float, float]]:
    """Every request at its time, however many are under way."""
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        prefill = Prober(session, url, "")
        prefill.model = json.loads(await prefill.get("/v1/models"))["data"][0]["id"]
        decode = None if decode_url is None else Prober(session, decode_url, prefill.model)
        prompts = [prefill.prompt(request.prompt_tokens) for request in traffic.requests]
        for prompt in prompts[:2]:  # warm up; new ids below
            await one(prefill, decode, prefill.prompt(len(prompt)), 4)
        begun, tasks = time.perf_counter(), []
        for request, prompt in zip(traffic.requests, prompts, strict=True):
            await asyncio.sleep(max(0.0, begun + request.arrival_s - time.perf_counter()))
            tasks.append(asyncio.create_task(one(prefill, decode, prompt, request.output_tokens)))
        return await asyncio.gather(*tasks)


def predicted(profile: Profile, traffic: Traffic, *, apart: bool) -> list[tuple[float, float]]:
    """The same requests in the simulator."""
    costs = profile.step_costs()
    limits = EngineLimits(profile.engine.max_num_batched_tokens, MAX_SEQS)
    if not apart:
        pools = [Pool("both", costs, (0,), limits)]
    else:
        handoff = profile.handoff_cost() or HandoffCost(0.0, 0.0)
        pools = [
            Pool(role, costs, (node,), limits, nic_bytes_per_s=handoff.bytes_per_s,
                 network=handoff)
            for node, role in enumerate(("prefill", "decode"))
        ]  # fmt: skip
    outcome = Fleet(pools).play(traffic.requests)
    return [(served.ttft_s, served.tpot_s or 0.0) for served in outcome.served]


def compared(
    measured: Sequence[tuple[float, float]], said: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """p50 and p90 of both times, in milliseconds, and the error."""
    rows = {}
    for index, name in enumerate(("ttft", "tpot")):
        for share in (0.5, 0.9):
            real = percentile([times[index] for times in measured], share)
            model = percentile([times[index] for times in said], share)
            rows[f"{name}_p{100 * share:.0f}"] = {
                "measured_ms": round(1e3 * real, 2),
                "predicted_ms": round(1e3 * model, 2),
                "error_percent": round(100 * (model / real - 1), 1),
            }
    return rows


def fitting(traffic: Traffic, max_model_len: int | None) -> Traffic:
    """Two tokens at least, for a time a token; and what the engine's context holds."""
    limit = max_model_len or 1 << 30
    requests = []
    for request in traffic.requests:
        output = min(max(request.output_tokens, 2), limit // 2)
        prompt = min(request.prompt_tokens, limit - output - 1)
        requests.append(type(request)(request.arrival_s, prompt, output))
    return Traffic(tuple(requests), traffic.source, traffic.warm_up_s)


def main() -> None:
    """Each load in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--decode-url")
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--load", action="append", required=True, help="ISL:OSL:RATE")
    parser.add_argument("--spread", type=float, default=0.5)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    profile = read_profile(asked.profile, any_versions=True)
    figures: dict[str, Any] = {"profile": profile.model_dump(exclude={"prefill", "decode"})}
    for number, text in enumerate(asked.load):
        isl, osl, rate = text.split(":")
        traffic = made_up(
            prompt_tokens=int(isl), output_tokens=int(osl), rate_rps=float(rate),
            spread=asked.spread, count=asked.count, seed=100 + number,
        )  # fmt: skip
        traffic = fitting(traffic, profile.engine.max_model_len)
        measured = asyncio.run(load(asked.url, asked.decode_url, traffic))
        said = predicted(profile, traffic, apart=asked.decode_url is not None)
        figures[traffic.source] = {"load_average": os.getloadavg()[0], **compared(measured, said)}
    write(figures, asked.json)


if __name__ == "__main__":
    main()
