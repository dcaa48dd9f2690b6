"""The simulated fleet: handover, shared wires, memory, failures, scaling, what never breaks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.plan.costs import Beside, HandoffCost, Uneven, Wake
from baton.plan.simulator import (
    EngineLimits,
    Failure,
    Fleet,
    FleetSettings,
    Pool,
    Request,
    Scaling,
)
from tests.unit.plan.shapes import costs, pair, poisson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.plan.simulator.outcome import Served

EACH = costs(token_s=1e-4, step_s=0.01, sequence_s=1e-3)


def test_a_handoff_adds_its_fixed_part_its_bytes_and_a_step() -> None:
    """One request alone: prefill 0.1 s, 0.5 s + 1000 bytes at 1000 a second, and decode's step."""
    outcome = pair([Request(0, 1000, 3)], bytes_per_s=1000, fixed_s=0.5, each=EACH)
    (served,) = outcome.served
    assert served.ttft_s == pytest.approx(0.1 + 1.5 + 0.011)
    assert served.handoff_s == pytest.approx(1.5)
    assert served.tpot_s == pytest.approx(0.011)


def test_transfers_share_a_nic() -> None:
    """Two prefill engines end at once and send to one decode engine: each gets half."""
    trace = [Request(0, 1000, 2), Request(0, 1000, 2)]
    outcome = pair(trace, prefill=2, bytes_per_s=1000, each=EACH)
    assert [s.handoff_s for s in outcome.served] == pytest.approx([2.0, 2.0])
    outcome = pair(trace, prefill=2, decode=2, bytes_per_s=1000, each=EACH)
    assert [s.handoff_s for s in outcome.served] == pytest.approx([1.0, 1.0])


def test_a_transfer_speeds_up_when_another_ends() -> None:
    """1000 and 3000 bytes together: half each until 2 s, then the rest of the long one alone."""
    trace = [Request(0, 1000, 2), Request(0, 3000, 2)]
    each = costs(token_s=0.0, step_s=0.01)
    outcome = pair(trace, prefill=2, bytes_per_s=1000, each=each)
    assert [s.handoff_s for s in outcome.served] == pytest.approx([2.0, 4.0])


def test_engines_of_one_node_hand_over_by_their_links() -> None:
    """The NIC counts for nothing there, and for everything between nodes."""
    link, network = HandoffCost(0.0, 1e6), HandoffCost(0.0, 10.0)

    def play(decode_node: int) -> float:
        pools = [
            Pool(role, EACH, (node,), nic_bytes_per_s=10.0, link=link, network=network)
            for role, node in (("prefill", 0), ("decode", decode_node))
        ]
        return Fleet(pools).play([Request(0, 1000, 2)]).served[0].handoff_s

    assert play(0) == pytest.approx(0.001)
    assert play(1) == pytest.approx(100.0)


@given(st.integers(0, 1000), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=15)
def test_zero_bandwidth_never_wins(seed: int, prefill: int, decode: int) -> None:
    """Nothing that needs decode ever ends, whatever the rest is; without P/D all of it does."""
    trace = poisson(3, 12, seed, lambda c: c.randrange(1, 500), lambda c: c.randrange(2, 20))
    apart = pair(trace, prefill=prefill, decode=decode, bytes_per_s=0.0, each=EACH)
    assert apart.counts == {"finished": 0, "refused": 0, "lost": 12}
    assert apart.goodput(1e9, 1e9) == 0
    assert Fleet([Pool("both", EACH, (0,))]).play(trace).counts["finished"] == 12


def test_prefills_own_token_is_early_where_that_is_set() -> None:
    """The handoff hides behind it, and shows in the tokens after it."""
    trace = [Request(0, 1000, 11)]
    late = pair(trace, bytes_per_s=1000, each=EACH).served[0]
    early = pair(
        trace, bytes_per_s=1000, each=EACH, settings=FleetSettings(first_token_early=True)
    ).served[0]
    assert early.ttft_s == pytest.approx(0.1)
    assert late.ttft_s == pytest.approx(1.111)
    assert early.tpot_s > late.tpot_s
    assert early.end_s == late.end_s


def test_sequences_are_preempted_when_kv_runs_out_and_still_end() -> None:
    """Two sequences that fit alone and not together: one is read again."""
    each = costs(token_s=1e-4, step_s=0.01, capacity=150.0)
    fleet = Fleet([Pool("both", each, (0,))])
    outcome = fleet.play([Request(0, 50, 60), Request(0, 50, 60)])
    assert outcome.counts["finished"] == 2
    assert outcome.preemptions >= 1
    assert max(s.end_s for s in outcome.served) > 60 * 0.01 + 0.3


def test_what_fits_no_engine_is_refused_and_the_rest_is_served() -> None:
    """KV for prompt and answer is asked for, not for the prompt alone."""
    each = costs(token_s=1e-4, step_s=0.01, capacity=100.0)
    outcome = Fleet([Pool("both", each, (0,))]).play([Request(0, 60, 41), Request(1, 60, 40)])
    assert [s.end for s in outcome.served] == ["refused", "finished"]
    assert outcome.ttft(1.0) == math.inf


def test_requests_of_an_engine_that_dies_end_on_another() -> None:
    """None is lost, and no token is written twice: the rest of an answer follows its beginning."""
    trace = [Request(0, 100, 100), Request(0, 100, 100)]
    pool = Pool("both", EACH, (0, 1))
    whole = Fleet([pool]).play(trace)
    failure = FleetSettings(failures=(Failure(0.5, "both", 0, 1e6),))
    outcome = Fleet([pool], failure).play(trace)
    assert outcome.counts["finished"] == 2
    moved, stayed = outcome.served
    assert moved.ttft_s == whole.served[0].ttft_s
    assert whole.served[0].end_s < moved.end_s < 2 * whole.served[0].end_s
    assert stayed.end_s > whole.served[1].end_s


def test_an_engine_that_comes_back_serves_what_waited() -> None:
    """With one engine, everything waits for it."""
    failure = FleetSettings(failures=(Failure(0.05, "both", 0, 10.0),))
    outcome = Fleet([Pool("both", EACH, (0,))], failure).play([Request(0, 1000, 5)])
    assert outcome.counts["finished"] == 1
    assert outcome.served[0].ttft_s == pytest.approx(10.05 + 0.1)


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 3), st.booleans())
@settings(max_examples=40)
def test_every_request_ends_once_and_no_kv_is_left(
    seed: int, prefill: int, decode: int, breaks: bool
) -> None:
    """With scarce KV, few places, slow wires and engines that die at bad moments."""
    each = costs(token_s=1e-4, step_s=0.01, sequence_s=1e-3, capacity=1500.0)
    trace = poisson(8, 40, seed, lambda c: c.randrange(1, 1200), lambda c: c.randrange(1, 500))
    failures = (
        Failure(1.0 + seed % 7 / 10, "prefill", 0, 0.7),
        Failure(1.5 + seed % 11 / 10, "decode", seed % decode, 1.3),
    )
    network = HandoffCost(0.05, 3000.0)
    limits = EngineLimits(256, 6)
    pools = [
        Pool("prefill", each, tuple(range(prefill)), limits, nic_bytes_per_s=3000.0,
             network=network),
        Pool("decode", each, tuple(range(10, 10 + decode)), limits, nic_bytes_per_s=3000.0,
             network=network),
    ]  # fmt: skip
    fleet = Fleet(pools, FleetSettings(failures=failures if breaks else ()))
    outcome = fleet.play(trace)
    assert sum(outcome.counts.values()) == len(trace)
    assert outcome.counts["lost"] == 0
    for served, request in zip(outcome.served, trace, strict=True):
        fits = request.prompt_tokens + request.output_tokens <= 1500
        assert served.end == ("finished" if fits else "refused")
        if fits:
            assert 0 < served.ttft_s <= served.end_s - served.arrival_s
    for engines in fleet._engines.values():
        for engine in engines:
            assert engine.kv_used == 0
            assert engine.open == engine.queued_tokens == 0
            assert [*engine.held, *engine.incoming, *engine.pending] == []


def test_the_same_trace_gives_the_same_outcome() -> None:
    """To the last bit."""
    trace = poisson(8, 200, 4, lambda c: c.randrange(1, 1200), lambda c: c.randrange(1, 200))
    first, again = (pair(trace, prefill=2, decode=3, bytes_per_s=1e4) for _ in range(2))
    assert first.served == again.served


def test_a_trace_out_of_order_is_refused() -> None:
    """It would be played wrongly."""
    with pytest.raises(ValueError, match="order of arrival"):
        Fleet([Pool("both", EACH, (0,))]).play([Request(1, 1, 1), Request(0, 1, 1)])


def test_pools_grow_with_the_load_and_shrink_after_it() -> None:
    """Each by its own signals; engines that are stopped finish first."""
    burst = poisson(6, 240, 3, lambda _: 2000, lambda _: 20)
    calm = [Request(burst[-1].arrival_s + 20 * n, 2000, 20) for n in range(1, 20)]
    scaling = Scaling(least=1, most=6, start_s=2.0, interval_s=2.0)
    network = HandoffCost(0.01, 1e9)
    pools = [
        Pool("prefill", EACH, (0,), network=network, nic_bytes_per_s=1e9, scaling=scaling),
        Pool("decode", EACH, (1,), network=network, nic_bytes_per_s=1e9, scaling=scaling),
    ]
    fleet = Fleet(pools, FleetSettings(ttft_s=1.0, tpot_s=0.05))
    outcome = fleet.play([*burst, *calm])
    assert outcome.counts["finished"] == 259
    grown = {role: len(engines) for role, engines in fleet._engines.items()}
    assert grown["prefill"] > 1
    alive = [e for e in fleet._engines["prefill"] if e.up and not e.draining]
    assert len(alive) == 1
    assert outcome.engine_s["prefill"] < 3 * outcome.ended_s


def test_an_engine_that_had_nothing_to_do_takes_longer_to_begin() -> None:
    """Once: whoever comes while it works waits for no waking."""
    each = replace(EACH, wake=Wake(((0.5, 0.5, 0.0),)))
    outcome = Fleet([Pool("both", each, (0,))]).play([Request(0, 1000, 3), Request(0.55, 1000, 1)])
    first, second = outcome.served
    assert first.ttft_s == pytest.approx(0.6)
    assert second.ttft_s == pytest.approx(0.05 + 0.1 + 0.011)


def test_engines_that_worked_until_a_trace_begins_sleep_from_then_on() -> None:
    """A quarter of a second of pause, and half of what half a second would cost."""
    pool = Pool("both", replace(EACH, wake=Wake(((0.5, 0.5, 0.0),))), (0,))
    (served,) = Fleet([pool], FleetSettings(awake=True)).play([Request(0.25, 1000, 1)]).served
    assert served.ttft_s == pytest.approx(0.25 + 0.1)


def test_waking_takes_longer_the_longer_the_pause_was() -> None:
    """Prompts of 0.1 s with pauses of 0, 1 and 9 s: half of what one of 2 s costs, then all."""
    each = replace(EACH, wake=Wake(((2.0, 0.2, 0.5),)))
    trace = [Request(0, 1000, 1), Request(0.349, 1000, 1), Request(1.574, 1000, 1),
             Request(1.6, 1000, 1)]  # fmt: skip
    ttft = [s.ttft_s for s in Fleet([Pool("both", each, (0,))]).play(trace).served]
    assert ttft[0] == pytest.approx(0.1 + 0.2 + 0.05)
    assert ttft[1] == pytest.approx(0.1 + 0.001, abs=2e-3)
    assert ttft[2] == pytest.approx(0.1 + (1.574 - 0.449) / 2 * 0.25, abs=2e-3)
    assert ttft[3] > ttft[2] - 0.026 + 0.1 - 1e-9


def test_engines_that_share_a_machine_slow_each_other_while_both_are_busy() -> None:
    """Prompts of 1 s and 0.5 s at once, each twice as slow beside the other: 1.5 s and 1 s."""
    each = replace(EACH, beside=Beside(reading=1.0, writing=1.0))
    trace = [Request(0, 10_000, 1), Request(0, 5000, 1)]
    limits = EngineLimits(1 << 20)

    def ends(nodes: tuple[int, int]) -> list[float]:
        return [s.end_s for s in Fleet([Pool("both", each, nodes, limits)]).play(trace).served]

    assert ends((0, 0)) == pytest.approx([1.5, 1.0])
    assert ends((0, 1)) == pytest.approx([1.0, 0.5])


def test_a_busy_neighbour_slows_what_a_request_takes_beside_steps_too() -> None:
    """0.1 s of HTTP and 0.1 s of reading: each half as long again while the other engine works."""
    each = replace(EACH, request_s=0.1, beside=Beside(reading=0.5))
    trace = [Request(0, 10_000, 1), Request(0.5, 1000, 1)]
    fleet = Fleet([Pool("both", each, (0, 0), EngineLimits(1 << 20))])
    assert fleet.play(trace).served[1].ttft_s == pytest.approx(0.15 + 0.15)


def test_a_handoff_beside_a_busy_prefill_engine_takes_longer() -> None:
    """Its fixed 0.2 s half as long again: the next prompt is being read."""
    each = replace(EACH, beside=Beside(reading=0.5))
    link = HandoffCost(0.2, math.inf)
    pools = [
        Pool(role, each, (0,), EngineLimits(1 << 20), link=link) for role in ("prefill", "decode")
    ]
    trace = [Request(0, 1000, 2), Request(0, 10_000, 2)]
    alone, beside = (Fleet(pools).play(those).served[0] for those in (trace[:1], trace))
    assert (alone.handoff_s, beside.handoff_s) == pytest.approx((0.2, 0.3))


def test_a_handoff_and_the_next_prompt_slow_each_other_while_both_last() -> None:
    """The first prompt is read at 0.1 s. 0.2 s of handoff begin, and the next one, of 0.1 s, comes
    0.1 s later: both take half as long again from then on, until one of them is over."""
    each = replace(EACH, beside=Beside(reading=0.5))
    link = HandoffCost(0.2, math.inf)
    pools = [
        Pool(role, each, (0,), EngineLimits(1 << 20), link=link) for role in ("prefill", "decode")
    ]
    first, second = Fleet(pools).play([Request(0, 1000, 2), Request(0.2, 1000, 1)]).served
    assert first.handoff_s == pytest.approx(0.1 + 0.15)
    assert second.ttft_s == pytest.approx(0.15)


def test_an_engine_that_ends_as_its_neighbour_begins_is_busy_once() -> None:
    """One answer at a time through both phases: one of the two engines works at any moment."""
    each = replace(EACH, beside=Beside(reading=0.5, writing=0.5))
    pools = [
        Pool(role, each, (0,), EngineLimits(1 << 20), link=HandoffCost(0.0, math.inf))
        for role in ("prefill", "decode")
    ]
    fleet = Fleet(pools, FleetSettings(max_open_per_engine=1))
    outcome = fleet.play([Request(0, 1000, 11)] * 3)
    assert outcome.busy["prefill"] == pytest.approx(0.1 / 0.221)
    assert outcome.busy["decode"] == pytest.approx(0.121 / 0.221)


def test_decode_goes_on_at_full_speed_when_the_prompt_beside_it_is_read() -> None:
    """100 steps of 11 ms at 2/3 of the speed for as long as a prompt is read next door."""
    each = replace(EACH, beside=Beside(writing=0.5))
    pools = [
        Pool(role, each, (0,), EngineLimits(1 << 20), link=HandoffCost(0.0, math.inf))
        for role in ("prefill", "decode")
    ]
    first, _ = Fleet(pools).play([Request(0, 1000, 101), Request(0.2, 3000, 1)]).served
    alone = 0.1 + 101 * 0.011
    assert first.end_s == pytest.approx(alone + 0.1)
    assert first.ttft_s == pytest.approx(0.111)


def test_kv_into_a_busy_engine_waits_for_its_steps_or_for_their_end() -> None:
    """An answer of 50 steps of 11 ms from 0.1 s on; the second prompt's KV is there at 0.2 s."""

    def second(busy_s: float) -> float:
        link = HandoffCost(0.0, math.inf, busy_s=busy_s)
        pools = [Pool(role, EACH, (0,), link=link) for role in ("prefill", "decode")]
        trace = [Request(0, 1000, 50), Request(0.1, 1000, 2)]
        return Fleet(pools).play(trace).served[1].handoff_s

    assert second(0.0) == 0.0
    assert second(0.25) == pytest.approx(0.25)
    assert second(9.0) == pytest.approx(0.1 + 50 * 0.011 - 0.2)


def test_answers_stand_still_while_kv_is_taken_in() -> None:
    """A quarter of a second for a handoff into an engine that writes, none into an idle one."""
    trace = [Request(0, 1, 101), Request(0.5, 1, 2)]

    def ends(holds_s: float) -> list[float]:
        network = HandoffCost(0.0, math.inf, busy_s=holds_s, holds_s=holds_s)
        pools = [
            Pool(role, EACH, (node,), nic_bytes_per_s=math.inf, network=network)
            for node, role in enumerate(("prefill", "decode"))
        ]
        return [s.end_s for s in Fleet(pools).play(trace).served]

    long, short = (a - b for a, b in zip(ends(0.25), ends(0.0), strict=True))
    assert long == pytest.approx(0.25, abs=0.02)
    assert short == pytest.approx(0.25, abs=0.02)


def test_answers_may_stand_still_before_kv_is_there() -> None:
    """A quarter of a second, and none of it is the request's: it comes as soon as it would."""
    trace = [Request(0, 1, 201), Request(0.6, 1, 2)]

    def served(holds_s: float) -> Sequence[Served]:
        network = HandoffCost(0.5, math.inf, holds_s=holds_s)
        pools = [
            Pool(role, EACH, (node,), nic_bytes_per_s=math.inf, network=network)
            for node, role in enumerate(("prefill", "decode"))
        ]
        return Fleet(pools).play(trace).served

    (long, short), (usual, quick) = served(0.25), served(0.0)
    assert long.end_s - usual.end_s == pytest.approx(0.25, abs=1e-9)
    assert short.ttft_s == pytest.approx(quick.ttft_s, abs=0.012)


def test_an_uneven_machine_spreads_times_around_the_same_middle() -> None:
    """The same each time of the same seed, and none where it is even."""
    trace = [Request(n, 100, 21) for n in range(400)]

    def tpot(uneven: float, seed: int = 0) -> list[float]:
        pool = Pool("both", replace(EACH, uneven=Uneven(writing=uneven)), (0,))
        fleet = Fleet([pool], FleetSettings(seed=seed))
        return sorted(s.tpot_s or 0.0 for s in fleet.play(trace).served)

    assert tpot(0.0)[0] == pytest.approx(tpot(0.0)[-1])
    assert tpot(0.0) == tpot(0.0, seed=1)
    assert tpot(0.1) == tpot(0.1)
    assert tpot(0.1) != tpot(0.1, seed=1)
    assert tpot(0.1)[200] == pytest.approx(0.011, rel=0.02)
    assert tpot(0.1)[360] == pytest.approx(0.011 * math.exp(0.128), rel=0.03)


def test_admission_holds_requests_at_the_gateway() -> None:
    """So many open as are allowed for each decode engine, and the next when one has ended."""
    trace = [Request(0, 1000, 1), Request(0, 1000, 1)]
    held = Fleet([Pool("both", EACH, (0,))], FleetSettings(max_open_per_engine=1)).play(trace)
    assert [s.queue_s for s in held.served] == pytest.approx([0.0, 0.1])
