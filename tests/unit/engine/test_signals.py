"""Signals: what a replica measures of itself while it serves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.engine.load import EngineCounts
from baton.engine.occupancy import Occupancy
from baton.engine.signals import Signals


class Engine:
    """A clock, an HTTP face and counts that a test moves by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.counts = EngineCounts()
        self.face = Occupancy(now=lambda: self.now_s)
        self.signals = Signals(
            lambda: self.counts, self.face.seen, now=lambda: self.now_s, slots=64
        )

    def prefill(self, size: int, tokens: int, seconds: float) -> None:
        """One prompt, alone, from its first byte to its answer."""
        self.face.begin(size)
        self.now_s += seconds
        self.counts = replace(self.counts, prompt_tokens=self.counts.prompt_tokens + tokens)
        self.face.end(size)

    def write(self, gaps: int, each_s: float) -> None:
        """Tokens of the sequences that are open."""
        self.counts = replace(
            self.counts,
            itl_sum_s=self.counts.itl_sum_s + gaps * each_s,
            itl_count=self.counts.itl_count + gaps,
        )


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_queued_tokens_are_the_bytes_that_wait_by_what_bytes_have_made_so_far(
    engine: Engine,
) -> None:
    """4,000 bytes made 1,000 tokens: the next 8,000 bytes are 2,000 tokens."""
    engine.prefill(size=4000, tokens=1000, seconds=0.5)
    engine.signals.look()
    engine.face.begin(8000)
    assert engine.signals.stats()["baton_queued_prompt_tokens"] == pytest.approx(2000)
    assert engine.signals.look().queued_prompt_tokens == 2000


def test_the_prefill_rate_counts_busy_time_only(engine: Engine) -> None:
    """An hour without work makes no engine slow."""
    engine.prefill(size=4000, tokens=1000, seconds=0.5)
    engine.now_s += 3600
    engine.signals.look()
    assert engine.signals.stats()["baton_prefill_tokens_per_s"] == pytest.approx(2000)


def test_a_prompt_that_takes_several_looks_keeps_the_time_of_all(engine: Engine) -> None:
    """Its tokens come with the last look, and the rate is not ten times too high."""
    engine.face.begin(4000)
    for _ in range(9):
        engine.now_s += 1
        engine.signals.look()
    engine.now_s += 1
    engine.counts = replace(engine.counts, prompt_tokens=1000)
    engine.face.end(4000)
    engine.signals.look()
    assert engine.signals.stats()["baton_prefill_tokens_per_s"] == pytest.approx(100)


def test_what_is_not_known_is_left_out(engine: Engine) -> None:
    """A zero would be taken for a measured one."""
    stats = engine.signals.stats()
    assert "baton_prefill_tokens_per_s" not in stats
    assert "baton_tpot_s" not in stats
    assert stats["baton_slots"] == 64


def test_an_idle_engine_says_no_gap(engine: Engine) -> None:
    """What it wrote a minute ago is not how it fares now."""
    engine.face.begin(10)
    engine.write(gaps=10, each_s=0.03)
    engine.now_s += 1
    engine.counts = replace(engine.counts, running=1)
    engine.signals.look()
    assert engine.signals.stats()["baton_tpot_s"] == pytest.approx(0.03)
    engine.counts = replace(engine.counts, running=0)
    assert "baton_tpot_s" not in engine.signals.stats()


def test_the_gap_of_a_lone_sequence_is_remembered_and_a_shared_one_is_not(engine: Engine) -> None:
    """It is what no number of engines can improve on."""
    engine.face.begin(10)
    engine.write(gaps=10, each_s=0.02)
    engine.now_s += 1
    engine.signals.look()
    engine.face.begin(10)
    engine.write(gaps=20, each_s=0.01)
    engine.now_s += 1
    engine.signals.look()
    assert engine.signals.stats()["baton_tpot_alone_s"] == pytest.approx(0.02)


def test_every_value_is_a_plain_number(engine: Engine) -> None:
    """Ray Serve turns the signals off for good when the first answer holds anything else."""
    engine.prefill(size=4000, tokens=1000, seconds=0.5)
    engine.signals.look()
    assert all(type(value) is float for value in engine.signals.stats().values())


def test_busy_time_is_counted_once_however_many_requests_share_it() -> None:
    """Two requests side by side for two seconds: two busy seconds, four of requests."""
    now = [0.0]
    face = Occupancy(now=lambda: now[0])
    face.begin(10)
    face.begin(20)
    now[0] = 2.0
    face.end(10)
    seen = face.seen()
    assert (seen.open_requests, seen.open_bytes, seen.done_bytes) == (1, 20, 10)
    assert (seen.busy_s, seen.request_s) == (2.0, 4.0)
