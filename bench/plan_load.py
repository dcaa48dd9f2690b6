"""Loads of bench/plan_validate.py: open-loop requests, who sends them, and how fast the machine is.

A generator that waits for a processor measures itself: on two cores with two engines it was held up
until the engines had nothing to do, and answers of 100 ms came in one piece. It asks for real-time
priority, and how late it sent each request stands beside what it found.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from baton.plan.measure_traffic import Sent, ask, send
from baton.plan.probe import Prober, places

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from baton.plan.simulator import Request

PROBE_TOKENS, PROBE_STEPS, PROBES = 256, 48, 7


@dataclass(frozen=True)
class Speed:
    """Medians of a few requests with nobody else there: a first token, a step of decode."""

    first_s: float
    step_s: float


def hurry() -> dict[str, bool]:
    """Real-time priority for this process."""
    found = {"generator_is_real_time": False}
    with contextlib.suppress(OSError):
        policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK  # what it starts does not inherit it
        os.sched_setscheduler(0, policy, os.sched_param(1))
        found["generator_is_real_time"] = True
    return found


@contextlib.asynccontextmanager
async def probers(urls: Sequence[str], model: str) -> AsyncIterator[list[Prober]]:
    """One for each engine."""
    timeout = aiohttp.ClientTimeout(total=300)
    # A connection that an engine is about to close must not be taken for a new request.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield [Prober(session, url, model) for url in urls]


async def run_load(urls: Sequence[str], model: str, requests: Sequence[Request]) -> list[Sent]:
    """Open loop."""
    async with probers(urls, model) as engines:
        for engine in engines:
            engine.chance.seed(time.time_ns())  # no prompt that an earlier load has sent
        return await send(engines, requests)


async def speed(urls: Sequence[str], model: str) -> Speed:
    """How fast the machine is now."""
    async with probers(urls, model) as engines:
        engines[0].chance.seed(time.time_ns())
        firsts, steps = [], []
        for place in (None, *places(PROBES)):
            prompt = engines[0].near(PROBE_TOKENS, place or 0.0)
            times = await ask(engines, prompt, PROBE_STEPS)
            if place is not None:
                firsts.append(times[1] - times[0])
                steps.append((times[-1] - times[1]) / (PROBE_STEPS - 1))
    return Speed(statistics.median(firsts), statistics.median(steps))
