"""Turns times of several sizes into a fixed cost and a speed. Pure.

    seconds = fixed + bytes / speed

The best time of each size counts: whatever disturbs a measurement adds to it. The slope is the
median of the slopes between all pairs of sizes (Theil 1950, Sen 1968), which one odd size does not
move. Where the sizes do not tell a slope (all times alike: the fixed cost is everything), there is
none, and what is left is a lower bound: the largest size by all of its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ENOUGH_SIZES = 3
RISES = 1.3
"""The largest size must take so many times as long as the smallest, or times tell no slope."""


@dataclass(frozen=True)
class Fit:
    """What so many units take: `fixed_s` and `per_unit_s`, each None where it cannot be told.

    `at_least_per_s` is the largest size by all of its time; the true speed is not below it.
    """

    fixed_s: float | None
    per_unit_s: float | None
    at_least_per_s: float | None

    @property
    def per_s(self) -> float | None:
        """Units a second, by the slope."""
        return None if self.per_unit_s is None else 1.0 / self.per_unit_s


def fit(points: Iterable[tuple[float, float]]) -> Fit:
    """Fit a line through (size, seconds).

    Args:
        points: In any order; sizes may stand several times.
    """
    best: dict[float, float] = {}
    for size, seconds in points:
        if size > 0 and seconds > 0:
            best[size] = min(seconds, best.get(size, seconds))
    if not best:
        return Fit(None, None, None)
    sizes = sorted(best)
    at_least = sizes[-1] / best[sizes[-1]]
    if len(sizes) < ENOUGH_SIZES or best[sizes[-1]] < RISES * best[sizes[0]]:
        return Fit(min(best.values()), None, at_least)
    slope = median((best[b] - best[a]) / (b - a) for a, b in combinations(sizes, 2))
    if slope <= 0:
        return Fit(min(best.values()), None, at_least)
    fixed = median(best[size] - slope * size for size in sizes)
    return Fit(max(0.0, fixed), slope, at_least)
