"""Bars with the range of their rounds: what the pictures of bench/results/ have in common.

For the environment of requirements/bench.txt, which has matplotlib and not Baton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Bar(NamedTuple):
    """One subject: the median of its rounds, and the lowest and the highest."""

    name: str
    colour: str
    height: float
    low: float
    high: float


def draw(axes: Any, bars: Sequence[Bar], title: str) -> None:
    """A bar for each subject, its figure above it."""
    below = [max(0, bar.height - bar.low) for bar in bars]
    above = [max(0, bar.high - bar.height) for bar in bars]
    drawn = axes.bar(
        [bar.name for bar in bars],
        [bar.height for bar in bars],
        yerr=[below, above],
        capsize=4,
        color=[bar.colour for bar in bars],
    )
    axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.tick_params(axis="x", labelsize=7)
    axes.margins(y=0.2)
    axes.spines[["top", "right"]].set_visible(False)
