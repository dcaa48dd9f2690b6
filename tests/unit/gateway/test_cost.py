"""The cost model: what it chooses, when it turns, when it comes back, and that it does not flap."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.gateway.cost import DWELL_S, OPEN, OUTCOME_LIVES_S, CostModel, break_even

READ = 25e-6
"""Seconds that a prompt token takes on either engine."""


class Rig:
    """A model, its clock, and an engine pair that can be made slow."""

    def __init__(self, seed=0):
        self.now = 0.0
        self.model = CostModel(now=lambda: self.now, seed=seed)
        self.move = 2e-6

    def times(self, tokens):
        return READ * tokens, 0.01 + self.move * tokens

    def learn(self, tokens=2000, count=1, move=None):
        """Both ways, measured."""
        for _ in range(count):
            self.now += 0.25
            read_s, move_s = self.times(tokens)
            self.model.prefilled(tokens, read_s)
            self.model.handed_over(tokens, move_s if move is None else move)
            self.model.local_prefilled(tokens, read_s)

    def ask(self, tokens=2000, running=2.0, *, can_teach=False):
        return self.model.decide(tokens, running, can_teach=can_teach)

    def serve(self, tokens=2000, running=2.0):
        """One request, decided and done before the next."""
        self.now += 0.25
        choice = self.ask(tokens, running, can_teach=True)
        read_s, move_s = self.times(tokens)
        if choice.way == "pd":
            self.model.prefilled(tokens, read_s)
            self.model.handed_over(tokens, move_s)
        else:
            self.model.local_prefilled(tokens, read_s)
        if choice.reason == "explore":
            self.model.probe_took(choice, read_s + (move_s if choice.way == "pd" else 0))
        return choice

    def serve_until(self, way, most):
        for n in range(most):
            choice = self.serve()
            if choice.reason != "explore" and choice.way == way:
                return n
        raise AssertionError(f"never {way}")


def measured(**times):
    rig = Rig()
    for tokens in (200, 1000, 4000, 8000) * 3:
        rig.learn(tokens, **times)
    return rig


def test_until_both_ways_are_measured_it_is_pd():
    """As before there was a model; a part of it goes to decode, to be measured."""
    rig = Rig()
    assert {rig.serve().reason for _ in range(11)} == {"unmeasured"}
    choices = [rig.serve() for _ in range(20)]
    assert {c.reason for c in choices} == {"unmeasured", "explore"}
    assert {c.way for c in choices if c.reason == "unmeasured"} == {"pd"}
    assert {c.pd_s for c in choices} == {None}


def test_answers_that_are_not_streamed_are_no_probes():
    """They would teach nothing."""
    rig = Rig()
    assert {rig.ask(can_teach=False).reason for _ in range(100)} == {"unmeasured"}
    rig = measured()
    assert {rig.ask(can_teach=False).reason for _ in range(100)} == {"cheaper"}


def test_the_two_ways_are_predicted_and_the_cheaper_is_taken():
    """Prefill and handoff against prefill there and the stall of its streams."""
    choice = measured().ask(4000, running=3.0)
    assert (choice.way, choice.reason) == ("pd", "cheaper")
    assert choice.pd_s == pytest.approx(0.1 + 0.018, rel=0.05)
    assert choice.local_s == pytest.approx(0.1, rel=0.05)
    assert choice.stall_s == pytest.approx(0.3, rel=0.05)


def test_without_streams_it_is_the_handoff_against_one_stall():
    """A transport that is faster than prefill pays, a slower one does not."""
    assert measured().ask(4000, running=0.0).way == "pd"
    assert measured(move=2.0).ask(4000, running=0.0).way == "local"


@given(st.floats(0, 64), st.floats(0, 64), st.integers(64, 10_000), st.floats(0, 1))
def test_more_streams_on_decode_never_speak_for_local(streams, more, tokens, move):
    """Each of them would stand still."""
    fewer = measured(move=move).ask(tokens, streams)
    many = measured(move=move).ask(tokens, streams + more)
    assert not (fewer.way == "pd" and many.way == "local")


@given(st.floats(0, 1), st.floats(0, 1), st.integers(64, 10_000), st.floats(0, 8))
def test_a_slower_handoff_never_speaks_for_pd(move, slower, tokens, streams):
    """All else equal."""
    fast, slow = (measured(move=m).ask(tokens, streams) for m in (move, move + slower))
    assert not (fast.way == "local" and slow.way == "pd")


def test_a_throttled_transport_turns_it_and_a_sound_one_brings_it_back():
    """Within a few requests there, and as soon as probes have seen it back."""
    rig = measured()
    assert rig.serve().way == "pd"
    rig.move = 1e-3
    assert rig.serve_until("local", 8) <= 5
    chosen = [rig.serve() for _ in range(200)]
    assert {c.reason for c in chosen if c.way == "pd"} == {"explore"}
    assert sum(c.way == "pd" for c in chosen) <= 200 / 12 + 1
    rig.move = 2e-6
    assert rig.serve_until("pd", 150) > 0
    rig.now += DWELL_S
    chosen = [rig.serve() for _ in range(100)]
    assert {c.reason for c in chosen if c.way == "local"} == {"explore"}


@pytest.mark.parametrize("seconds", [0.0, 1.0, 60.0])
@pytest.mark.parametrize("leg", ["prefilled", "handed_over", "local_prefilled"])
def test_one_outlier_does_not_turn_it(leg, seconds):
    """In whichever curve."""
    for move in (None, 1.0):
        rig = measured(move=move)
        rig.now += 5.0
        way = rig.ask().way
        getattr(rig.model, leg)(2000, seconds)
        rig.now += 5.0
        assert rig.ask().way == way


def test_handoffs_that_hang_turn_it_before_they_end():
    """No byte has come, so nothing was measured; the time that has passed is enough."""
    rig = measured()
    opened = [rig.model.handoff_begins(2000) for _ in range(4)]
    rig.now += 0.5
    assert rig.ask().way == "pd"
    rig.now += 2.0
    assert rig.ask().way == "local"
    for number in opened:
        rig.model.handoff_ends(number)
    rig.now += DWELL_S
    assert rig.ask().way == "pd"


def test_one_handoff_that_hangs_does_not_turn_it():
    """It is an outlier like any other."""
    rig = measured()
    rig.model.handoff_begins(2000)
    rig.now += 30.0
    assert rig.ask().way == "pd"


@pytest.mark.parametrize("known", [True, False])
def test_failures_turn_it_at_once_and_one_does_not(known):
    """Whether or not anything was measured before."""
    rig = measured() if known else Rig()
    rig.now += OUTCOME_LIVES_S + 1
    rig.model.handoff_failed(0.1)
    assert rig.ask().way == "pd"
    rig.model.handoff_failed(0.1)
    choice = rig.ask()
    assert (choice.way, choice.reason) == ("local", "handoff_failing")


def test_handoffs_that_work_again_bring_it_back():
    """A probe after the other."""
    rig = measured()
    for _ in range(4):
        rig.model.handoff_failed(0.1)
    assert rig.serve_until("local", 10) == 0
    assert rig.serve_until("pd", 150) > 0


def test_failures_are_forgotten():
    """A minute later they say nothing any more."""
    rig = measured()
    for _ in range(4):
        rig.model.handoff_failed(0.1)
    assert rig.ask().reason == "handoff_failing"
    rig.now += OUTCOME_LIVES_S + 1
    assert rig.ask().way == "pd"


def test_a_way_is_kept_while_the_other_is_not_much_cheaper():
    """From both sides: what is nearly equal stays as it is."""
    even = READ * 2000  # handoff and stall
    rig = Rig()
    rig.learn(count=12, move=even * 1.1)
    assert (rig.ask(running=0).way, rig.ask(running=0).reason) == ("pd", "kept")
    rig.learn(count=12, move=even * 3)
    assert rig.ask(running=0).way == "local"
    rig.learn(count=12, move=even * 0.9)
    assert (rig.ask(running=0).way, rig.ask(running=0).reason) == ("local", "kept")
    rig.learn(count=12, move=even * 0.2)
    assert rig.ask(running=0).way == "pd"


@settings(max_examples=25)
@given(st.lists(st.floats(0.5, 1.5), min_size=40, max_size=80), st.integers(0, 100))
def test_noise_changes_the_way_no_faster_than_the_dwell(noise, seed):
    """However the measurements jump about where both ways cost the same."""
    rig = Rig(seed)
    rig.learn(count=12, move=READ * 2000)
    changes, last = [], None
    for factor in noise:
        rig.learn(move=READ * 2000 * factor)
        way = rig.ask(running=0).way
        if last is not None and way != last:
            changes.append(rig.now)
        last = way
    assert all(b - a >= DWELL_S for a, b in pairwise(changes))


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.floats(1e-7, 1e-2))
def test_probes_are_a_bounded_share(seed, move):
    """Of streamed requests, whatever they find; the same ones for the same seed."""

    def story():
        rig = Rig(seed)
        rig.move = move
        for tokens in (500, 2000, 8000) * 4:
            rig.learn(tokens)
        return [rig.serve() for _ in range(240)]

    chosen = story()
    assert sum(c.reason == "explore" for c in chosen) <= 240 / 12 + 2
    assert chosen == story()


def test_a_costly_probe_is_followed_by_a_pause():
    """A transport that takes seconds is not asked every dozen requests of a busy gateway."""
    rig = measured()
    rig.learn(count=12, move=5.0)
    probe = next(c for _ in range(50) if (c := rig.ask(can_teach=True)).reason == "explore")
    assert all(rig.ask(can_teach=True).reason != "explore" for _ in range(50))  # it is under way
    rig.model.probe_took(probe, 5.0)
    assert all(rig.ask(can_teach=True).reason != "explore" for _ in range(50))
    rig.now += 11.0
    assert any(rig.ask(can_teach=True).reason == "explore" for _ in range(50))


def test_a_probe_that_is_never_ended_does_not_end_probing():
    """A fault of ours must not freeze the way."""
    rig = measured()
    next(c for _ in range(50) if (c := rig.ask(can_teach=True)).reason == "explore")
    rig.now += 11.0
    assert any(rig.ask(can_teach=True).reason == "explore" for _ in range(50))


def test_memory_is_bounded():
    """Handoffs that are never ended, prompts of any length, outcomes without end."""
    rig = measured()
    for n in range(3 * OPEN):
        rig.model.handoff_begins(n)
        rig.model.handoff_failed(1.0)
        rig.ask(2 ** (n % 60))
    assert len(rig.model._open) == OPEN
    assert len(rig.model._outcomes) <= 8
    assert len(rig.model._held) <= 25


def test_what_was_learned_is_told():
    """The numbers of the pair, and the length from which on a handoff pays."""
    rig = Rig()
    assert rig.model.learned().prefill_s_per_1000 is None
    learned = measured().model.learned(running=1.0)
    assert learned.prefill_s_per_1000 == pytest.approx(0.025, rel=0.02)
    assert learned.local_prefill_s_per_1000 == pytest.approx(0.025, rel=0.02)
    assert learned.handoff_fixed_s == pytest.approx(0.01, rel=0.1)
    assert learned.handoff_tokens_per_s == pytest.approx(500_000, rel=0.05)
    assert learned.break_even_tokens == pytest.approx(0.01 / (READ - 2e-6), rel=0.1)
    slow = measured()
    slow.move = 1e-3
    for tokens in (200, 1000, 4000, 8000) * 12:
        slow.learn(tokens)
    assert slow.model.learned().break_even_tokens == math.inf


def test_the_break_even_length():
    """Never negative; infinite where each token costs more than it saves."""
    assert break_even(0.02, 1e-4) == pytest.approx(200)
    assert break_even(-0.02, 1e-4) == 0
    assert break_even(0.02, 0.0) == math.inf
    assert break_even(0.02, -1.0) == math.inf
