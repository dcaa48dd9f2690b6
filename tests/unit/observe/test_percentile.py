"""A percentile is a value that was seen."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.observe.percentile import percentile

figures = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def test_a_percentile_is_a_value_that_was_seen() -> None:
    """Nearest rank: nothing is made up between two values."""
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1) == 100
    assert percentile([7.0], 0.99) == 7
    assert percentile([3.0, 1.0], 0) == 1


@given(figures, st.floats(0, 1))
def test_at_least_its_share_of_values_lies_below_a_percentile(
    values: list[float], share: float
) -> None:
    """The definition, whatever the values."""
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 1.5), ([1.0], -0.1)])
def test_a_percentile_of_nothing_is_refused(values: list[float], share: float) -> None:
    """No number is better than a wrong one."""
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, share)


@pytest.mark.parametrize("percent", range(1, 101))
def test_a_share_of_a_hundred_values_is_the_value_of_that_rank(percent: int) -> None:
    """Also where the floating-point product is a hair too large (0.07, 0.14, 0.29 …)."""
    assert percentile(range(1, 101), percent / 100) == percent


def test_what_never_came_is_a_value_too() -> None:
    """A request without a token counts as infinite, and nothing is made of it."""
    assert percentile([1.0, math.inf], 0.5) == 1.0
    assert percentile([1.0, math.inf], 0.99) == math.inf
