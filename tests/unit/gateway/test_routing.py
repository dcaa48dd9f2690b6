"""Which engine is chosen, and what is remembered of prompts to choose it by."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import LegFailed
from baton.gateway.candidates import Candidates
from baton.gateway.directory import LeaseDirectory
from baton.gateway.intake import Ask
from baton.gateway.prefixes import (
    KEPT_HOLDERS,
    LENGTHS,
    LONGEST,
    SHORTEST,
    PrefixIndex,
    Prompt,
    beginning_of,
    prompt_of,
)
from baton.gateway.routes import lookup
from baton.gateway.routing import COMPARED, InFlight, Router, bound, load_of
from baton.spec.lease import DirectorySnapshot, EngineLease, EngineLoad
from baton.spec.schema import BatonBlock, Routing
from tests.unit.gateway.fakes import stack

LONG = "a system prompt that many requests begin with. " * 60


def _lease(name, running=0, waiting=0, kv=0.0, engine_id=None):
    return EngineLease(
        replica_id=name, role="prefill", url=f"http://{name}", engine_id=engine_id or name,
        model_id="m", load=EngineLoad(running=running, waiting=waiting, kv_usage=kv),
    )  # fmt: skip


def _chat(*texts, **fields):
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[n % 3], "content": text} for n, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **fields}


def _asked(body):
    prompt = Prompt(body)
    assert prompt.keys
    return prompt


def _router(seed=1, *, prefixes=True, gateways=1):
    index = PrefixIndex() if prefixes else None
    return Router(InFlight(), random.Random(seed), index, gateways)


pools = st.lists(
    st.builds(_lease, st.uuids().map(str), st.integers(0, 9), st.integers(0, 9)),
    max_size=24,
    unique_by=lambda e: e.replica_id,
)
prompts = st.sampled_from([Prompt(_chat(f"{n} {LONG}", "and?")) for n in range(3)])


@st.composite
def learned(draw, engines):
    """Two routers that know and draw the same, one of them without prefixes; and the seed."""
    seed, gateways = draw(st.integers(0, 99)), draw(st.sampled_from([1, 2, 3]))
    pair = _router(seed, gateways=gateways), _router(seed, prefixes=False, gateways=gateways)
    for engine in draw(st.lists(st.sampled_from(engines), max_size=30)) if engines else ():
        prompt = draw(prompts)
        assert prompt.keys
        for router in pair:
            router.learn(engine, prompt)
            router._inflight.begin(engine)
    return pair


# -- the choice ------------------------------------------------------------------------------------


@given(pools, prompts, st.data())
def test_an_excluded_engine_is_never_chosen_and_only_nothing_left_is_none(engines, prompt, data):
    """However much of the prompt it holds."""
    router, _ = data.draw(learned(engines))
    excluded = data.draw(st.sets(st.sampled_from([e.replica_id for e in engines] or ["x"])))
    choice = router.pick(engines, excluded, prompt)
    left = [e for e in engines if e.replica_id not in excluded]
    if choice is None:
        assert left == []
    else:
        assert choice.engine in left
        assert (choice.why == "only") == (len(left) == 1)


@given(pools, prompts, st.data())
def test_a_prefix_never_beats_load_by_more_than_its_bound(engines, prompt, data):
    """The bound is in what load alone would have chosen, with the same random numbers."""
    router, by_load = data.draw(learned(engines))
    choice, other = router.pick(engines, (), prompt), by_load.pick(engines, (), prompt)
    if choice is None:
        assert other is None
    elif choice.why in ("load", "spill", "only"):
        assert choice.engine == other.engine
    else:
        worth = choice.held if choice.why == "prefix" else router._home_worth
        assert router.load(choice.engine) <= bound(router.load(other.engine), worth)


@given(pools, prompts, st.data())
def test_a_seed_repeats_every_choice(engines, prompt, data):
    """The same view, the same history, the same numbers: the same engines."""
    seed = data.draw(st.integers(0, 9))
    chosen = []
    for _ in range(2):
        router = _router(seed, gateways=3)
        run = []
        for _ in range(8):
            choice = router.pick(engines, (), prompt)
            run.append(choice and (choice.engine.replica_id, choice.why))
            if choice is not None:
                router._inflight.begin(choice.engine)
                router.learn(choice.engine, prompt)
        chosen.append(run)
    assert chosen[0] == chosen[1]


@given(pools, st.data())
def test_few_engines_are_all_compared_and_of_many_the_less_loaded_of_two(engines, data):
    """With two drawn, the busiest is chosen only when it is as busy as another."""
    gateways = data.draw(st.sampled_from([1, 3]))
    router = _router(prefixes=False, gateways=gateways)
    choice = router.pick(engines)
    loads = sorted(router.load(e) for e in engines)
    if choice is None or choice.why == "only":
        return
    load = router.load(choice.engine)
    few = len(engines) <= (COMPARED if gateways == 1 else 2)
    assert load == loads[0] if few else load <= loads[-2]


@given(st.integers(1, 16))
def test_equal_engines_take_turns(count):
    """Every engine once in a round."""
    router = _router(prefixes=False)
    engines = [_lease(str(n)) for n in range(count)]
    assert {router.pick(engines).engine.replica_id for _ in range(count)} == {
        str(n) for n in range(count)
    }


# -- load ------------------------------------------------------------------------------------------


def test_own_requests_count_before_the_lease_tells_of_them():
    """Leases are a second old."""
    router = _router(prefixes=False)
    a, b = _lease("a"), _lease("b")
    router._inflight.begin(a)
    assert {router.pick([a, b]).engine.replica_id for _ in range(4)} == {"b"}
    router._inflight.end(a)
    assert router._inflight.count("a") == 0


def test_own_requests_in_a_lease_are_not_counted_twice_nor_after_they_ended():
    """What a lease holds beyond this gateway's latest peak is what other gateways sent."""
    router = _router(prefixes=False)
    mine = _lease("a", running=3)
    others = _lease("b")
    for _ in range(3):
        router._inflight.begin(mine)
    assert router.load(mine) == 3
    for _ in range(3):
        router._inflight.end(mine)
    assert router.load(mine) == 0  # the lease still tells of them
    for _ in range(2):  # two reads later it cannot mean them any more
        router.pick(Candidates.of([mine, others], read=object()))
    assert router.load(mine) == 3


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_load_is_never_less_than_what_is_surely_there(running, waiting, own, peak):
    """Own requests are known; a full KV cache weighs more than any of this."""
    engine = _lease("a", running, waiting)
    assert load_of(engine, own, peak) >= own
    assert load_of(engine, own, 0) == own + running + waiting
    assert load_of(_lease("a", kv=0.99), 0) > load_of(engine, own)


# -- prefix, spill, home ---------------------------------------------------------------------------


def test_the_engine_that_holds_the_beginning_is_chosen_until_it_is_too_busy():
    """Then the choice is by load, and says so."""
    router = _router()
    engines = [_lease(str(n)) for n in range(8)]
    prompt = _asked(_chat(LONG, "first"))
    router.learn(engines[5], prompt)
    again = _asked(_chat(LONG, "second"))
    whys = []
    for _ in range(6):
        choice = router.pick(engines, (), again)
        whys.append((choice.engine.replica_id, choice.why))
        router._inflight.begin(engines[5])
    assert whys[0] == ("5", "prefix")
    assert 0.7 < router._by_prefix(router._prefixes, Candidates.of(engines[5:6]), engines[5],
                                   again).held < 1  # fmt: skip
    assert whys[-1][1] == "spill"
    assert whys[-1][0] != "5"


def test_a_small_share_is_no_reason_for_a_long_queue():
    """The bound shrinks with what is held."""
    router = _router()
    engines = [_lease("a", waiting=2), _lease("b")]
    router.learn(engines[0], _asked(_chat(LONG, "x")))
    assert router.pick(engines, (), Prompt(_chat(LONG, "y"))).why == "prefix"
    assert router.pick(engines, (), Prompt(_chat(LONG, "y" * 40_000))).why == "spill"


def test_the_longest_match_goes_first_and_a_shorter_one_when_that_is_too_busy():
    """Conversations behind one system prompt."""
    router = _router()
    engines = [_lease("talk", waiting=40), _lease("system"), _lease("none")]
    router.learn(engines[1], _asked(_chat(LONG, "another")))
    router.learn(engines[0], _asked(_chat(LONG, "this talk. " * 400)))
    more = Prompt(_chat(LONG, "this talk. " * 400, "answer", "more"))
    assert router.pick(engines, (), more).engine.replica_id == "system"
    engines[0] = _lease("talk")
    assert router.pick(engines, (), more).engine.replica_id == "talk"


def test_an_engine_that_was_started_again_holds_nothing():
    """Another engine_id under the same replica_id."""
    router = _router()
    engines = [_lease(str(n)) for n in range(4)]
    prompt = _asked(_chat(LONG, "x"))
    router.learn(engines[2], prompt)
    assert router.pick(engines, (), prompt).why == "prefix"
    engines[2] = _lease("2", engine_id="2-anew")
    assert router.pick(engines, (), prompt).why == "home"
    router.learn(engines[2], prompt)
    assert router.pick(engines, (), prompt).engine == engines[2]


def test_gateways_that_know_nothing_send_the_same_beginning_to_the_same_engine():
    """Whatever their seeds; other beginnings go elsewhere, and a busy home is passed by."""
    engines = [_lease(str(n)) for n in range(40)]
    homes = set()
    for n in range(20):
        body = _chat(f"{n} {LONG}", "x")
        chosen = {
            (c.engine.replica_id, c.why)
            for c in (_router(seed, gateways=3).pick(engines, (), Prompt(body)) for seed in (1, 2))
        }
        assert len(chosen) == 1
        home, why = chosen.pop()
        assert why == "home"
        homes.add(home)
    assert len(homes) > 10
    busy = [_lease(e.replica_id, waiting=9 * (e.replica_id == home)) for e in engines]
    assert _router().pick(busy, (), Prompt(body)).engine.replica_id != home


def test_a_home_of_a_single_gateway_only_decides_between_equals():
    """With several it may be a request busier, or they would never meet."""
    engines = [_lease(str(n)) for n in range(8)]
    prompt = Prompt(_chat(LONG))
    home = _router().pick(engines, (), prompt).engine
    engines[int(home.replica_id)] = _lease(home.replica_id, waiting=1)
    assert _router().pick(engines, (), prompt).engine != home
    assert _router(gateways=2).pick(engines, (), prompt).engine.replica_id == home.replica_id


def test_homes_are_the_same_in_every_process():
    """Keys are not, and need not be."""
    code = (
        "from baton.gateway.prefixes import Prompt\n"
        "p = Prompt({'prompt': 'x' * 2000}); p.keys; print(p.home)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert int(ran.stdout) == _asked({"prompt": "x" * 2000}).home


def test_a_short_prompt_and_a_router_without_prefixes_go_by_load():
    """Nothing is worth a detour there."""
    engines = [_lease("a"), _lease("b")]
    router = _router()
    short = Prompt(_chat("be brief", "hi"))
    assert router.pick(engines, (), short).why == "load"
    router.learn(engines[0], short)
    assert len(router._prefixes) == 0
    assert _router(prefixes=False).pick(engines, (), Prompt(_chat(LONG))).why == "load"


def test_where_there_is_no_choice_no_prompt_is_read():
    """One engine a role: the most common deployment pays nothing."""
    router, prompt = _router(), Prompt(_chat(LONG))
    choice = router.pick([_lease("a")], (), prompt)
    router.learn(choice.engine, prompt)
    assert not prompt.asked
    assert len(router._prefixes) == 0


# -- what is remembered ----------------------------------------------------------------------------

words = st.builds(str.__mul__, st.text(min_size=1, max_size=4), st.integers(1, 900))


@given(st.lists(words, min_size=1, max_size=4), st.lists(words, max_size=3))
def test_a_conversation_that_grows_keeps_its_keys(talk, more):
    """And gets new ones behind them."""
    before, after = Prompt(_chat(*talk)), Prompt(_chat(*talk, *more))
    assert after.keys[: len(before.keys)] == before.keys


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9), st.lists(st.integers(0, 9)))
def test_token_ids_have_keys_as_text_has(ids, more):
    """`/v1/completions` takes both."""
    ids *= 2 * SHORTEST // len(ids)
    before, after = _asked({"prompt": ids}), Prompt({"prompt": ids + more})
    assert after.keys[: len(before.keys)] == before.keys


def test_a_token_id_ends_where_the_next_begins():
    """Its last digit may be the last byte that is looked at."""
    ids = [1] * 506 + [11]
    assert len(beginning_of({"prompt": ids})) == SHORTEST
    assert _asked({"prompt": ids}).keys == _asked({"prompt": [*ids, 7]}).keys
    assert _asked({"prompt": ids}).keys != _asked({"prompt": [*ids[:-1], 117]}).keys


@pytest.mark.parametrize(
    "other",
    [
        {"model": "another"},
        {"cache_salt": "mine"},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"messages": [{"role": "user", "content": LONG}]},
    ],
)
def test_what_keeps_caches_apart_keeps_keys_apart(other):
    """vLLM hashes the salt into the first block; templates put the rest before the messages."""
    body = _chat(LONG, "x")
    assert not set(_asked(body).keys) & set(_asked({**body, **other}).keys)


def test_what_does_not_shape_the_prompt_shapes_no_key():
    """Sampling, streaming, limits."""
    body = _chat(LONG, "x")
    assert _asked(body).keys == _asked({**body, "temperature": 1, "stream": True, "n": 2}).keys


@given(st.text(min_size=1, max_size=9), st.booleans(), st.integers(0, 3))
def test_a_long_prompt_is_read_only_so_far(text, chat, more):
    """Cutting a message early changes nothing of what is looked at."""
    text *= LONGEST // len(text) + 1
    bodies = [
        _chat(t, "y") if chat else {"prompt": t} for t in (text, text + "tail" * more)
    ]  # fmt: skip
    first, second = (beginning_of(body) for body in bodies)
    assert len(first) == LONGEST
    assert first == second
    assert len(Prompt(bodies[0]).keys) == len(LENGTHS)


def test_lengths_grow_by_a_quarter_at_most():
    """So that what is shared is known to a fifth."""
    assert (LENGTHS[0], LENGTHS[-1], len(LENGTHS)) == (SHORTEST, LONGEST, 25)
    assert all(1 < b / a <= 1.25 for a, b in itertools.pairwise(LENGTHS))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
fields = st.sampled_from(["prompt", "messages", "input", "system", "tools", "cache_salt"])


@given(st.dictionaries(fields, json_values, max_size=4))
def test_any_body_has_a_beginning(body):
    """What is wrong with it an engine says."""
    assert len(beginning_of(body)) <= LONGEST


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=60), st.integers(1, 50))
def test_memory_is_bounded(steps, size):
    """Whatever comes, in keys and in holders of each."""
    index = PrefixIndex(size)
    for prompt, engine in steps:
        index.learn([prompt * 100 + n for n in range(5)], _lease(str(engine)))
        assert len(index) <= size
        assert all(len(found) <= KEPT_HOLDERS for found in index._holders.values())


def test_the_latest_holders_stay_and_what_many_prompts_share_is_forgotten_last():
    """Prompts 1 and 2 begin with key 0; there is room for four keys."""
    index = PrefixIndex(4)
    for n in range(6):
        index.learn([0, 1], _lease(str(n)))
    assert [name for name, _ in dict(index.holders([0]))[1]] == ["5", "4", "3", "2"]
    index.learn([0, 2, 3, 4], _lease("9"))
    assert set(index._holders) == {0, 2, 3, 4}
    index.learn([0, 5], _lease("9"))
    assert set(index._holders) == {0, 5, 2, 3}


@pytest.mark.parametrize(
    ("path", "why_alone", "expected"),
    [
        ("/v1/chat/completions", None, True),
        ("/v1/chat/completions", "mode_never", True),
        ("/v1/chat/completions", "media", False),
        ("/v1/responses", "engine_state", False),
        ("/v1/embeddings", "route", False),
    ],
)
def test_only_prompts_that_can_be_read_are(path, why_alone, expected):
    """Decode alone has a prefix cache as well."""
    ask = Ask(lookup(path)[0], "POST", path, {"input": "x"}, False, {}, why_alone)
    assert (prompt_of(ask) is not None) == expected


# -- through the gateway ---------------------------------------------------------------------------


async def test_an_open_circuit_keeps_the_prefix_from_being_chosen():
    """Candidates come from the directory, in the order of their leases."""
    engines = tuple(_lease(str(n)) for n in range(4))

    async def fetch():
        return DirectorySnapshot(engines=engines)

    directory = LeaseDirectory(fetch, interval_s=60)
    await directory.start()
    assert directory.prefill_engines() is directory.prefill_engines()  # nobody walks over all
    router, prompt = _router(), _asked(_chat(LONG, "x"))
    router.learn(engines[2], prompt)
    assert router.pick(directory.prefill_engines(), (), prompt).engine == engines[2]
    with pytest.raises(LegFailed), directory.breakers.leg(engines[2]):
        raise LegFailed("refused", "2")
    assert list(directory.prefill_engines()) == [engines[0], engines[1], engines[3]]
    assert router.pick(directory.prefill_engines(), (), prompt).engine != engines[2]
    await directory.close()


async def test_requests_that_begin_alike_meet_on_one_prefill_and_one_decode_engine():
    """The timeline and the metrics say why."""
    async with stack(prefill=3, decode=3) as s:
        for n in range(4):
            await s.post("/v1/chat/completions", _chat(LONG, f"question {n}"))
        assert sorted(len(e.seen) for e in s.prefill) == [0, 0, 4]
        assert sorted(len(e.seen) for e in s.decode) == [0, 0, 4]
        lines = json.loads((await s.get("/baton/requests"))[1])["requests"]
        assert lines[0]["choices"]["prefill"] == {"why": "home", "held": 0.0}
        assert lines[-1]["choices"]["prefill"]["why"] == "prefix"
        assert lines[-1]["choices"]["decode"]["held"] > 0.8
        page = (await s.get("/metrics"))[1].decode()
        for leg in ("prefill", "decode"):
            assert f'baton_routing_choices_total{{leg="{leg}",why="prefix"}} 3.0' in page


async def test_without_affinity_they_take_turns():
    """`routing.prefix_affinity: false`."""
    settings = BatonBlock(routing=Routing(prefix_affinity=False))
    async with stack(prefill=2, settings=settings) as s:
        for n in range(4):
            await s.post("/v1/chat/completions", _chat(LONG, f"question {n}"))
        assert [len(e.seen) for e in s.prefill] == [2, 2]


async def test_a_failed_leg_teaches_nothing():
    """The engine that broke off has perhaps computed nothing."""
    async with stack(prefill=2) as s:
        s.prefill[0].always = s.prefill[1].always = type(s.prefill[0].always)(status=500)
        await s.post("/v1/chat/completions", _chat(LONG, "x"))
        learned = s.app.router._prefixes._holders.values()
        assert {name for holders in learned for name, _ in holders} == {s.decode[0].url}
