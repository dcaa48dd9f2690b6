"""Loads of bench/plan_validate.py: open-loop requests, who sends them, and how fast the machine is.

A generator that waits for a processor measures itself: on two cores with two engines it was held up
until the engines had nothing to do, and answers of 100 ms came in one piece. It asks for real-time
priority, and how late it sent each request stands beside what it found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from baton.plan.probe import Prober, places

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from baton.plan.simulator import Request

AHEAD = -15
"""Of an autogroup: Linux weighs sessions against each other by it, and not by their `nice`."""
PROBE_TOKENS, PROBE_STEPS, PROBES = 256, 48, 7


@dataclass(frozen=True)
class Sent:
    """One answer. Seconds from sending; `late_s` is how long after its time it was sent."""

    late_s: float
    prompt_tokens: int
    output_tokens: int
    times_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        return self.times_s[0]

    @property
    def tpot_s(self) -> float:
        return (self.times_s[-1] - self.times_s[0]) / (self.output_tokens - 1)


@dataclass(frozen=True)
class Speed:
    """Medians of a few requests with nobody else there: a first token, a step of decode."""

    first_s: float
    step_s: float


def hurry(processes: Sequence[int]) -> dict[str, bool]:
    """Real-time priority for this process, and the others' sessions before everybody else's."""
    found = {"generator_is_real_time": False, "engines_go_first": False}
    with contextlib.suppress(OSError):
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK  # what it starts does not inherit it
        os.sched_setscheduler(0, policy, os.sched_param(1))
        found["generator_is_real_time"] = True
    with contextlib.suppress(OSError):
        for pid in processes:
            Path(f"/proc/{pid}/autogroup").write_text(str(AHEAD), encoding="ascii")
        found["engines_go_first"] = bool(processes)
    return found


@contextlib.asynccontextmanager
async def probers(urls: Sequence[str], model: str) -> AsyncIterator[list[Prober]]:
    """One for each engine."""
    timeout = aiohttp.ClientTimeout(total=300)
    # A connection that an engine is about to close must not be taken for a new request.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield [Prober(session, url, model) for url in urls]


async def one(engines: Sequence[Prober], prompt: Sequence[int], tokens: int) -> list[float]:
    """When it was asked, then when each token came. With two engines as the gateway does it."""
    begun, more = time.perf_counter(), {}
    if len(engines) > 1:
        more["kv_transfer_params"] = (await engines[0].handed_over(prompt))[1]
    asked = engines[-1]
    times = await asked.token_times(asked.body(prompt, tokens, **more))
    return [begun, *times[1:]]


async def send(urls: Sequence[str], model: str, requests: Sequence[Request]) -> list[Sent]:
    """Every request at its time, however many are under way."""
    async with probers(urls, model) as engines:
        for engine in engines:
            engine.chance.seed(time.time_ns())  # no prompt that an earlier load has sent
        prompts = [engines[0].prompt(request.prompt_tokens) for request in requests]
        for request in requests[:2]:  # warm up
            await one(engines, engines[0].prompt(request.prompt_tokens), 4)
        begun, tasks = time.perf_counter(), []
        for request, prompt in zip(requests, prompts, strict=True):
            await asyncio.sleep(max(0.0, begun + request.arrival_s - time.perf_counter()))
            tasks.append(asyncio.create_task(one(engines, prompt, request.output_tokens)))
        answers = await asyncio.gather(*tasks)
    return [
        Sent(
            times[0] - begun - request.arrival_s, request.prompt_tokens, request.output_tokens,
            tuple(at - times[0] for at in times[1:]),
        )
        for request, times in zip(requests, answers, strict=True)
    ]  # fmt: skip


async def speed(urls: Sequence[str], model: str) -> Speed:
    """How fast the machine is now."""
    async with probers(urls, model) as engines:
        engines[0].chance.seed(time.time_ns())
        firsts, steps = [], []
        for place in (None, *places(PROBES)):
            prompt = engines[0].near(PROBE_TOKENS, place or 0.0)
            times = await one(engines, prompt, PROBE_STEPS)
            if place is not None:
                firsts.append(times[1] - times[0])
                steps.append((times[-1] - times[1]) / (PROBE_STEPS - 1))
    return Speed(statistics.median(firsts), statistics.median(steps))
