"""No order of events leaves KV held, or a task running."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.gateway import releases
from baton.gateway.handoff import FACTS, Event, Handoff, IllegalMove, KVTransferParams, State
from baton.spec.schema import BatonBlock, Recovery
from tests.unit.gateway.fakes import LONG, Behave, Stack, stack, until

PARAMS = KVTransferParams(
    do_remote_prefill=True, remote_engine_id="p", remote_block_ids=[[1]], remote_host="h",
    remote_port=1,
)  # fmt: skip
ENDS = {state for state, facts in FACTS.items() if not facts.moves}


def happen(handoff: Handoff, event: Event) -> State:
    return handoff.answered(PARAMS) if event is Event.ANSWERED else handoff.move(event)


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_any_order_of_events_is_followed_or_refused(events: list[Event]) -> None:
    """An event that a state does not know changes nothing; what has ended stays ended."""
    handoff = Handoff("p", "id")
    for event in events:
        before = handoff.state
        try:
            after = happen(handoff, event)
        except IllegalMove:
            assert handoff.state is before
            assert event not in FACTS[before].moves
        else:
            assert before not in ENDS
            assert after is FACTS[before].moves[event]


@given(st.lists(st.sampled_from(Event), max_size=12))
def test_every_state_ends_by_its_deadlines_alone(events: list[Event]) -> None:
    """Should nothing more be heard of anybody: at most one deadline for each state."""
    handoff = Handoff("p", "id")
    for event in events:
        if event in FACTS[handoff.state].moves:
            happen(handoff, event)
    for _ in FACTS:
        late = FACTS[handoff.state].late
        if late is None:
            break
        handoff.move(late)
    assert handoff.state in ENDS


def test_every_state_that_holds_kv_says_how_it_is_let_go() -> None:
    """With a deadline and an action; and the gateway's own end is known everywhere."""
    for state, facts in FACTS.items():
        if state in ENDS:
            assert facts.deadline is facts.late is facts.release is None
            continue
        assert facts.holds
        assert facts.deadline
        assert facts.late in facts.moves
        assert facts.release
        assert Event.SHUT_DOWN in facts.moves
    assert {state for state in ENDS if FACTS[state].holds} == {State.LAPSING}


def test_only_an_offer_that_was_made_can_be_asked_for() -> None:
    """A handoff without an answer has no params that could be sent to anybody."""
    handoff = Handoff("p", "id")
    with pytest.raises(IllegalMove):
        _ = handoff.params
    with pytest.raises(IllegalMove):
        handoff.move(Event.ASKED)
    handoff.answered(PARAMS)
    assert handoff.params is PARAMS
    with pytest.raises(IllegalMove):
        handoff.answered(PARAMS)


FAULTS: list[dict[str, Any]] = [
    {}, {}, {}, {"delay_s": 0.05}, {"status": 500}, {"status": 503}, {"status": 400},
    {"drop": True}, {"no_params": True}, {"error_first": True}, {"die_after": 2},
    {"error_after": 1}, {"end_early": True}, {"no_answer": True}, {"delay_s": 0.6},
]  # fmt: skip


async def _one(s: Stack, rng: random.Random) -> None:
    """A request that meets faults and may be given up at any moment."""
    body = {"prompt": LONG, "stream": rng.random() < 0.6}
    path = rng.choice(["/v1/completions", "/v1/chat/completions"])
    patience = rng.choice([rng.uniform(0, 0.03), rng.uniform(0, 0.2), 5.0])
    try:
        async with asyncio.timeout(patience), s.session.post(s.url + path, json=body) as answer:
            await answer.read()
    except (TimeoutError, aiohttp.ClientError):
        return


def _tasks() -> list[str]:
    """What runs, but for the fake engines' side of connections that are kept open."""
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
    return sorted(name for name in names if name != "RequestHandler.start")


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_happens_nothing_is_held_in_the_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random faults on both sides, random hang-ups, forty requests at once, retries among them."""
    monkeypatch.setattr(releases, "ABORT_SETTLES_S", 0.05)
    monkeypatch.setattr(releases, "PATIENCE_S", 1.0)
    rng = random.Random(seed)
    settings = BatonBlock(
        recovery=Recovery(prefill_timeout_s=0.3, decode_first_byte_timeout_s=0.5, max_attempts=3)
    )
    async with stack(prefill=2, decode=2, settings=settings) as s:
        before = _tasks()
        for engine in (*s.prefill, *s.decode):
            engine.plan.extend(Behave(**rng.choice(FAULTS)) for _ in range(60))
        await asyncio.gather(*(_one(s, rng) for _ in range(40)))
        parts = s.app._parts
        await until(lambda: parts.releases.pending == 0)
        await until(lambda: all(e.running == 0 for e in (*s.prefill, *s.decode)))
        await until(lambda: _tasks() == before)
        ends = {
            sample.labels["outcome"]: sample.value
            for metric in s.app.metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "baton_kv_releases_total"
        }
        held = sum(len(engine.held) for engine in s.prefill)
        # What the machine left to a lease is all that may still be held.
        assert held <= ends.get("lapsing", 0) + ends.get("dropped", 0), (held, ends)
