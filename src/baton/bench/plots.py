"""Plots as SVG, drawn here: a report is one file that needs no network and no plotting library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 62
# Told apart also by people who see no red or green (Okabe and Ito, "Color Universal Design").
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_POINTS = 240


@dataclass(frozen=True)
class Series:
    """A line: `points` are (x, y), in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]
    dots: bool = False


def distribution(name: str, values: Sequence[float]) -> Series:
    """How large a share of the values is below each, in milliseconds."""
    ordered = sorted(values)
    step = max(1, len(ordered) // _POINTS)
    count = len(ordered)
    kept = [*range(0, count, step), count - 1] if ordered else []
    return Series(name, [(ordered[at] * 1000, 100 * (at + 1) / count) for at in kept])


def chart(title: str, across: str, up: str, series: Sequence[Series], *, log: bool = False) -> str:
    """A line chart as an `<svg>` element; `log` for the x axis."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    xs = [x for one in drawn for x, _ in one.points]
    low_x, high_x = _bounds(xs, log=log)
    high_y = max(y for one in drawn for _, y in one.points) * 1.05 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        if log:
            share = (math.log10(max(x, low_x)) - math.log10(low_x)) / (
                math.log10(high_x) - math.log10(low_x)
            )
        else:
            share = (x - low_x) / (high_x - low_x)
        inner = _WIDTH - _LEFT - _RIGHT
        return _LEFT + share * inner, _HEIGHT - _BOTTOM - y / high_y * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text x="{_LEFT}" y="18" class="title">{escape(title)}</text>',
    ]
    for x in _ticks(low_x, high_x, log=log):
        at, base = place(x, 0)
        parts.append(f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{base:.1f}"/>')
        parts.append(f'<text x="{at:.1f}" y="{base + 15:.1f}" class="x">{x:g}</text>')
    for y in _ticks(0.0, high_y, log=False):
        _, at_y = place(low_x, y)
        parts.append(f'<line x1="{_LEFT}" y1="{at_y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at_y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at_y + 4:.1f}" class="y">{y:g}</text>')
    for number, one in enumerate(drawn):
        colour = _COLOURS[number % len(_COLOURS)]
        spots = [place(x, y) for x, y in one.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline points="{path}" stroke="{colour}"/>')
        if one.dots:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots
            ]
        at = _LEFT + number * 160
        parts.append(f'<rect x="{at}" y="{_HEIGHT - 16}" width="12" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{at + 18}" y="{_HEIGHT - 10}">{escape(one.name)}</text>')
    parts.append(
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 32}" class="y">{escape(across)}</text>'
    )
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="18" class="y">{escape(up)}</text>')
    return "".join([*parts, "</svg>"])


def _bounds(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        low = max(low, high / 1e6, 1e-6)
        high = max(high, low * 1.0001)
        return 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high) + 1e-9)
    return (low, high) if high > low else (low, low + 1)


def _ticks(low: float, high: float, *, log: bool) -> list[float]:
    if log:
        first, last = round(math.log10(low)), round(math.log10(high))
        return [10.0**power for power in range(first, last + 1)]
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= rough)
    first = math.ceil(low / step)
    return [round(at * step, 12) for at in range(first, math.floor(high / step) + 1)]
