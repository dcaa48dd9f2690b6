"""When an engine is left alone, for how long, and who finds out that it lives again."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from baton.errors import DeadlinePassed, LegFailed
from baton.gateway.breaker import (
    AT_ONCE,
    COUNTED,
    FAILURES_IN_A_ROW,
    JITTER,
    LONGEST_COOL_OFF_S,
    PROBE_PATIENCE_S,
    Breakers,
)
from baton.gateway.prefill import RequestRejected
from baton.spec.lease import EngineLease
from tests.unit.gateway.fakes import until

NEUTRAL = ("busy", "error_event", "stale_kv")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def engine(name="e", engine_id="1"):
    return EngineLease(
        replica_id=name, role="decode", url="http://x:1", engine_id=engine_id, model_id="m"
    )


def made(jitter=0.0):
    clock = Clock()
    return Breakers(clock, lambda: jitter), clock


def end(breakers, how, one=None):
    """One leg, from its start to how it ends: None for well."""
    one = one or engine()
    with contextlib.suppress(LegFailed), breakers.leg(one):
        if how is not None:
            raise LegFailed(how, one.replica_id)


def test_a_refused_connection_opens_at_once():
    """Nothing listens there: the next request need not find out."""
    breakers, _ = made()
    end(breakers, "refused")
    assert breakers.state(engine()) == "open"
    assert not breakers.allows(engine())


@pytest.mark.parametrize("kind", sorted(COUNTED))
def test_other_failures_open_when_three_come_in_a_row(kind):
    """Two, a success, two: still closed. The third in a row opens."""
    breakers, _ = made()
    for how in (kind, kind, None, kind, kind):
        end(breakers, how)
        assert breakers.state(engine()) == "closed"
    end(breakers, kind)
    assert breakers.state(engine()) == "open"


@pytest.mark.parametrize("kind", NEUTRAL)
def test_what_is_not_the_engines_fault_opens_nothing(kind):
    """Busy is an answer; KV that cannot be loaded is most often the other engine's death."""
    breakers, _ = made()
    for _ in range(20):
        end(breakers, kind)
    assert breakers.state(engine()) == "closed"


def test_a_request_that_the_engine_refuses_is_a_sign_of_life():
    """A 400 is an answer: a half-open engine closes."""
    breakers, clock = made()
    end(breakers, "refused")
    clock.now += 1.0
    with contextlib.suppress(RequestRejected), breakers.leg(engine()):
        raise RequestRejected(400, b"{}")
    assert breakers.state(engine()) == "closed"


def test_the_cool_off_doubles_up_to_thirty_seconds_and_starts_anew_after_a_success():
    """1, 2, 4 … 30, 30; then well; then 1 again."""
    breakers, clock = made()
    spans = []
    for _ in range(8):
        end(breakers, "refused")
        spans.append(breakers.cool_off_left_s(engine()))
        clock.now += spans[-1]
        assert breakers.state(engine()) == "half_open"
    assert spans == [1, 2, 4, 8, 16, 30, 30, 30]
    end(breakers, None)
    assert breakers.state(engine()) == "closed"
    end(breakers, "refused")
    assert breakers.cool_off_left_s(engine()) == 1


@given(st.floats(-1, 1))
def test_jitter_keeps_gateways_apart_by_a_fifth_at_most(jitter):
    """And never beyond the longest cool-off."""
    breakers, clock = made(jitter)
    end(breakers, "refused")
    assert abs(breakers.cool_off_left_s(engine()) - 1) <= JITTER + 1e-9
    for _ in range(10):
        clock.now += 100
        end(breakers, "refused")
    assert breakers.cool_off_left_s(engine()) <= LONGEST_COOL_OFF_S


def test_a_probe_whose_caller_hangs_up_leaves_the_place_to_the_next():
    """No verdict, and nobody waits for one for ever."""
    breakers, clock = made()
    end(breakers, "refused")
    clock.now += 1
    with contextlib.suppress(asyncio.CancelledError), breakers.leg(engine()):
        assert not breakers.allows(engine())
        raise asyncio.CancelledError
    assert breakers.state(engine()) == "half_open"
    assert breakers.allows(engine())


def test_a_request_that_never_got_to_the_engine_says_nothing_about_it():
    """Its deadline had passed: no sign of life."""
    breakers, clock = made()
    end(breakers, "refused")
    clock.now += 1
    with contextlib.suppress(DeadlinePassed), breakers.leg(engine()):
        raise DeadlinePassed("too late")
    assert breakers.state(engine()) == "half_open"
    assert breakers.allows(engine())


def test_a_probe_that_says_nothing_for_long_leaves_the_place_and_still_counts():
    """An answer that is not streamed may take minutes: the engine is not idle meanwhile."""
    breakers, clock = made()
    end(breakers, "refused")
    clock.now += 1
    with breakers.leg(engine()):
        clock.now += PROBE_PATIENCE_S - 0.1
        assert not breakers.allows(engine())
        clock.now += 0.2
        assert breakers.allows(engine())
        with breakers.leg(engine()):
            assert not breakers.allows(engine())
        assert breakers.state(engine()) == "closed"


def test_a_busy_probe_leaves_the_place_to_the_next():
    """The engine answered, but not whether it is well."""
    breakers, clock = made()
    end(breakers, "refused")
    clock.now += 1
    end(breakers, "busy")
    assert breakers.allows(engine())


def test_legs_from_before_do_not_lengthen_the_cool_off():
    """Fifty requests were under way when the engine died: that is one failure, not fifty."""
    breakers, _ = made()
    with contextlib.ExitStack() as stack:
        legs = [stack.enter_context(contextlib.ExitStack()) for _ in range(50)]
        for leg in legs:
            leg.enter_context(breakers.leg(engine()))
        for leg in legs:
            failure = LegFailed("refused", "e")
            with contextlib.suppress(LegFailed):
                leg.__exit__(LegFailed, failure, None)
                leg.pop_all()
    assert breakers.cool_off_left_s(engine()) <= 1


@pytest.mark.parametrize("other", [engine(engine_id="2"), engine(name="f")])
def test_an_engine_that_starts_anew_starts_closed(other):
    """A new engine_id or replica_id is another engine."""
    breakers, _ = made()
    end(breakers, "refused")
    assert breakers.state(other) == "closed"


def test_streams_that_break_off_are_counted_though_each_began_well():
    """Three in a row open; one that ends well in between starts the count anew."""
    breakers, _ = made()

    def stream(*, breaks):
        end(breakers, None)
        with contextlib.suppress(LegFailed), breakers.streaming("e"):
            if breaks:
                raise LegFailed("truncated", "e")

    for breaks in (True, True, False, True, True):
        stream(breaks=breaks)
    assert breakers.state(engine()) == "closed"
    stream(breaks=True)
    assert breakers.state(engine()) == "open"


def test_engines_that_are_gone_are_forgotten():
    """The breaker does not grow with every replica that ever was."""
    breakers, _ = made()
    for n in range(100):
        end(breakers, "refused", engine(f"e{n}"))
    breakers.keep([engine("e7")])
    assert breakers.state(engine("e7")) == "open"
    assert breakers.state(engine("e8")) == "closed"
    assert list(breakers._circuits) == ["e7"]


async def test_a_hundred_requests_at_once_send_exactly_one_probe():
    """The other ninety-nine go elsewhere while it is under way."""
    breakers, clock = made()
    sick, well = engine("sick"), engine("well")
    end(breakers, "refused", sick)
    clock.now += 1
    asked: list[str] = []
    answered = asyncio.Event()

    async def request():
        one = breakers.sound([sick, well])[0]
        with breakers.leg(one):
            asked.append(one.replica_id)
            await answered.wait()

    requests = [asyncio.create_task(request()) for _ in range(100)]
    await until(lambda: len(asked) == 100)
    assert asked.count("sick") == 1
    answered.set()
    await asyncio.gather(*requests)
    assert breakers.state(sick) == "closed"


class AnyOrder(RuleBasedStateMachine):
    """Legs that start, end and are given up in any order, while time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.breakers = Breakers(self.clock, lambda: 0.0)
        self.legs: list[tuple[contextlib.AbstractContextManager[None], int, bool]] = []
        self.openings = 0
        self.engine = engine()

    @property
    def state(self):
        return self.breakers.state(self.engine)

    @rule(seconds=st.sampled_from([0.125, 0.5, 1.0, 5.0, 31.0]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(forced=st.booleans())
    def a_leg_starts(self, forced):
        """As a gateway sends them; forced where there is no other engine."""
        allowed = self.breakers.allows(self.engine)
        if not (allowed or forced):
            return
        probes = self.state != "closed"
        leg = self.breakers.leg(self.engine)
        leg.__enter__()
        self.legs.append((leg, self.openings, probes))
        if probes:
            assert not self.breakers.allows(self.engine)

    @precondition(lambda self: self.legs)
    @rule(
        data=st.data(),
        how=st.sampled_from([None, "hang_up", *sorted(AT_ONCE), *sorted(COUNTED), *NEUTRAL]),
    )
    def a_leg_ends(self, data, how):
        at = data.draw(st.integers(0, len(self.legs) - 1))
        leg, opening, probes = self.legs.pop(at)
        before = self.state
        probes = probes and before != "closed" and opening == self.openings
        left = self.breakers.cool_off_left_s(self.engine)
        if how is None:
            leg.__exit__(None, None, None)
        else:
            error = asyncio.CancelledError() if how == "hang_up" else LegFailed(how, "e")
            with contextlib.suppress(LegFailed, asyncio.CancelledError):
                leg.__exit__(type(error), error, None)
        failed = how in AT_ONCE or how in COUNTED
        if probes and how is None:
            assert self.state == "closed"
        elif probes and failed:
            assert self.state == "open"
            self.openings += 1
        elif before != "closed":
            # Only a probe of this opening moves an engine that is not closed.
            assert self.state == before
            assert self.breakers.cool_off_left_s(self.engine) == left
        elif how in AT_ONCE:
            assert self.state == "open"
            self.openings += 1
        elif failed:
            self.openings += self.state == "open"
        else:
            assert self.state == "closed"

    @invariant()
    def it_can_always_become_well(self):
        """Nothing is shut out for longer than the longest cool-off; times are exact in binary."""
        assert self.breakers.cool_off_left_s(self.engine) <= LONGEST_COOL_OFF_S
        if self.state == "half_open" and not any(probes for *_, probes in self.legs):
            assert self.breakers.allows(self.engine)

    @invariant()
    def a_closed_one_has_failed_fewer_than_three_times(self):
        circuit = self.breakers._circuits.get("e")
        if self.state == "closed" and circuit is not None:
            assert circuit.failures < FAILURES_IN_A_ROW


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=50, deadline=None)
