"""Plots as SVG, drawn here: a report is one file that needs no network and no plotting library.

Latencies are drawn by percentile, with as much room from 99 to 99.9 as from 90 to 99: what users
complain of lies there, and a plain distribution hides it in its last pixel. Colours are classes
that the page's style fills in (`page`), so that they suit a light and a dark page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 560, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 18, 64, 50
_INNER_WIDTH, _INNER_HEIGHT = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
COLOURS = 6
_POINTS = 240
_MOST_DECADES = 6
_FEW_DECADES = 2
_LEGEND_STEP, _LEGEND_GAP = 7, 38
"""Pixels for a letter of the legend, about, and for what stands around a name."""

Scale = Literal["linear", "log", "percentile"]


@dataclass(frozen=True)
class Series:
    """A line: `points` are (x, y), in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


@dataclass(frozen=True)
class Axis:
    """What is measured along one side, in which unit, and how it is spread."""

    label: str
    scale: Scale = "linear"
    low: float = 0.0
    high: float = 1.0

    def share(self, value: float) -> float:
        """Where a value lies, 0 to 1."""
        low, high, at = (self._spread(v) for v in (self.low, self.high, value))
        return min(1.0, max(0.0, (at - low) / (high - low)))

    def _spread(self, value: float) -> float:
        if self.scale == "log":
            return math.log10(max(value, self.low))
        if self.scale == "percentile":
            return -math.log10(1 - min(value, self.high) / 100)
        return value

    def ticks(self) -> list[tuple[float, str]]:
        """Round values and their texts."""
        if self.scale == "percentile":
            marks = [(0.0, "0"), (50.0, "p50"), (90.0, "p90"), (99.0, "p99"), (99.9, "p99.9")]
            marks.append((99.99, "p99.99"))
            return [(value, text) for value, text in marks if value <= self.high]
        values = self._decades() if self.scale == "log" else _round_steps(self.low, self.high)
        return [(value, number(value)) for value in values]

    def _decades(self) -> list[float]:
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        within = (1, 2, 5) if last - first <= _FEW_DECADES else (1,)
        every = [10.0**power * times for power in range(first, last + 1) for times in within]
        return [value for value in every if value <= self.high * 1.0001]


@dataclass(frozen=True)
class Target:
    """A line across: what was promised."""

    name: str
    value: float


@dataclass(frozen=True)
class Chart:
    """What is drawn: lines over two axes, whose ranges fit what there is."""

    title: str
    across: str
    up: str
    series: Sequence[Series]
    across_scale: Scale = "linear"
    up_scale: Scale = "linear"
    targets: Sequence[Target] = field(default_factory=tuple)

    def svg(self) -> str:
        """An `<svg>` element; empty where there is nothing to draw."""
        drawn = [one for one in self.series if one.points]
        if not drawn:
            return ""
        across = _axis(self.across, self.across_scale, [x for one in drawn for x, _ in one.points])
        heights = [y for one in drawn for _, y in one.points]
        up = _axis(self.up, self.up_scale, [*heights, *(one.value for one in self.targets)])

        def place(x: float, y: float) -> tuple[float, float]:
            return (
                _LEFT + across.share(x) * _INNER_WIDTH,
                _HEIGHT - _BOTTOM - up.share(y) * _INNER_HEIGHT,
            )

        parts = [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.title)}">',
            f'<text x="{_LEFT}" y="18" class="title">{escape(self.title)}</text>',
            *_legend(drawn),
        ]
        base, right, centre = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _TOP + _INNER_HEIGHT / 2
        for value, text in across.ticks():
            x, _ = place(value, up.low)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{base}"/>')
            parts.append(f'<text x="{x:.1f}" y="{base + 16}" class="mid">{text}</text>')
        for value, text in up.ticks():
            _, y = place(across.low, value)
            parts.append(_across("grid", y))
            parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" class="end">{text}</text>')
        parts.append(
            f'<polyline class="axis" points="{_LEFT},{_TOP} {_LEFT},{base} {right},{base}"/>'
        )
        for target in self.targets:
            _, y = place(across.low, target.value)
            beside = y + 14 if y < _TOP + 20 else y - 5
            words = f'<text class="promise" x="{_LEFT + 6}" y="{beside:.1f}">{escape(target.name)}'
            parts += [_across("target", y), f"{words}</text>"]
        for at, one in enumerate(drawn):
            spots = [place(x, y) for x, y in one.points]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
            parts.append(f'<polyline class="c{at % COLOURS}" points="{path}"/>')
            if one.dots:
                parts += [
                    f'<circle class="c{at % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
                    for x, y in spots
                ]
        for x, y, more, text in (
            (_LEFT + _INNER_WIDTH / 2, _HEIGHT - 12, "", across.label),
            (14, centre, f' transform="rotate(-90 14 {centre:.0f})"', up.label),
        ):
            at_xy = f'x="{x:.0f}" y="{y:.0f}"'
            parts.append(f'<text {at_xy} class="mid label"{more}>{escape(text)}</text>')
        return "".join([*parts, "</svg>"])


def by_percentile(name: str, values: Sequence[float]) -> Series:
    """Values by their percentile, in milliseconds: (0 to just below 100, ms)."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return Series(name, [])
    # As many points in each tenth of what is left: the tail has few values, and is wide.
    deepest = math.log10(count)
    ranks = {
        min(count - 1, math.floor(count * (1 - 10 ** (-deepest * at / _POINTS))))
        for at in range(_POINTS + 1)
    }
    return Series(name, [(100 * rank / count, ordered[rank] * 1000) for rank in sorted(ranks)])


def _across(kind: str, y: float) -> str:
    return f'<line class="{kind}" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>'


def _legend(drawn: Sequence[Series]) -> list[str]:
    """One row, or two when the names need them."""
    widths = [_LEGEND_GAP + _LEGEND_STEP * len(one.name) for one in drawn]
    two = sum(widths) > _INNER_WIDTH
    parts, x, y = [], float(_LEFT), 36 if two else 40
    for place, (one, width) in enumerate(zip(drawn, widths, strict=True)):
        if x + width > _WIDTH - _RIGHT and x > _LEFT:
            x, y = float(_LEFT), y + 16
        colour = f"c{place % COLOURS}"
        parts.append(f'<line class="{colour}" x1="{x:.0f}" y1="{y}" x2="{x + 16:.0f}" y2="{y}"/>')
        parts.append(f'<text x="{x + 22:.0f}" y="{y + 4}">{escape(one.name)}</text>')
        x += width
    return parts


def _axis(label: str, scale: Scale, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    if scale == "percentile":
        return Axis(label, scale, 0.0, max(high, 90.0))
    if scale == "log":
        low = max(low, high / 10**_MOST_DECADES, 1e-6)
        high = max(high, low * 1.0001)
        first = 10 ** math.floor(math.log10(low) + 1e-9)
        # Up to the next of 1, 2, 5: a whole decade would leave half of the picture empty.
        last = 10 ** math.floor(math.log10(high) + 1e-9)
        last = next(last * times for times in (1, 2, 5, 10) if last * times >= high * 0.9999)
        return Axis(label, scale, first, max(last, first * 10))
    return Axis(label, scale, min(0.0, low), max(high, 0.0) * 1.05 or 1.0)


def _round_steps(low: float, high: float) -> list[float]:
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough)
    first = math.ceil(low / step)
    return [round(at * step, 12) for at in range(first, math.floor(high / step) + 1)]


def number(value: float) -> str:
    """Three digits that count, and no exponent: 0.0423, 4.2, 42, 1,820."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    digits = max(0, 3 - whole) if whole else 2 - math.floor(math.log10(abs(value)))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
