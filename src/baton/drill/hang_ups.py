"""200 callers hang up at random moments, while others are served."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from baton.drill.client import OK, Client
from baton.drill.judge import Judged, is_beginning, judge

if TYPE_CHECKING:
    from baton.drill.asks import Case
    from baton.drill.client import Seen
    from baton.drill.stage import Stage

HANG_UPS = 200
_AT_ONCE = 25
_TRIES = 10 * HANG_UPS
"""An engine that was busy when the cases were asked answers sooner now, before the moment comes."""


async def hang_ups(stage: Stage) -> None:
    rng = random.Random(stage.seed)  # noqa: S311  (no secret)
    judged: list[Judged] = []
    early = hung_up = 0
    async with (
        stage.load(streamed=4, plain=2) as load,
        Client([stage.injector.endpoint], headers=stage.headers) as client,
    ):
        places = asyncio.Semaphore(_AT_ONCE)

        async def one() -> None:
            nonlocal early, hung_up
            async with places:
                if hung_up >= HANG_UPS:
                    return
                case = rng.choice(stage.cases)
                after_s, late = _moment(rng, case)
                seen, was_open = await client.hang_up(
                    case.ask, after_s=after_s, from_first_byte=late
                )
            if was_open:
                hung_up += 1
                early += seen.status == 0
                judged.append(_judge_beginning(case, seen))
            else:
                judged.append(judge(case, seen))

        # Some answers end before the moment comes; those are no hang-ups.
        await asyncio.gather(*(one() for _ in range(_TRIES)))
        stage.need(hung_up >= HANG_UPS, f"only {hung_up} callers hung up in time")
        stage.struck(f"{hung_up} callers hung up, {early} of them before an answer had begun")
        stage.note("hang_ups", hung_up)
        await stage.watch(load, at_least=4)
    stage.count_hang_ups(judged)


def _moment(rng: random.Random, case: Case) -> tuple[float, bool]:
    """When to hang up, and whether that counts from the first byte.

    Half of the moments lie before the first byte, where the KV changes hands; half behind it.
    """
    seen = case.expected
    first = (seen.first_byte_at or seen.ended_at) - seen.sent_at
    rest = seen.ended_at - seen.sent_at - first
    late = case.ask.streamed and rng.random() < 0.5  # noqa: PLR2004
    return rng.uniform(0, rest if late else first), late


def _judge_beginning(case: Case, seen: Seen) -> Judged:
    """A caller who hung up lost nothing, but what he had read must be right."""
    if seen.status not in (0, OK):
        return Judged(case, seen, "error", f"status {seen.status}: {seen.fault}")
    if seen.fault:
        return Judged(case, seen, "broken", seen.fault)
    if not is_beginning(case.expected, seen):
        return Judged(case, seen, "mismatch", f"{seen.text[-20:]!r} at {len(seen.text)}")
    return Judged(case, seen, "right", "")
