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

from baton.plan.calibrate import NORMAL_90, Seen, calibrated, joined
from baton.plan.simulator.job import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton.plan.probe import Prober
    from baton.plan.profile_file import Profile

QUIET, BUSY = 0.3, 1.5
"""Requests under way on average if each took what it takes alone: pauses between most of them, and
hardly a pause."""
READING = 0.5
"""Share of the time that prompts may be read at most: beyond, queues hide what a step takes."""
ANSWER = 32
"""Tokens of an answer, on average."""
WARM_S, WARM_TOKENS = 20.0, 4
"""How long an engine is warmed up at most, and tokens of an answer meanwhile."""


@dataclass(frozen=True)
class TrafficAsked:
    """How much of it there is."""

    seconds: float = 20.0
    """How long requests come quietly, all parts together; busy ones are as many. 0: not at all."""
    answers: tuple[int, int] = (24, 80)
    """So many at least and at most, of each kind."""
    rare: int = 32
    """Further quiet ones after long pauses, of half the longest whose waking was measured on
    average: quiet traffic has few of those."""
    parts: int = 4
    """In turn: quiet and busy, of one engine and of the pair. A machine that drifts is the same for
    all of them so."""


@dataclass(frozen=True)
class Part:
    """What was seen of one."""

    quiet: list[Seen]
    busy: list[Seen]


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


async def in_traffic(
    profile: Profile, engines: Sequence[Prober], lengths: Sequence[int],
    say: Callable[[str], None], asked: TrafficAsked,
) -> Profile:  # fmt: skip
    """Calibrate with answers of one engine, and of the pair where there are two."""
    setups = [engines[:1], engines] if len(engines) > 1 else [engines]
    parts: list[list[Part]] = [[] for _ in setups]
    for number in range(asked.parts):
        for setup, found in zip(setups, parts, strict=True):
            found.append(await part_of(profile, setup, lengths, asked, number))
    for setup, found in zip(setups, parts, strict=True):
        profile = told(profile, found, apart=len(setup) > 1, say=say)
    return profile


async def part_of(
    profile: Profile, engines: Sequence[Prober], lengths: Sequence[int], asked: TrafficAsked,
    number: int,
) -> Part:  # fmt: skip
    """One part. The same requests for the same number."""
    apart = len(engines) > 1
    costs, link = profile.step_costs(apart=apart), profile.handoff_cost()
    shortest, longest = lengths[0], lengths[-1]
    mean = round((longest - shortest) / math.log(longest / shortest))
    first_s = costs.request_s + costs.prefill_s(mean, budget=profile.engine.max_num_batched_tokens)
    lone_s = first_s + ANSWER * costs.decode_base_s(1)
    if apart and link is not None:
        lone_s += link.seconds(costs.kv.of(mean))
    seen = []
    for kind, under_way in enumerate((QUIET, BUSY)):
        rate = min(under_way / lone_s, READING / first_s)
        count = min(max(rate * asked.seconds, asked.answers[0]), asked.answers[1])
        requests = sample(
            (shortest, longest), rate, math.ceil(count / asked.parts), seed=2 * number + kind
        )
        seen.append(Seen.of(requests, await send(engines, requests)))
    if profile.wake and asked.rare:
        rate = 2 / profile.wake[-1].pause_s
        requests = sample(
            (shortest, longest), rate, math.ceil(asked.rare / asked.parts), seed=1000 + number
        )
        seen[0] = joined([seen[0], Seen.of(requests, await send(engines, requests))])
    return Part(*seen)


def told(
    profile: Profile, parts: Sequence[Part], *, apart: bool, say: Callable[[str], None]
) -> Profile:
    """Calibrated with all of them."""
    quiet, busy = joined([part.quiet for part in parts]), joined([part.busy for part in parts])
    profile = calibrated(profile, quiet, busy, apart=apart)
    found = profile.calibration_apart if apart else profile.calibration
    one_in_ten = [math.exp(NORMAL_90 * dev) for dev in (found.uneven_first, found.uneven_step)]
    say(f"in traffic{' of the pair' if apart else ''} prompts take {found.first:.2f} times as "
        f"long as in a row and {1e3 * found.first_s:+.1f} ms, steps {found.step:.2f} times, waking "
        f"{found.wake:.2f} times; one in ten {one_in_ten[0]:.2f} and {one_in_ten[1]:.2f} times the "
        "usual")  # fmt: skip
    return profile


async def ask(engines: Sequence[Prober], prompt: Sequence[int], tokens: int) -> list[float]:
    """When it was asked, then when each token came. With two engines as the gateway does it."""
    begun, more = time.perf_counter(), {}
    if len(engines) > 1:
        more["kv_transfer_params"] = (await engines[0].handed_over(prompt))[1]
    asked = engines[-1]
    times = await asked.token_times(asked.body(prompt, tokens, **more))
    return [begun, *times[1:]]


async def warm_up(
    engines: Sequence[Prober], lengths: Sequence[int], most: int, say: Callable[[str], None]
) -> int:
    """Requests of all lengths, one after the other: so many or `WARM_S` seconds of them.

    Kernels are built by shape, and memory comes from the system once: an engine that has served for
    a while is another one than it was.
    """
    until_s, count = time.monotonic() + WARM_S, 0
    for request in sample((lengths[0], lengths[-1]), 1.0, most, seed=most):
        if time.monotonic() > until_s:
            break
        await ask(engines, engines[0].prompt(request.prompt_tokens), WARM_TOKENS)
        count += 1
    if most:
        say(f"warmed up with {count} {'requests' if len(engines) == 1 else 'handoffs'}")
    return count


async def send(engines: Sequence[Prober], requests: Sequence[Request]) -> list[Sent]:
    """Every request at its time, from the first one's on."""
    prompts = [engines[0].prompt(request.prompt_tokens) for request in requests]
    for request in requests[:2]:
        # Wake the engines, and with other lengths: those that they have just seen they read faster.
        await ask(engines, engines[0].near(request.prompt_tokens, -0.5), WARM_TOKENS)
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
