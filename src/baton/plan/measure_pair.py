"""Measures two engines together: the handoff between them, and what one costs the other.

A handoff is what makes the first token later than without P/D, less decode's own step: the prefill
leg beyond a prompt of one's own, decode's HTTP and scheduling, and KV's way. Decode had nothing to
do meanwhile and wakes for it; what that takes is taken off again, because the simulator adds it
where it is due.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import statistics
import time
from typing import TYPE_CHECKING

from baton.plan.costs import Wake
from baton.plan.measure_mixed import beside_answers
from baton.plan.probe import REST_S, places
from baton.plan.profile_file import BesideFound, HandoffPoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton.plan.probe import Prober
    from baton.plan.profile_file import WakePoint

_BYTES = re.compile(r"^vllm:nixl_bytes_transferred_sum(?:\{.*\})? (\S+)", re.MULTILINE)
_METRICS_WAIT_S = 10.0
_SHORT, HANDOFFS = 16, 3
"""Tokens of the prompts whose answers decode writes while KV comes, and how often it comes."""
STREAMS, STEPS = 4, 64
"""What decode does while prompts are read beside it."""


async def handoff(  # noqa: PLR0917 - two engines, what to ask, what is known
    prefill: Prober, decode: Prober, lengths: Sequence[int], rounds: int, step_s: float,
    wake: Sequence[WakePoint], say: Callable[[str], None],
) -> tuple[tuple[HandoffPoint, ...], float | None]:  # fmt: skip
    """Points, and the bytes a token by NIXL's own counter where the engine has it.

    Raises:
        MeasurementFailed: The first engine hands nothing over.
    """
    waking = Wake(tuple((point.pause_s, point.fixed_s, point.share) for point in wake))
    before, moved = _bytes(await decode.get("/metrics")) or 0.0, 0
    seconds: dict[int, list[float]] = {tokens: [] for tokens in lengths}
    awake: dict[int, list[float]] = {tokens: [] for tokens in lengths}
    asked_s = time.perf_counter()
    for place in (None, *places(rounds)):
        for tokens in lengths:
            await asyncio.sleep(REST_S)
            alone_s = await prefill.first_token(prefill.near(tokens, place or 0.0))
            # Nearly as long and yet another length.
            prompt = prefill.near(tokens, (place or 0.0) + 0.5 / rounds)
            await asyncio.sleep(REST_S)
            leg_s, params = await prefill.handed_over(prompt)
            pause_s = time.perf_counter() - asked_s
            times = await decode.token_times(decode.body(prompt, 2, kv_transfer_params=params))
            asked_s = time.perf_counter()
            first_s = times[1] - times[0]
            # Awake it would have been `usual`: usual + fixed + share x usual = first.
            fixed_s = waking.extra_s(pause_s, 0.0)
            share = waking.extra_s(pause_s, 1.0) - fixed_s
            usual_s = max(first_s - fixed_s, 0.0) / (1.0 + share)
            moved += len(prompt)
            if place is not None:
                seconds[tokens].append(max(leg_s - alone_s + usual_s - step_s, 0.0))
                awake[tokens].append(usual_s)
    points = []
    for tokens, found in seconds.items():
        usual_s = statistics.median(awake[tokens])
        busy, held, sent = await _into_busy(prefill, decode, tokens, rounds)
        moved += sent
        point = HandoffPoint(
            tokens=tokens, seconds=statistics.median(found), samples=len(found),
            busy_s=max(statistics.median(busy) - usual_s, 0.0) if busy else 0.0,
            holds_s=max(statistics.median(held), 0.0) if held else 0.0,
        )  # fmt: skip
        points.append(point)
        say(f"handoff {tokens} tokens: {1e3 * point.seconds:.1f} ms, and "
            f"{1e3 * point.busy_s:.1f} ms more into a busy engine, whose answers stand still for "
            f"{1e3 * point.holds_s:.1f} ms")  # fmt: skip
    return tuple(points), await _bytes_a_token(decode, before, moved)


async def _into_busy(
    prefill: Prober, decode: Prober, tokens: int, rounds: int
) -> tuple[list[float], list[float], int]:
    """First tokens of handoffs while decode writes answers, what each costs those, tokens sent.

    Prompts were read before, so that nothing but their KV comes meanwhile. Only those count that
    came before the answers ended: an engine without steps looks after its transfers at once.
    """
    found: list[float] = []
    held: list[float] = []
    sent = 0
    for place in places(rounds):
        alone = await beside_answers(decode, _SHORT, [])
        bodies = []
        for number in range(HANDOFFS):
            prompt = prefill.near(tokens, 0.8 * place + 0.1 * number - 0.1)
            sent += len(prompt)
            _, params = await prefill.handed_over(prompt)
            bodies.append(decode.body(prompt, 2, kv_transfer_params=params))
        beside = await beside_answers(decode, _SHORT, bodies)
        found += beside.first_s
        if beside.first_s:
            held.append((beside.seconds - alone.seconds) / len(beside.first_s))
    return found, held, sent


async def beside(
    prefill: Prober, decode: Prober, lengths: Sequence[int], rounds: int,
    say: Callable[[str], None],
) -> BesideFound:  # fmt: skip
    """How much longer prompts and steps take while the other engine is busy too."""
    tokens, around = lengths[min(1, len(lengths) - 1)], places(STREAMS)
    alone, together, steps, steps_beside = [], [], [], []
    for _ in range(rounds):
        steps.append(await _streams(decode, lengths[0]))
        alone += [await prefill.first_token(prefill.near(tokens, place)) for place in around]
        streams = asyncio.create_task(_streams(decode, lengths[0]))
        # The first is read while decode reads its own prompts.
        await prefill.first_token(prefill.prompt(tokens))
        for place in itertools.cycle(around):
            together.append(await prefill.first_token(prefill.near(tokens, place)))
            if streams.done():
                break
        del together[-1:]  # decode may have ended in it
        steps_beside.append(await streams)
    found = BesideFound(
        reading=_longer(alone, together), writing=_longer(steps, steps_beside),
        samples=len(together),
    )  # fmt: skip
    say(f"beside the other engine: prompts take {100 * found.reading:.0f} % longer, "
        f"steps {100 * found.writing:.0f} %")  # fmt: skip
    return found


async def _streams(decode: Prober, tokens: int) -> float:
    bodies = [decode.body(decode.prompt(tokens), STEPS) for _ in range(STREAMS)]
    begun = time.perf_counter()
    await asyncio.gather(*(decode.token_times(body) for body in bodies))
    return time.perf_counter() - begun


def _longer(alone: Sequence[float], together: Sequence[float]) -> float:
    if not alone or not together:
        return 0.0
    return max(statistics.median(together) / statistics.median(alone) - 1.0, 0.0)


async def _bytes_a_token(decode: Prober, before: float, tokens: int) -> float | None:
    """The counter is written a while after a transfer: wait until it stands still."""
    last, deadline = before, time.monotonic() + _METRICS_WAIT_S
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        now = _bytes(await decode.get("/metrics")) or before
        if now > before and now == last:
            return (now - before) / tokens
        last = now
    return None


def _bytes(page: str) -> float | None:
    found = _BYTES.findall(page)
    return sum(float(value) for value in found) if found else None
