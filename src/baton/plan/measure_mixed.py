"""Measures what a prompt costs answers that are running on the same engine.

Such a step reads the prompt and writes a token for each answer; what it takes longer than a step of
the answers alone is what they lose, and what keeps the next prompt waiting. The rest of a first
token's time (HTTP, tokenizing) keeps nobody else.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any

from baton.plan.probe import places
from baton.plan.profile_file import MixedPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton.plan.probe import Prober

ANSWERS, STEPS, PROMPTS = 2, 128, 4
"""Answers of so many tokens, and prompts that come one after the other beside them."""


async def mixed(
    prober: Prober, lengths: Sequence[int], rounds: int, say: Callable[[str], None]
) -> tuple[MixedPoint, ...]:
    """By the time that answers take longer in all, for each prompt."""
    found: dict[int, list[float]] = {tokens: [] for tokens in lengths}
    for place in places(rounds):
        for tokens in lengths:
            alone = await _answers(prober, lengths[0], [])
            prompts = [prober.near(tokens, 0.8 * place + 0.1 * n - 0.2) for n in range(PROMPTS)]
            beside = await _answers(prober, lengths[0], prompts)
            found[tokens].append((beside - alone) / PROMPTS)
    points = []
    for tokens, seconds in found.items():
        point = MixedPoint(
            tokens=tokens, seconds=max(statistics.median(seconds), 0.0), samples=len(seconds)
        )
        points.append(point)
        say(f"a prompt of {tokens} tokens holds answers up for {1e3 * point.seconds:.1f} ms")
    return tuple(points)


async def _answers(prober: Prober, tokens: int, prompts: Sequence[Sequence[int]]) -> float:
    """Seconds from the first answer's first token until all are whole."""
    begun = [asyncio.Event() for _ in range(ANSWERS)]
    bodies = [prober.body(prober.prompt(tokens), STEPS) for _ in begun]
    answers = [
        asyncio.create_task(prober.token_times(body, event))
        for body, event in zip(bodies, begun, strict=True)
    ]
    waits: asyncio.Future[Any] = asyncio.gather(*(event.wait() for event in begun))
    either: tuple[asyncio.Future[Any], ...] = (waits, *answers)
    done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if waits not in done:  # an answer that failed sets nothing
        waits.cancel()
        await asyncio.gather(*answers)
    since = time.perf_counter()
    for prompt in prompts:
        await prober.first_token(prompt)
    times = await asyncio.gather(*answers)
    return max(one[-1] for one in times) - since
