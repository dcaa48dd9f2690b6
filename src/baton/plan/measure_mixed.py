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

from baton.plan.probe import REST_S, SPREAD, places
from baton.plan.profile_file import MixedPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton.plan.probe import Prober

ANSWERS, STEPS, PROMPTS = 2, 128, 4
"""Answers of so many tokens, and prompts that come one after the other beside them."""
CLEAR = 2.0
"""Gaps between tokens that differ by less say nothing."""


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


async def schedules_ahead(
    prober: Prober, points: Sequence[MixedPoint], budget: int, rounds: int,
    say: Callable[[str], None],
) -> bool | None:  # fmt: skip
    """Whether a step is put together while the one before it runs: vLLM's async scheduling.

    A prompt that comes while another is read shows it. In the next step the other has its second
    token; the prompt is read in that step, and the token waits for it, unless the step was put
    together already: then the third token waits. `points`: what prompts hold an engine up for.
    `budget`: tokens of a step. None where nothing tells it.
    """
    # Read in one step: between several there would be room for the other.
    fitting = [one for one in points if one.tokens * (1 + SPREAD) <= budget and one.seconds]
    if not fitting:
        say(f"whether steps are put together ahead is not told: no prompt fits {budget} tokens")
        return None
    longest = max(fitting, key=lambda one: one.tokens)

    async def comes_meanwhile(place: float) -> None:
        await asyncio.sleep(longest.seconds / 2)
        await prober.first_token(prober.near(longest.tokens, place))

    votes = 0
    for place in places(2 * rounds + 1):
        await asyncio.sleep(REST_S)
        body = prober.body(prober.near(longest.tokens, place), 4)
        other = comes_meanwhile(-place or 0.5)
        times, _ = await asyncio.gather(prober.token_times(body), other)
        votes += third_waits(times)
    if not votes:
        say("whether steps are put together ahead is not told: no token waits for a prompt")
        return None
    found = votes > 0
    say(f"steps are put together {'ahead' if found else 'one by one'}: async scheduling is "
        f"{'on' if found else 'off'}")  # fmt: skip
    return found


def third_waits(times: Sequence[float]) -> int:
    """1 where a stream's third token came late and not the second, -1 the other way round, or 0.

    `times`: when it was asked, then each token's time.
    """
    least = 4
    if len(times) < least:  # tokens that came in one piece
        return 0
    second_s, third_s = times[2] - times[1], times[3] - times[2]
    return (third_s > CLEAR * second_s) - (second_s > CLEAR * third_s)


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
