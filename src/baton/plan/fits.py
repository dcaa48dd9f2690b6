"""Lines through measured points: what `profile.json` comes to as costs."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.plan.profile_file import DecodePoint, PrefillPoint

_CLEAR, _ENOUGH = 1.5, 3
"""Times the least first token, from which on tokens are what takes the time; and so many lengths
are enough for a line with pairs."""


def handoff_line(tokens: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """(fixed, seconds a token).

    Each is a difference of times, so it may come out as nothing by chance: what is below a tenth of
    the largest is missed by a share of that tenth, and not by one of itself.
    """
    least = max(seconds) / 10
    if least == 0:
        return 0.0, 0.0
    fixed, each = least_squares([[1.0] * len(tokens), list(tokens)], seconds, least)
    return fixed, each


class PrefillCurve(NamedTuple):
    """What first tokens take, in seconds: `fixed_s + token_s x n + pair_s x n^2 / 2`."""

    fixed_s: float
    further_s: float
    """More, for each further prompt that comes together with the first."""
    token_s: float
    pair_s: float


def prefill_curve(points: Sequence[PrefillPoint]) -> PrefillCurve:
    """By relative error, none of them negative; from prompts that came alone.

    Prompts that come together wait for each other at the API server, and seldom for one step: what
    they take longer is neither tokens nor pairs.
    """
    alone = [p for p in points if p.batch == 1] or list(points)
    # Below, a GPU's step takes its launch whatever it reads: no one line goes through both.
    clear_s = _CLEAR * min(p.seconds for p in alone)
    clear = [p for p in alone if p.seconds >= clear_s]
    chosen = clear if len({p.tokens for p in clear}) >= _ENOUGH - 1 else alone
    columns = [[1.0] * len(chosen), [float(p.tokens * p.batch) for p in chosen],
               [p.batch * p.tokens**2 / 2 for p in chosen]]  # fmt: skip
    if len({p.tokens for p in chosen}) < _ENOUGH:
        del columns[-1]
    found = [*least_squares(columns, [p.seconds for p in chosen]), 0.0][:3]
    fixed_s, token_s, pair_s = found
    further = [
        (p.seconds - fixed_s - token_s * p.tokens * p.batch - pair_s * p.batch * p.tokens**2 / 2)
        / (p.batch - 1)
        for p in points
        if p.batch > 1
    ]
    further_s = max(statistics.median(further), 0.0) if further else 0.0
    return PrefillCurve(fixed_s, further_s, token_s, pair_s)


def decode_line(points: Sequence[DecodePoint]) -> tuple[Line, float]:
    """(base seconds by batch, seconds a token of context of a sequence).

    The context's part is what steps of one batch differ by between contexts.
    """
    spans = []
    for batch in sorted({p.batch for p in points}):
        same = sorted((p.context, p.step_s) for p in points if p.batch == batch)
        if same[0][0] < same[-1][0]:
            rise = (same[-1][1] - same[0][1]) / (batch * (same[-1][0] - same[0][0]))
            # The more sequences, the more of the step is context: they say most about it.
            spans.append((batch, max(rise, 0.0)))
    context_s = sum(b * rise for b, rise in spans) / sum(b for b, _ in spans) if spans else 0.0
    table: dict[int, list[float]] = {}
    for p in points:
        table.setdefault(p.batch, []).append(p.step_s - context_s * p.batch * p.context)
    knots = [(b, max(sum(v) / len(v), 0.0)) for b, v in sorted(table.items())]
    return Line(knots), context_s


def ascending(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """With neighbours that fall brought to their mean: the nearest line that never falls."""
    blocks: list[tuple[list[int], float]] = []
    for at, value in points:
        blocks.append(([at], value))
        while len(blocks) > 1 and blocks[-2][1] > blocks[-1][1]:
            (few, low), (more, high) = blocks[-2], blocks[-1]
            total = len(few) + len(more)
            blocks[-2:] = [([*few, *more], (low * len(few) + high * len(more)) / total)]
    return [(at, value) for places, value in blocks for at in places]


class Line:
    """Linear between knots, and on beyond the last."""

    def __init__(self, knots: Sequence[tuple[int, float]]) -> None:
        self._knots = list(knots)

    def __call__(self, at: int) -> float:
        knots = self._knots
        if at <= knots[0][0] or len(knots) == 1:
            return knots[0][1]
        right = next((i for i, (x, _) in enumerate(knots) if x >= at), len(knots) - 1)
        (x0, y0), (x1, y1) = knots[right - 1], knots[right]
        slope = max((y1 - y0) / (x1 - x0), 0.0) if at > x1 else (y1 - y0) / (x1 - x0)
        return y0 + (y1 - y0) * (at - x0) / (x1 - x0) if at <= x1 else y1 + slope * (at - x1)


def least_squares(
    columns: Sequence[Sequence[float]], goal: Sequence[float], least: float = 0.0
) -> list[float]:
    """Coefficients of 0 or more with the least relative error; of `least` where a goal is below.

    Those that come out negative are left out one by one: there are four at most.
    """
    active = list(range(len(columns)))
    scales = [max(y, least) for y in goal]
    shares = [y / scale for y, scale in zip(goal, scales, strict=True)]
    rows = [[x / scale for x, scale in zip(column, scales, strict=True)] for column in columns]
    while True:
        found = _solve([rows[i] for i in active], shares)
        worst = min(range(len(active)), key=lambda i: found[i])
        if found[worst] >= 0 or len(active) == 1:
            break
        del active[worst]
    result = [0.0] * len(columns)
    for position, i in enumerate(active):
        result[i] = max(found[position], 0.0)
    return result


def _solve(rows: Sequence[Sequence[float]], goal: Sequence[float]) -> list[float]:
    """Normal equations, by elimination with pivots; columns are scaled first."""
    scales = [math.sqrt(sum(x * x for x in row)) or 1.0 for row in rows]
    scaled = [[x / s for x in row] for row, s in zip(rows, scales, strict=True)]
    size = len(scaled)
    matrix = [
        [sum(a * b for a, b in zip(scaled[i], scaled[j], strict=True)) for j in range(size)]
        + [sum(a * b for a, b in zip(scaled[i], goal, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda r: abs(matrix[r][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        if abs(matrix[i][i]) < 1e-12:  # noqa: PLR2004 - columns are of length 1
            matrix[i][i] = 1e-12
        for r in range(size):
            if r != i:
                factor = matrix[r][i] / matrix[i][i]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] / scales[i] for i in range(size)]
