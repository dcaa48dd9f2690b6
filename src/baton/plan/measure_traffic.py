"""Sends requests as traffic does: open loop, each at its time, however many are under way.

`baton profile` calibrates with it (`plan.calibrate`), and bench/plan_validate.py measures with it
what the simulator predicts.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.plan.simulator.job import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.plan.probe import Prober

QUIET, BUSY = 0.3, 1.5
"""Requests under way on average if each took what it takes alone: pauses between most of them, and
hardly a pause."""
READING = 0.5
"""Share of the time that prompts may be read at most: beyond, queues hide what a step takes."""
ANSWER = 32
"""Tokens of an answer, on average."""


@dataclass(frozen=True)
class Sent:
    """One answer. Seconds from sending; `late_s` is how long after its time it was sent."""

    late_s: float
    prompt_tokens: int
    output_tokens: int
    times_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        """Until the first token."""
        return self.times_s[0]

    @property
    def tpot_s(self) -> float:
        """Seconds a token, of all but the first; an answer has two tokens at least."""
        return (self.times_s[-1] - self.times_s[0]) / (self.output_tokens - 1)


async def ask(engines: Sequence[Prober], prompt: Sequence[int], tokens: int) -> list[float]:
    """When it was asked, then when each token came. With two engines as the gateway does it."""
    begun, more = time.perf_counter(), {}
    if len(engines) > 1:
        more["kv_transfer_params"] = (await engines[0].handed_over(prompt))[1]
    asked = engines[-1]
    times = await asked.token_times(asked.body(prompt, tokens, **more))
    return [begun, *times[1:]]


async def send(engines: Sequence[Prober], requests: Sequence[Request]) -> list[Sent]:
    """Every request at its time, from the first one's on."""
    prompts = [engines[0].prompt(request.prompt_tokens) for request in requests]
    for request in requests[:2]:  # warm up
        await ask(engines, engines[0].prompt(request.prompt_tokens), 4)
    begun, tasks = time.perf_counter(), []
    for request, prompt in zip(requests, prompts, strict=True):
        await asyncio.sleep(max(0.0, begun + request.arrival_s - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(engines, prompt, request.output_tokens)))
    answers = await asyncio.gather(*tasks)
    return [
        Sent(
            times[0] - begun - request.arrival_s, request.prompt_tokens, request.output_tokens,
            tuple(at - times[0] for at in times[1:]),
        )
        for request, times in zip(requests, answers, strict=True)
    ]  # fmt: skip


def sample(lengths: tuple[int, int], rate_rps: float, count: int, *, seed: int) -> list[Request]:
    """Poisson arrivals of prompts between two lengths, evenly by their logarithm.

    The same for the same seed.
    """
    shortest, longest = map(math.log, lengths)
    chance = random.Random(seed)  # noqa: S311 - a made-up load
    gaps = [chance.expovariate(rate_rps) for _ in range(count)]
    return [
        Request(
            arrival_s,
            round(math.exp(chance.uniform(shortest, longest))),
            chance.randint(ANSWER // 2, ANSWER + ANSWER // 2),
        )
        for arrival_s in itertools.accumulate(gaps)
    ]
