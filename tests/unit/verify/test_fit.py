"""From times to a fixed cost and a speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.verify.fit import fit


@given(
    fixed=st.floats(0.0001, 1.0),
    slope=st.floats(1e-9, 1e-3),
    sizes=st.lists(st.integers(1, 10**6), min_size=3, max_size=8, unique=True),
)
def test_points_on_a_line_give_the_line_back(fixed: float, slope: float, sizes: list[int]) -> None:
    """Or, where all times are alike, no slope and a bound that holds."""
    found = fit([(size, fixed + slope * size) for size in sizes])
    assert found.at_least_per_s is not None
    assert found.at_least_per_s <= 1 / slope * (1 + 1e-6)
    if found.per_unit_s is not None:
        assert found.per_unit_s == pytest.approx(slope, rel=1e-3)
        assert found.fixed_s == pytest.approx(fixed, rel=1e-2, abs=slope)


def test_disturbed_rounds_do_not_count() -> None:
    """Noise only adds time: the best of each size is what the wire gives."""
    calm = [(n, 0.01 + n * 1e-6) for n in (1_000, 10_000, 100_000)]
    noisy = [(n, seconds * 9) for n, seconds in calm]
    assert fit([*noisy, *calm]) == fit(calm)


def test_one_odd_size_does_not_move_the_slope() -> None:
    """The median of all slopes, not the least squares."""
    points = [(n, 0.01 + n * 1e-6) for n in (10_000, 20_000, 30_000, 40_000, 50_000)]
    points[2] = (30_000, 0.5)
    assert fit(points).per_unit_s == pytest.approx(1e-6, rel=0.01)


def test_times_that_do_not_grow_tell_no_speed_but_a_bound() -> None:
    """The fixed cost is everything there."""
    found = fit([(1_000, 0.02), (10_000, 0.019), (100_000, 0.021)])
    assert found.per_s is None
    assert found.at_least_per_s == pytest.approx(100_000 / 0.021)


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(10, 0.0)]])
def test_nothing_measured_is_nothing_known(points: list[tuple[float, float]]) -> None:
    """No number is made up."""
    assert fit(points) == fit([])


def test_two_sizes_are_too_few_for_a_slope() -> None:
    """One odd time of two would be the whole slope."""
    assert fit([(1_000, 0.01), (100_000, 0.1)]).per_s is None
