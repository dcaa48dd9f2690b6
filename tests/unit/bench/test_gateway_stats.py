"""The bench's arithmetic says what its names say."""

from __future__ import annotations

import gateway_stats as stats
import pytest
from hypothesis import given
from hypothesis import strategies as st

figures = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def test_a_spread_is_the_median_between_the_lowest_and_the_highest_round() -> None:
    """One wild round moves the spread, not the figure."""
    found = stats.Spread.of([1.0, 90.0, 2.0])
    assert (found.median, found.low, found.high) == (2, 1, 90)
    assert found.rounded(0) == [1, 90]
    with pytest.raises(ValueError, match="round"):
        stats.Spread.of([])


def test_rounds_are_compared_with_their_own_round() -> None:
    """What the machine did in one round touches both sides of it."""
    assert stats.differences([3.0, 30.0], [1.0, 28.0]) == [2, 2]
    assert stats.ratios([4.0, 40.0], [2.0, 20.0]) == [2, 2]
    with pytest.raises(ValueError, match="zip"):
        stats.ratios([1.0], [1.0, 2.0])


@given(
    st.floats(1, 1e5), st.floats(0.1, 1e4), st.integers(1, 5000), st.integers(1, 20),
    st.integers(21, 500),
)  # fmt: skip
def test_two_answer_lengths_tell_request_and_chunk_apart(
    request_us: float, chunk_us: float, count: int, short: int, long: int
) -> None:
    """A process that costs so much a request and a chunk is found to cost just that."""

    def work(requests: int, each: int) -> stats.Work:
        cpu_s = 1e-6 * requests * (request_us + each * chunk_us)
        return stats.Work(cpu_s, requests, requests * each)

    found = stats.cost(work(count, short), work(2 * count, long))
    assert found == (pytest.approx(request_us, rel=1e-3, abs=1), pytest.approx(chunk_us, rel=1e-3))


def test_answers_of_one_length_tell_nothing_apart() -> None:
    """Two unknowns need two equations."""
    with pytest.raises(ValueError, match="longer"):
        stats.cost(stats.Work(1, 10, 10), stats.Work(2, 20, 20))
    with pytest.raises(ValueError, match="without requests"):
        stats.cost(stats.Work(1, 0, 0), stats.Work(2, 20, 20))
