"""Rate after rate, until the targets break: how much load keeps its promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.errors import BenchFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from baton.bench.run import Measured

STEPS = 12
GROWTH = 1.5
ATTAINMENT = 0.95


@dataclass(frozen=True)
class Step:
    """One rate, in requests a second. `measured` is None where most requests failed."""

    rate: float
    measured: Measured | None
    held: bool
    problem: str = ""


async def sweep(
    measure_at: Callable[[float], Awaitable[Measured]],
    *,
    start: float,
    growth: float = GROWTH,
    attainment: float = ATTAINMENT,
    steps: int = STEPS,
    tell: Callable[[Step], None] = lambda _: None,
) -> list[Step]:
    """Measure growing rates until fewer than `attainment` of the requests meet the targets.

    Then one rate between the last that held and the first that did not.

    Args:
        measure_at: Measures one rate.
        start: The first rate.
        growth: What the rate is multiplied by.
        attainment: The share that must meet every target.
        steps: At most so many.
        tell: Hears of each.

    Raises:
        BenchFailed: The first rate could not be measured at all.
    """
    taken: list[Step] = []

    async def take(rate: float) -> Step:
        try:
            measured = await measure_at(rate)
        except BenchFailed as exc:
            if not taken:
                raise
            step = Step(rate, None, held=False, problem=exc.fact)
        else:
            share = measured.figures.attainment
            step = Step(rate, measured, held=share is not None and share >= attainment)
        taken.append(step)
        tell(step)
        return step

    rate = start
    while len(taken) < steps:
        if not (await take(rate)).held:
            break
        rate *= growth
    if len(taken) > 1 and not taken[-1].held:
        await take((taken[-2].rate * taken[-1].rate) ** 0.5)
    return sorted(taken, key=lambda step: step.rate)


def best(steps: list[Step]) -> Step | None:
    """The highest rate below the first that broke."""
    held = None
    for step in steps:
        if not step.held:
            break
        held = step
    return held
