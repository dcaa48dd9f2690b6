"""The simulator against queueing theory, and against a simulation that takes every step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.plan.simulator import EngineLimits, Fleet, Pool, Request
from tests.unit.plan.shapes import costs, one_by_one, poisson

if TYPE_CHECKING:
    from baton.plan.costs import StepCosts

REQUESTS = 12_000


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_engine_with_equal_prompts_waits_as_m_d_1_says(load: float) -> None:
    """Pollaczek and Khinchine: the mean wait is load x service / (2 (1 - load))."""
    outcome = one_by_one(poisson(load, REQUESTS, 5, lambda _: 1000), 1)
    wanted = load / (2 * (1 - load))
    assert outcome.mean("queue_s") == pytest.approx(wanted, rel=0.08)
    assert outcome.busy["both"] == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize(("engines", "load"), [(1, 0.5), (2, 0.6), (5, 0.7)])
def test_engines_with_exponential_prompts_wait_as_m_m_c_says(engines: int, load: float) -> None:
    """Erlang's C: the mean wait is C(c, a) x service / (c - a)."""
    trace = poisson(
        load * engines, REQUESTS, 11, lambda chance: max(1, round(chance.expovariate(1e-3)))
    )
    outcome = one_by_one(trace, engines)
    offered = load * engines
    last = offered**engines / math.factorial(engines) / (1 - load)
    waits = last / (sum(offered**k / math.factorial(k) for k in range(engines)) + last)
    assert outcome.mean("queue_s") == pytest.approx(waits / (engines - offered), rel=0.12)


def kiefer_wolfowitz(trace: list[Request], engines: int, token_s: float) -> list[float]:
    """When each request begins on the engine that is free first: the recursion for G/G/c."""
    free, begins = [0.0] * engines, []
    for request in trace:
        free.sort()
        begin = max(free[0], request.arrival_s)
        free[0] = begin + token_s * request.prompt_tokens
        begins.append(begin)
    return begins


def trace_of(rows: list[tuple[float, int]]) -> list[Request]:
    now, trace = 0.0, []
    for gap, tokens in rows:
        now += gap
        trace.append(Request(now, tokens, 1))
    return trace


lengths = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 3000)), min_size=1, max_size=25
).map(trace_of)  # fmt: skip


@given(lengths, st.integers(1, 4))
@settings(max_examples=50)
def test_each_request_begins_when_the_exact_recursion_says(
    trace: list[Request], engines: int
) -> None:
    """Not only on average."""
    outcome = one_by_one(trace, engines)
    expected = kiefer_wolfowitz(trace, engines, 1e-3)
    for served, begin in zip(outcome.served, expected, strict=True):
        assert served.arrival_s + served.queue_s == pytest.approx(begin, abs=1e-6)


@given(lengths, st.integers(1, 4))
@settings(max_examples=50)
def test_one_more_engine_makes_no_request_later(trace: list[Request], engines: int) -> None:
    """On the same trace, where engines take one request at a time: true of every request. With
    batches it is true of the load only, and tested on named traces below."""
    few, many = one_by_one(trace, engines), one_by_one(trace, engines + 1)
    for before, after in zip(few.served, many.served, strict=True):
        assert after.end_s <= before.end_s + 1e-9


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_engines_are_no_worse_on_average_where_they_batch(seed: int) -> None:
    """Mean and 90th percentile of both times on three traces."""
    each = costs(token_s=1e-4, step_s=0.01, sequence_s=1e-3)
    trace = poisson(4, 300, seed, lambda c: c.randrange(100, 4000), lambda c: c.randrange(1, 80))
    before = None
    for engines in (1, 2, 4, 8):
        after = Fleet([Pool("both", each, tuple(range(engines)))]).play(trace)
        if before is not None:
            assert after.mean("ttft_s") <= before.mean("ttft_s")
            assert after.ttft(0.9) <= before.ttft(0.9)
            assert after.tpot(0.9) <= before.tpot(0.9)
        before = after


def stepped(  # noqa: C901 - in one piece, so that it can be checked by reading
    trace: list[Request], each: StepCosts, limits: EngineLimits
) -> list[tuple[float, float]]:
    """(first token, end) of each request, by a scheduler that takes one step after the other.

    With async scheduling who takes part in a step is settled when the one before it begins. Nothing
    is settled where nobody was left to take part.
    """
    now, coming = 0.0, list(enumerate(trace))
    waiting: list[list[int]] = []  # [ident, read]
    running: dict[int, int] = {}  # ident: tokens made
    first: dict[int, float] = {}
    end: dict[int, float] = {}
    settled_s = -math.inf
    while len(end) < len(trace):
        until_s = settled_s if limits.async_scheduling else now
        for _ in range(2):
            while coming and coming[0][1].arrival_s <= until_s:
                waiting.append([coming.pop(0)[0], 0])
            if not waiting and not running:
                now = until_s = max(now, coming[0][1].arrival_s)
        settled_s = now
        budget, pairs, chunks = limits.token_budget - len(running), 0.0, []
        for entry in waiting:
            take = min(trace[entry[0]].prompt_tokens - entry[1], budget)
            if take <= 0:
                break
            pairs += take * (entry[1] + take / 2)
            chunks.append((entry, take))
            budget -= take
        context = sum(trace[i].prompt_tokens + made for i, made in running.items())
        now += each.step_s(sum(t for _, t in chunks), pairs, len(running), context)
        for ident in list(running):
            running[ident] += 1
            if running[ident] == trace[ident].output_tokens:
                end[ident] = now
                del running[ident]
        for entry, take in chunks:
            entry[1] += take
            ident = entry[0]
            if entry[1] == trace[ident].prompt_tokens:
                waiting.remove(entry)
                first[ident] = now
                if trace[ident].output_tokens == 1:
                    end[ident] = now
                else:
                    running[ident] = 1
    return [(first[i], end[i]) for i in range(len(trace))]


@given(st.integers(0, 10_000), st.sampled_from([64, 300, 5000]), st.booleans())
@settings(max_examples=50)
def test_leaps_give_what_single_steps_give(seed: int, budget: int, ahead: bool) -> None:
    """Every first token and every end, with batches, chunks, growing KV and arrivals in leaps."""
    each = costs(token_s=1e-4, step_s=0.01, sequence_s=1e-3, pair_s=1e-7, kv_byte_s=2e-6)
    trace = poisson(5, 30, seed, lambda c: c.randrange(1, 900), lambda c: c.randrange(1, 60))
    limits = EngineLimits(budget, 1000, async_scheduling=ahead)
    outcome = Fleet([Pool("both", each, (0,), limits)]).play(trace)
    for served, (first, end) in zip(outcome.served, stepped(trace, each, limits), strict=True):
        assert served.arrival_s + served.ttft_s == pytest.approx(first, rel=1e-9)
        assert served.end_s == pytest.approx(end, rel=1e-9)


@given(st.integers(1, 500), st.integers(1, 300), st.floats(0, 1e6))
def test_steps_within_a_time_are_the_inverse_of_the_time_of_steps(
    steps: int, batch: int, context: float
) -> None:
    """At a boundary, just before it, and just behind it."""
    each = costs(step_s=0.01, sequence_s=1e-4, kv_byte_s=1e-8)
    seconds = each.decode_s(steps, batch, context)
    assert each.steps_within(seconds, batch, context) == steps
    assert each.steps_within(seconds * (1 + 1e-6), batch, context) == steps + 1
    one = sum(each.decode_s(1, batch, context + k * batch) for k in range(steps))
    assert seconds == pytest.approx(one, rel=1e-9)
