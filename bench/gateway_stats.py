"""The arithmetic of bench/gateway.py: no clock, no process, no network."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Spread:
    """A figure of several rounds: their median, and how far they lie apart."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Spread:
        """Of one figure for each round.

        Raises:
            ValueError: There is no round.
        """
        if not rounds:
            raise ValueError("a spread needs at least one round")
        return cls(statistics.median(rounds), min(rounds), max(rounds))

    def rounded(self, digits: int) -> list[float]:
        """Lowest and highest, for the report."""
        return [round(self.low, digits), round(self.high, digits)]


def differences(of: Sequence[float], base: Sequence[float]) -> list[float]:
    """What each round adds to the base of the same round."""
    return [value - below for value, below in zip(of, base, strict=True)]


def ratios(of: Sequence[float], to: Sequence[float]) -> list[float]:
    """Each round's figure to another one's of the same round."""
    return [value / other for value, other in zip(of, to, strict=True)]


@dataclass(frozen=True)
class Work:
    """What one process tree did in one window.

    Args:
        cpu_s: User and system time, the idle share already taken off.
        requests: Answered.
        chunks: Tokens' events that it passed on.
    """

    cpu_s: float
    requests: int
    chunks: int


def cost(short: Work, long: Work) -> tuple[float, float]:
    """CPU microseconds a request, and a streamed chunk, from answers of two lengths.

    Both windows follow `cpu = requests * r + chunks * c`; the two unknowns are solved for. What a
    request costs holds everything but its chunks, the first one's share included.

    Raises:
        ValueError: The answers are equally long, or there were none.
    """
    if not short.requests or not long.requests:
        raise ValueError("a window without requests says nothing")
    each_short, each_long = short.chunks / short.requests, long.chunks / long.requests
    if each_long <= each_short:
        raise ValueError("the long answers are not longer than the short ones")
    short_s, long_s = short.cpu_s / short.requests, long.cpu_s / long.requests
    chunk_s = (long_s - short_s) / (each_long - each_short)
    return 1e6 * (short_s - each_short * chunk_s), 1e6 * chunk_s
