"""Seconds by prompt length, learned while they happen: `seconds = fixed + per_token x tokens`.

Two things are kept apart, because they change at different speeds:

- the **line**: fixed and per-token seconds, fitted over the last minutes. It needs prompts of
  several lengths, so it needs many measurements.
- the **level**: how many times the line things take now. A transport that turns slow, or a queue
  that grows, moves it within three measurements; a single odd one does not move it.

Both are robust. The line minimises the sum of relative deviations (L1, by iteratively reweighted
least squares: Schlossmacher, JASA 68, 1973), the level is a weighted median.

Measurements that come within a fifth of a second are averaged into one: on a line the mean of
points lies on it too, and a hiccup that meets fifty requests at once counts once. So the work of
learning is bounded however many requests there are, and memory is `SLOTS` means.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SLOT_S = 0.2
SLOTS = 40
ENOUGH = 6
"""Slots from which on it is believed. With fewer, one odd measurement could be the median."""
LINE_HALF_LIFE = 16.0
"""Slots after which a measurement counts half for the line."""
LEVEL_HALF_LIFE = 2.5
"""The same for the level: the last three outweigh all before them, the last two do not."""
LEVEL_SLOTS = 12
OLDEST_S = 600.0
_STEPS = 5
_NARROW = 0.02
"""Lengths that vary less than this (variance by squared mean) tell nothing of the slope."""
_TINY_S = 1e-6


class _Slot:
    """The mean of what came at about the same time."""

    __slots__ = ("at", "count", "seconds", "tokens")

    def __init__(self, at: float, tokens: float, seconds: float) -> None:
        self.at, self.tokens, self.seconds, self.count = at, tokens, seconds, 1

    def add(self, tokens: float, seconds: float) -> None:
        self.count += 1
        self.tokens += (tokens - self.tokens) / self.count
        self.seconds += (seconds - self.seconds) / self.count


def size_class(tokens: float) -> int:
    """Prompts whose length differs less than twofold are of one class."""
    return min(24, int(tokens).bit_length())


class Curve:
    """What so many tokens take."""

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque(maxlen=SLOTS)
        self._line = (0.0, 0.0)
        self._levels: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def is_known(self) -> bool:
        """Whether there are measurements enough to believe it."""
        return len(self._slots) >= ENOUGH

    def add(self, at: float, tokens: float, seconds: float) -> None:
        """Learn a measurement.

        Args:
            at: When it was made, in seconds on a clock that never goes back.
            tokens: Of the prompt.
            seconds: That it took.
        """
        slots = self._slots
        if slots and at - slots[-1].at < SLOT_S:
            slots[-1].add(tokens, seconds)
        else:
            slots.append(_Slot(at, tokens, seconds))
            # What is old goes, but for the last that is known.
            while len(slots) > ENOUGH and at - slots[0].at > OLDEST_S:
                slots.popleft()
            self._line = _fitted(slots)
        self._levels.clear()

    def seconds(self, tokens: float, above: Sequence[float] = ()) -> float:
        """What so many tokens take now; 0 while nothing was measured.

        Args:
            tokens: Of the prompt.
            above: Ratios to the line that measurements under way have passed already.
        """
        return self._level(tokens, above) * self.line_seconds(tokens)

    def line_seconds(self, tokens: float) -> float:
        """What the line alone says."""
        fixed, per_token = self._line
        return fixed + per_token * tokens

    def parts(self, tokens: float, above: Sequence[float] = ()) -> tuple[float, float]:
        """Fixed seconds and seconds a token, as they are now for prompts of about this length."""
        level = self._level(tokens, above)
        return level * self._line[0], level * self._line[1]

    def _level(self, tokens: float, above: Sequence[float]) -> float:
        klass = size_class(tokens)
        if above:
            return self._median_ratio(klass, above)
        level = self._levels.get(klass)
        if level is None:
            level = self._levels[klass] = self._median_ratio(klass, ())
        return level

    def _median_ratio(self, klass: int, above: Sequence[float]) -> float:
        ratios = [(ratio, _FADES[k]) for k, ratio in enumerate(above[:LEVEL_SLOTS])]
        for slot in reversed(self._slots):
            k = len(ratios)
            if k >= LEVEL_SLOTS:
                break
            # Other lengths say less of this one, and never so little that a single measurement
            # of a rare length decides for it.
            near = max(0.6, 2.0 ** (-abs(size_class(slot.tokens) - klass) / 2))
            line = max(self.line_seconds(slot.tokens), _TINY_S)
            ratios.append((slot.seconds / line, _FADES[k] * near))
        return _weighted_median(ratios)


_FADES = tuple(2.0 ** (-k / LEVEL_HALF_LIFE) for k in range(LEVEL_SLOTS))
_LINE_FADES = tuple(2.0 ** (-k / LINE_HALF_LIFE) for k in range(SLOTS))


def _weighted_median(weighted: list[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        half -= weight
        if half <= 0:
            return value
    return 1.0


def _fitted(slots: Sequence[_Slot]) -> tuple[float, float]:
    """The line through the slots: least sum of |deviation| relative to the line, newest most."""
    points = [
        (slot.tokens, max(slot.seconds, _TINY_S), fade)
        for slot, fade in zip(reversed(slots), _LINE_FADES, strict=False)
    ]
    # Begins at the middle of all: from a start that one odd point has pulled there is no way back.
    line = (0.0, _weighted_median([(y / max(n, 1.0), w) for n, y, w in points]))
    for _ in range(_STEPS):
        reweighted = []
        for n, y, w in points:
            at = max(line[0] + line[1] * n, _TINY_S)
            reweighted.append((n, y, w / (at * max(abs(y - at), 0.02 * at))))
        line = _least_squares(reweighted)
    return line


def _least_squares(points: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Weighted, with neither part below zero: nothing takes less than no time."""
    w = wn = wnn = wy = wny = 0.0
    for n, y, weight in points:
        w += weight
        wn += weight * n
        wnn += weight * n * n
        wy += weight * y
        wny += weight * n * y
    spread = w * wnn - wn * wn
    if spread <= _NARROW * wn * wn:
        return (0.0, wy / wn) if wn > 0 else (wy / w, 0.0)
    per_token = (w * wny - wn * wy) / spread
    if per_token < 0:
        return wy / w, 0.0
    fixed = (wy - per_token * wn) / w
    return (fixed, per_token) if fixed >= 0 else (0.0, wny / wnn)
