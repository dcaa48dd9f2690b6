"""The one percentile of all reports, plans and benches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence


_Value = TypeVar("_Value", int, float)


def percentile(values: Sequence[_Value], share: float, *, ordered: bool = False) -> _Value:
    """The smallest value that at least this share of all values does not exceed (nearest rank).

    A value that was seen, never one between two: the p99 of 20 values is their maximum. numpy's
    default, and with it vLLM's own report, goes linearly between the two nearest ranks, which makes
    up a value where there are few. Infinite ones are values like others.

    Args:
        values: In any unit.
        share: From 0 to 1.
        ordered: They are sorted already.

    Raises:
        ValueError: There are no values, or the share is none.
    """
    if not values or not 0 <= share <= 1:
        raise ValueError("a percentile needs values, and a share from 0 to 1")
    # 0.07 * 100 is a hair more than 7: that hair must not make it the eighth.
    rank = math.ceil(share * len(values) - 1e-9)
    return (values if ordered else sorted(values))[max(0, rank - 1)]
