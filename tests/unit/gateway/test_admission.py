"""Who is let in, in which order, and that every place comes back."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import Saturated
from baton.gateway.admission import Admission, HeldBodies
from baton.spec.schema import Admission as Limits
from baton.spec.schema import BatonBlock, Pool
from tests.unit.gateway.fakes import LONG, Behave, stack, until


def _limits(**values):
    return Limits(**{"max_inflight": 1, "max_queue": 100, **values})


def _ask(admission, key="k", *, prefill=False, **more):
    return admission.ask(key, prefill=prefill, **more)


def _order(admission, holder, waiting):
    """The order in which the waiting get the only place."""
    served = []
    while waiting:
        holder.leave()
        (holder,) = [place for place in waiting if place.state == "held"]
        waiting.remove(holder)
        served.append(holder.key)
    holder.leave()
    assert (admission.inflight, admission.queued) == (0, 0)
    return served


async def test_a_key_with_a_hundred_waiting_does_not_starve_one_with_one():
    """The one that came last of all is served second."""
    admission = Admission(_limits(max_queue=200))
    holder = _ask(admission, "many")
    waiting = [_ask(admission, "many") for _ in range(100)]
    waiting.append(_ask(admission, "one"))
    served = _order(admission, holder, waiting)
    assert served.index("one") <= 1
    assert served.count("many") == 100


async def test_two_busy_keys_take_turns():
    """Whoever came first with all of his."""
    admission = Admission(_limits())
    holder = _ask(admission, "x")
    waiting = [_ask(admission, key) for key in "aaaabbbb"]
    assert "".join(_order(admission, holder, waiting)) == "abababab"


async def test_a_key_of_weight_two_gets_two_turns_for_anothers_one():
    """In any stretch of the queue."""
    admission = Admission(_limits())
    holder = _ask(admission, "x")
    waiting = [_ask(admission, "heavy", weight=2.0) for _ in range(20)]
    waiting += [_ask(admission, "light") for _ in range(20)]
    served = _order(admission, holder, waiting)
    assert 9 <= served[:15].count("heavy") <= 11


async def test_one_key_alone_is_served_in_the_order_of_arrival():
    """First come, first served."""
    admission = Admission(_limits())
    holder = _ask(admission)
    waiting = [_ask(admission) for _ in range(5)]
    for expected in list(waiting):
        holder.leave()
        assert [place for place in waiting if place.state == "held"] == [expected]
        waiting.remove(expected)
        holder = expected


async def test_leaving_and_coming_back_gains_a_key_nothing():
    """Its turn is remembered while others wait."""
    admission = Admission(_limits())
    holder = _ask(admission, "x")
    waiting = [_ask(admission, "a"), _ask(admission, "b"), _ask(admission, "b")]
    holder.leave()
    assert waiting[0].state == "held"
    again = _ask(admission, "a")  # its line was empty meanwhile
    waiting[0].leave()
    assert (waiting[1].state, again.state) == ("held", "waiting")


async def test_the_key_that_fills_the_queue_makes_room_for_another():
    """Its newest request gets the 429, and one that fills it no less gets its own."""
    admission = Admission(_limits(max_queue=3))
    _ask(admission, "many")
    waiting = [_ask(admission, "many") for _ in range(3)]
    with pytest.raises(Saturated):
        _ask(admission, "many")
    small = _ask(admission, "one")
    assert small.state == "waiting"
    assert [place.state for place in waiting] == ["waiting", "waiting", "pushed_out"]
    with pytest.raises(Saturated):
        await waiting[2].wait(0)
    waiting[2].leave()
    assert admission.queued == 3


async def test_a_full_queue_and_a_long_wait_are_both_refused():
    """And the wait can go on after a first look."""
    admission = Admission(_limits(max_queue=1))
    holder = _ask(admission)
    place = _ask(admission)
    with pytest.raises(Saturated):
        _ask(admission)
    assert not await place.wait(0.001)
    holder.leave()
    assert await place.wait(0.001)
    place.leave()
    place.leave()
    assert (admission.inflight, admission.queued) == (0, 0)


async def test_a_place_given_to_a_cancelled_waiter_goes_to_the_next():
    """Nothing leaks when both happen at once."""
    admission = Admission(_limits())
    holder, first, second = (_ask(admission) for _ in range(3))
    task = asyncio.create_task(first.wait(60))
    await asyncio.sleep(0)
    holder.leave()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first.leave()  # as whoever was cancelled does on his way out
    assert second.state == "held"
    second.leave()
    assert (admission.inflight, admission.queued) == (0, 0)


async def test_what_decode_does_alone_never_waits_for_prefill():
    """Also behind ten that do, and of the same key."""
    admission = Admission(_limits(max_inflight=20, prefill=Pool(max_inflight=1)))
    _ask(admission, prefill=True)
    waiting = [_ask(admission, prefill=True) for _ in range(10)]
    assert _ask(admission).state == "held"
    assert {place.state for place in waiting} == {"waiting"}


async def test_the_prefill_place_is_free_when_that_leg_is_over():
    """The decode place is not."""
    admission = Admission(
        _limits(max_inflight=9, prefill=Pool(max_inflight=1), decode=Pool(max_inflight=2))
    )
    first = _ask(admission, prefill=True)
    second = _ask(admission, prefill=True)
    third = _ask(admission, prefill=True)
    first.prefill_done()
    first.prefill_done()
    assert (second.state, third.state) == ("held", "waiting")
    second.prefill_done()
    assert third.state == "waiting"  # decode is full: no prefill for what could not be taken
    assert admission.prefill.inflight == 0
    second.leave()
    assert third.state == "held"
    first.leave()
    third.leave()
    assert [pool.inflight for pool in admission.pools] == [0, 0, 0]


async def test_each_pool_has_a_queue_of_its_own():
    """A full queue for prefill refuses nobody who goes to decode alone."""
    admission = Admission(_limits(max_inflight=9, prefill=Pool(max_inflight=1, max_queue=1)))
    _ask(admission, prefill=True)
    _ask(admission, prefill=True)
    with pytest.raises(Saturated, match="prefill pool"):
        _ask(admission, prefill=True)
    assert _ask(admission).state == "held"


async def test_prompt_tokens_are_a_limit_and_short_prompts_do_not_pass_a_long_one_for_ever():
    """The long one's room is kept for it; one above the whole limit runs alone."""
    admission = Admission(_limits(max_inflight=9, prefill=Pool(max_prompt_tokens_inflight=100)))
    first = _ask(admission, prefill=True, tokens=60)
    long = _ask(admission, "other", prefill=True, tokens=90)
    short = _ask(admission, prefill=True, tokens=10)
    assert (long.state, short.state) == ("waiting", "waiting")
    first.prefill_done()
    assert (long.state, short.state) == ("held", "held")
    huge = _ask(admission, prefill=True, tokens=1000)
    long.prefill_done()
    assert huge.state == "waiting"
    short.prefill_done()
    assert huge.state == "held"


async def test_giving_up_frees_what_was_kept():
    """Those behind it go on at once."""
    admission = Admission(_limits(max_inflight=9, prefill=Pool(max_prompt_tokens_inflight=100)))
    _ask(admission, prefill=True, tokens=60)
    long = _ask(admission, "other", prefill=True, tokens=90)
    short = _ask(admission, prefill=True, tokens=10)
    long.leave()
    assert short.state == "held"


steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "prefill_done", "leave"]),
        st.integers(0, 3),
        st.booleans(),
        st.integers(0, 60),
        st.integers(0, 10_000),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 4), st.integers(0, 4))
def test_whatever_happens_limits_hold_and_nothing_leaks(events, room, queue):
    """Random keys, pools, sizes and ends; afterwards everything is free."""

    async def play():
        admission = Admission(
            _limits(
                max_inflight=room + 1,
                max_queue=queue,
                prefill=Pool(max_inflight=room, max_prompt_tokens_inflight=100),
                decode=Pool(max_inflight=room),
            )
        )
        places = []
        for kind, key, prefill, tokens, which in events:
            if kind == "ask":
                try:
                    places.append(_ask(admission, str(key), prefill=prefill, tokens=tokens))
                except Saturated:
                    # Refused only when a queue that it needs is full.
                    assert admission.queued >= queue
            elif places and kind == "leave":
                places.pop(which % len(places)).leave()
            elif places:
                places[which % len(places)].prefill_done()
            held = [p for p in places if p.state == "held"]
            assert admission.inflight == len(held) <= room + 1
            assert admission.decode.inflight == len(held) <= room
            assert admission.prefill.inflight == sum(p.holds_prefill for p in held) <= room
            sizes = [p.tokens for p in held if p.holds_prefill]
            assert admission.prefill.tokens == sum(sizes)
            assert sum(sizes) <= 100 or len([s for s in sizes if s]) == 1
            waiting = [p for p in places if p.state == "waiting"]
            assert admission.queued == len(waiting) <= queue
            # Nobody waits for nothing: whoever is next in any order lacks a place.
            if waiting:
                assert admission._next() is None
        for place in places:
            place.leave()
        assert [(p.inflight, p.queued, p.tokens) for p in admission.pools] == [(0, 0, 0)] * 3
        assert admission._lines == {}
        assert admission.waiting_since is None

    asyncio.run(play())


def test_bodies_that_are_too_large_together_are_refused():
    """And what was taken is given back."""
    bodies = HeldBodies(100)
    bodies.take(80)
    with pytest.raises(Saturated):
        bodies.take(30)
    bodies.give_back(80)
    bodies.take(100)


# -- through the gateway -----------------------------------------------------------------------


def _settings(**admission):
    return BatonBlock(admission=Limits(**admission))


async def _until_places_are_free(s):
    await until(lambda: s.app.admission.inflight == 0 and s.app.admission.queued == 0)


async def test_of_a_hundred_streams_ten_run_ten_wait_and_eighty_get_429():
    """With Retry-After, OpenAI-shaped; none hangs, and every served stream is whole."""
    settings = _settings(max_inflight=10, max_queue=10, queue_timeout_s=60)
    async with stack(settings=settings) as s:
        s.decode[0].gate = asyncio.Event()
        body = {"prompt": LONG, "stream": True}
        tasks = [asyncio.create_task(s.post("/v1/completions", body)) for _ in range(100)]
        await until(lambda: sum(task.done() for task in tasks) == 80)
        s.decode[0].gate.set()
        answers = await asyncio.wait_for(asyncio.gather(*tasks), 60)
        served = [raw for status, raw, _ in answers if status == 200]
        refused = [(raw, headers) for status, raw, headers in answers if status == 429]
        assert (len(served), len(refused)) == (20, 80)
        assert all(raw.endswith(b"data: [DONE]\n\n") for raw in served)
        for raw, headers in refused:
            assert int(headers["retry-after"]) >= 1
            assert b'"code":"rate_limit_exceeded"' in raw
            assert b'"type":"rate_limit_error"' in raw
        await _until_places_are_free(s)
        assert s.kv_is_free()


@pytest.mark.parametrize(
    ("path", "words"),
    [("/v1/messages", b'"type":"error"'), ("/v1/responses", b'"error":{')],
)
async def test_a_429_is_in_the_callers_dialect(path, words):
    """Anthropic's clients look for `type`."""
    async with stack(settings=_settings(max_inflight=1, max_queue=0)) as s:
        s.decode[0].gate = asyncio.Event()
        running = asyncio.create_task(s.complete())
        await until(lambda: s.app.admission.inflight == 1)
        status, raw, headers = await s.post(path, {"messages": [], "input": "x"})
        assert (status, "retry-after" in headers) == (429, True)
        assert words in raw
        s.decode[0].gate.set()
        assert (await running)[0] == 200


async def test_a_caller_who_hangs_up_while_queued_leaves_the_queue():
    """No engine hears of him, and the next takes his turn."""
    async with stack(settings=_settings(max_inflight=1, queue_timeout_s=60)) as s:
        s.decode[0].gate = asyncio.Event()
        first = asyncio.create_task(s.complete())
        await until(lambda: s.app.admission.inflight == 1)
        gone = asyncio.create_task(s.complete(user="gone"))
        await until(lambda: s.app.admission.queued == 1)
        last = asyncio.create_task(s.complete(user="last"))
        await until(lambda: s.app.admission.queued == 2)
        gone.cancel()
        await until(lambda: s.app.admission.queued == 1)
        s.decode[0].gate.set()
        assert [(await task)[0] for task in (first, last)] == [200, 200]
        asked = [seen.body.get("user") for seen in s.prefill[0].seen]
        assert asked == [None, "last"]
        await _until_places_are_free(s)
        (line,) = [t for t in s.app.timelines.as_list() if t["outcome"] == "hangup"]
        assert line["prefill_engine"] is None


async def test_a_full_prefill_pool_keeps_only_those_waiting_who_need_it():
    """A short prompt goes to decode past a queue for prefill; KV never waits for a decode place."""
    settings = _settings(prefill=Pool(max_inflight=1), decode=Pool(max_inflight=5))
    async with stack(settings=settings) as s:
        s.prefill[0].gate = asyncio.Event()
        tasks = [asyncio.create_task(s.complete()) for _ in range(3)]
        await until(lambda: s.app.admission.queued == 2)
        status, _, headers = await s.complete(prompt="short")
        assert (status, headers["x-baton-route"]) == (200, "decode_only")
        assert len(s.prefill[0].seen) == 1
        s.prefill[0].gate.set()
        answers = await asyncio.gather(*tasks)
        assert [(a[0], a[2]["x-baton-route"]) for a in answers] == [(200, "pd")] * 3
        await _until_places_are_free(s)


async def test_without_a_prefill_engine_nobody_waits_for_its_pool():
    """It is decode alone then."""
    settings = _settings(prefill=Pool(max_inflight=1))
    async with stack(prefill=0, settings=settings) as s:
        s.decode[0].gate = asyncio.Event()
        tasks = [asyncio.create_task(s.complete()) for _ in range(3)]
        await until(lambda: s.app.admission.inflight == 3)
        s.decode[0].gate.set()
        assert [(await task)[0] for task in tasks] == [200] * 3


async def test_a_prefill_that_fails_gives_its_place_back():
    """The request goes on at decode, the next one's prefill begins."""
    settings = _settings(prefill=Pool(max_inflight=1))
    async with stack(settings=settings) as s:
        s.prefill[0].plan.append(Behave(status=500))
        s.decode[0].gate = asyncio.Event()
        tasks = [asyncio.create_task(s.complete()) for _ in range(2)]
        await until(lambda: len(s.prefill[0].seen) == 2)
        assert s.app.admission.inflight == 2
        s.decode[0].gate.set()
        assert [(await task)[0] for task in tasks] == [200] * 2
        await _until_places_are_free(s)


async def test_a_body_that_dribbles_in_is_a_408_and_its_bytes_are_given_back():
    """The others are served meanwhile."""
    settings = _settings(body_timeout_s=0.3)
    async with stack(settings=settings) as s:
        host, port = s.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"content-length: 1000\r\n\r\n{"
        )
        await until(lambda: s.app._bodies.held == 1)
        assert (await s.complete())[0] == 200
        line = await asyncio.wait_for(reader.readline(), 30)
        assert b" 408 " in line
        writer.close()
        await until(lambda: s.app._bodies.held == 0)


async def test_too_many_large_bodies_at_once_are_a_429():
    """Memory is bounded also before anybody is let in."""
    settings = _settings(max_body_bytes=2000, max_body_bytes_held=3000, max_inflight=1)
    async with stack(settings=settings) as s:
        s.decode[0].gate = asyncio.Event()
        running = asyncio.create_task(s.complete(user="x" * 1500))
        await until(lambda: s.app.admission.inflight == 1)
        status, answer, headers = await s.complete(user="x" * 1500)
        assert (status, "retry-after" in headers) == (429, True)
        assert answer["error"]["code"] == "rate_limit_exceeded"
        s.decode[0].gate.set()
        assert (await running)[0] == 200
        await until(lambda: s.app._bodies.held == 0)


async def test_pools_and_keys_are_in_the_metrics():
    """By name, with what they hold now."""
    async with stack() as s:
        assert (await s.complete())[0] == 200
        text = (await s.get("/metrics"))[1].decode()
        assert 'baton_pool_inflight{pool="prefill"} 0.0' in text
        assert 'baton_pool_queued{pool="decode"} 0.0' in text
        assert 'baton_key_requests_total{key="anonymous",outcome="ok"} 1.0' in text


async def test_every_answer_says_that_it_was_served_here():
    """Good ones, refusals, and the gateway's own."""
    async with stack() as s:
        assert (await s.complete())[2]["x-baton-served-by"] == "local"
        assert (await s.complete(model="nope"))[2]["x-baton-served-by"] == "local"
        async with s.session.get(s.url + "/health") as r:
            assert r.headers["x-baton-served-by"] == "local"
