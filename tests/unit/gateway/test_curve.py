"""Seconds by prompt length: found, kept against outliers, and forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.gateway.curve import ENOUGH, OLDEST_S, SLOT_S, SLOTS, Curve, size_class

fixed_s = st.floats(0.0, 1.0)
per_token_s = st.floats(1e-6, 1e-3)
lengths = st.lists(st.integers(64, 100_000), min_size=ENOUGH, max_size=60)


def learned(points, *, curve=None, start=0.0):
    """A curve that has seen these (tokens, seconds), each in a slot of its own."""
    curve = curve or Curve()
    for n, (tokens, seconds) in enumerate(points):
        curve.add(start + n * SLOT_S * 1.5, tokens, seconds)
    return curve


@given(fixed_s, per_token_s, st.integers(0, 2**32))
def test_a_line_is_found(fixed, per_token, seed):
    """Fixed seconds and seconds a token, from prompts of several lengths."""
    draws = random.Random(seed)
    points = [(n := draws.randint(64, 20_000), fixed + per_token * n) for _ in range(30)]
    curve = learned(points)
    for tokens in (100, 1000, 10_000):
        assert curve.seconds(tokens) == pytest.approx(fixed + per_token * tokens, rel=0.05)


@given(fixed_s, per_token_s, lengths, st.integers(64, 50_000), st.integers(1, 50_000))
def test_longer_prompts_never_take_less(fixed, per_token, seen, tokens, more):
    """Whatever lengths were seen, as long as what was seen lay on a line."""
    curve = learned([(n, fixed + per_token * n) for n in seen])
    shorter, longer = curve.line_seconds(tokens), curve.line_seconds(tokens + more)
    assert 0 <= shorter <= longer
    assert curve.seconds(tokens) <= curve.seconds(tokens + more) * (1 + 1e-6)


def _moved(seed, odd, times, tokens):
    """How many times what is right the curve says after one measurement that is not."""
    draws = random.Random(seed)
    curve = learned([(n := draws.randint(64, 20_000), 0.01 + 1e-4 * n) for _ in range(20)])
    curve.add(100.0, odd, (0.01 + 1e-4 * odd) * times)
    return curve.seconds(tokens) / (0.01 + 1e-4 * tokens)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(2000, 20_000), st.floats(0.0, 1e4))
def test_one_odd_measurement_never_moves_it_twofold(seed, odd, times):
    """However odd it is. (The only short one among long ones may take the fixed part along.)"""
    for tokens in (2000, 10_000):
        assert 0.5 < _moved(seed, odd, times, tokens) < 2


@pytest.mark.parametrize("times", [0.0, 0.5, 2.0, 1e4])
def test_one_odd_measurement_hardly_moves_it_as_a_rule(times):
    """Of a hundred histories ninety-five stay within a twentieth: a choice needs a fifth."""
    moved = [_moved(seed, 2000, times, 2000) for seed in range(100)]
    assert sum(0.95 < one < 1.05 for one in moved) >= 95


@pytest.mark.parametrize("times", [0.02, 0.2, 5.0, 50.0])
def test_three_measurements_in_a_row_are_news(times):
    """Slower or faster: the next request is already predicted so."""
    curve = learned([(1000, 0.1)] * 30)
    learned([(1000, 0.1 * times)] * 3, curve=curve, start=100.0)
    assert curve.seconds(1000) == pytest.approx(0.1 * times, rel=0.1)


def test_what_comes_together_counts_once():
    """A hiccup that meets fifty requests at once is one odd measurement."""
    curve = learned([(1000, 0.1)] * 10)
    for n in range(50):
        curve.add(100.0 + n * SLOT_S / 60, 1000, 5.0)
    assert len(curve) == 11
    assert curve.seconds(1000) == pytest.approx(0.1)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 2**40), st.floats(0, 1e4)), max_size=200))
def test_memory_is_bounded_and_predictions_are_numbers(steps):
    """For any measurements at any distance."""
    curve, at = Curve(), 0.0
    for gap, tokens, seconds in steps:
        at += gap
        curve.add(at, tokens, seconds)
        assert 0 <= curve.seconds(tokens) < float("inf")
    assert len(curve) <= SLOTS
    assert len(curve._levels) <= 25


def test_old_measurements_go_and_the_last_stay():
    """A quiet night does not leave it knowing nothing."""
    curve = learned([(1000, 0.1)] * 30)
    curve.add(OLDEST_S + 100.0, 1000, 0.2)
    assert len(curve) == ENOUGH


def test_nothing_known_takes_no_time_and_is_not_believed():
    """Whoever asks has to look at `is_known`."""
    curve = Curve()
    assert (curve.is_known, curve.seconds(1000)) == (False, 0.0)
    assert learned([(64, 0.1)] * ENOUGH).is_known


def test_lengths_fall_into_few_classes():
    """An octave each."""
    assert [size_class(n) for n in (64, 127, 128, 2**40)] == [7, 7, 8, 24]
