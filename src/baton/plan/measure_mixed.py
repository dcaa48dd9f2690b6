"""Measures what a prompt costs answers that are running on the same engine.

Such a step reads the prompt and writes a token for each answer; what it takes longer than a step of
the answers alone is what they lose, and what keeps the next prompt waiting. The rest of a first
token's time (HTTP, tokenizing) keeps nobody else.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass
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
            alone = await beside_answers(prober, lengths[0], [])
            prompts = [prober.near(tokens, 0.8 * place + 0.1 * n - 0.2) for n in range(PROMPTS)]
            beside = await beside_answers(
                prober, lengths[0], [prober.body(prompt, 1) for prompt in prompts]
            )
            found[tokens].append((beside.seconds - alone.seconds) / PROMPTS)
    points = []
    for tokens, seconds in found.items():
        point = MixedPoint(
            tokens=tokens, seconds=max(statistics.median(seconds), 0.0), samples=len(seconds)
        )
        points.append(point)
        say(f"a prompt of {tokens} tokens holds answers up for {1e3 * point.seconds:.1f} ms")
    return tuple(points)


@dataclass(frozen=True)
class Beside:
    """What answers took, and requests that came one after the other beside them."""

    seconds: float
    """From the last answer's first token until all answers were whole."""
    first_s: tuple[float, ...]
    """First tokens of the requests that had one before that."""


async def beside_answers(prober: Prober, tokens: int, bodies: Sequence[dict[str, Any]]) -> Beside:
    """Answers to prompts of so many tokens, and requests beside them."""
    begun = [asyncio.Event() for _ in range(ANSWERS)]
    answers = [
        asyncio.create_task(prober.token_times(prober.body(prober.prompt(tokens), STEPS), event))
        for event in begun
    ]
    waits: asyncio.Future[Any] = asyncio.gather(*(event.wait() for event in begun))
    either: tuple[asyncio.Future[Any], ...] = (waits, *answers)
    done, _ = await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if waits not in done:  # an answer that failed sets nothing
        waits.cancel()
        await asyncio.gather(*answers)
    asked = [await prober.token_times(body) for body in bodies]
    streams = await asyncio.gather(*answers)
    over = max(times[-1] for times in streams)
    return Beside(
        over - max(times[1] for times in streams),
        tuple(times[1] - times[0] for times in asked if times[1] < over),
    )
