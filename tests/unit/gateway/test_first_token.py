"""A first token that leaves from prefill changes when it comes, and nothing else.

Each request goes through two gateways before the same simulated engines, one that says first tokens
early and one that does not. The engines' text depends on every token before it, and they die where
vLLM dies: a wrong continuation gives other words or no engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from baton.gateway.ask import Ask
from baton.gateway.directory import FixedDirectory
from baton.gateway.first_token import (
    Ordinary,
    _may_begin_a_stop_string,
    ends_inside_a_block,
    plan,
    read,
)
from baton.gateway.handoff import KVTransferParams
from baton.gateway.resumable import means_of
from baton.gateway.routes import lookup
from baton.spec.lease import EngineLease
from baton.spec.schema import BatonBlock, Disaggregate, Recovery
from tests.unit.gateway.fakes import serving, until
from tests.unit.gateway.test_resume import BODIES, CHAT, GREEDY, PROMPT
from tests.unit.gateway.test_resume import read as told_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.gateway.test_resume import Told

COMPLETE = "/v1/completions"
BLOCK = 16


@dataclass
class Twins:
    """Engines, and two gateways before them."""

    prefill: SimulatedEngine
    decode: list[SimulatedEngine]
    apps: dict[str, Any]
    urls: dict[str, str]
    session: aiohttp.ClientSession

    async def raw(self, how: str, path: str, body: dict[str, Any]) -> bytes:
        asked = {**body, "stream": True}
        async with self.session.post(self.urls[how] + path, json=asked) as answer:
            raw = await answer.read()
            assert answer.status == 200, raw
            return raw

    async def told(self, how: str, path: str, body: dict[str, Any]) -> Told:
        return told_in(await self.raw(how, path, body))

    async def same(self, path: str, body: dict[str, Any]) -> str:
        """Both say the same; how the early one's first token went."""
        raw = await self.raw("early", path, body)
        early, ordinary = told_in(raw), await self.told("ordinary", path, body)
        assert not self.prefill.core.dead
        assert not any(engine.core.dead for engine in self.decode)
        assert early.error is None, early.error
        assert (early.text, early.finish, early.usage) == (
            ordinary.text,
            ordinary.finish,
            ordinary.usage,
        )
        assert early.done
        assert ids(early) == ids(ordinary)
        assert len({(event["id"], event["created"]) for event in early.events}) == 1
        assert early.events[-1].keys() == ordinary.events[-1].keys()
        if not body.get("return_token_ids"):
            assert b'token_ids":[' not in raw
        return self.went()

    def went(self) -> str:
        """How the first token of the last request went."""
        return self.apps["early"].timelines.as_list()[-1]["first_token"]

    async def nothing_is_held(self) -> None:
        engines = [self.prefill, *self.decode]
        await until(lambda: not any(e.core.pool.usage for e in engines if not e.core.dead))
        assert self.prefill.core.pool.expired_requests == 0
        for app in self.apps.values():
            await until(lambda app=app: app._parts is None or app._parts.releases.pending == 0)
            # The gateway may notice the last hang-up later than the engine does.
            await until(lambda app=app: not any(app.inflight._counts.values()))


def ids(told: Told) -> list[int]:
    return [
        token
        for event in told.events
        for choice in event["choices"]
        for token in choice.get("token_ids") or ()
    ]


@contextlib.asynccontextmanager
async def twins(
    decode: int = 1, *, recovery: Recovery | None = None, **more: Any
) -> AsyncIterator[Twins]:
    more = {"block_size": BLOCK, **more}
    async with contextlib.AsyncExitStack() as stack:
        prefill = await stack.enter_async_context(
            SimulatedEngine(role="prefill", engine_id="p", **more)
        )
        engines = [
            await stack.enter_async_context(
                SimulatedEngine(role="decode", engine_id=f"d{number}", **more)
            )
            for number in range(decode)
        ]
        apps, urls = {}, {}
        for how in ("early", "ordinary"):
            block = BatonBlock(
                disaggregate=Disaggregate(mode="always", first_token=how),
                recovery=recovery or Recovery(),
            )
            view = FixedDirectory(
                [prefill.url], [e.url for e in engines], interval_s=30.0, asks_block_size=True
            )
            apps[how], urls[how] = await stack.enter_async_context(
                serving(view, block, timeout_keep_alive=60)
            )
        async with aiohttp.ClientSession() as session:
            yield Twins(prefill, engines, apps, urls, session)


# -- the same answer -----------------------------------------------------------------------------


async def test_every_kind_of_stream_says_the_same_with_and_without() -> None:
    """Text, finish reason, usage and ids; what cannot be continued goes the ordinary way."""
    ordinary = {"logprobs", "penalty", "seed"}
    async with twins() as t:
        for name, (path, body) in BODIES.items():
            went = await t.same(path, body)
            assert went == ("ordinary: request" if name in ordinary else "early: from_prefill")
        await t.nothing_is_held()


async def test_the_bytes_are_those_of_an_ordinary_stream_but_for_the_id() -> None:
    """Chunk by chunk, also those that are cut and put together without parsing."""
    async with twins() as t:
        for path, prompt in ((COMPLETE, {"prompt": PROMPT}), ("/v1/chat/completions", CHAT)):
            for more in ({}, {"stream_options": {"include_usage": True}}, {"max_tokens": 1}):
                body = {**GREEDY, **prompt, **more}
                cut = [
                    [event.partition(b'"choices"')[2] for event in raw.split(b"\n\n")]
                    for raw in [await t.raw(how, path, body) for how in ("early", "ordinary")]
                ]
                assert cut[0] == cut[1]


async def test_prompts_of_every_length_around_the_borders_of_blocks() -> None:
    """At the end of a block, and one before it, decode says the first token itself."""
    async with twins() as t:
        for length in range(1, 70):
            prompt = [(7 * length + place) % 256 for place in range(length)]
            body = {**GREEDY, "prompt": prompt, "max_tokens": 20, "return_token_ids": True}
            went = await t.same(COMPLETE, body)
            at_border = (length + 1) % BLOCK < 2
            assert (went == "ordinary: block") == at_border, length
            assert at_border or went in ("early: from_prefill", "ordinary: text")
        await t.nothing_is_held()


async def test_the_guard_is_what_keeps_decode_alive() -> None:
    """Without it, a prompt that fills its last block ends the engine, as it ends vLLM's."""
    async with twins() as t:
        body = {"model": "simulated", "prompt": [7] * 2 * BLOCK, "max_tokens": 1}
        url = t.prefill.url + COMPLETE
        leg = {**body, "kv_transfer_params": {"do_remote_decode": True}}
        async with t.session.post(url, json=leg) as answer:
            params = (await answer.json())["kv_transfer_params"]
        longer = {**body, "prompt": [7] * (2 * BLOCK + 1), "kv_transfer_params": params}
        async with t.session.post(t.decode[0].url + COMPLETE, json=longer) as answer:
            assert answer.status == 500
        assert t.decode[0].core.dead


async def test_random_requests_say_the_same() -> None:
    """Prompts of any bytes, and options that a continued stream may have, drawn together."""
    dice = random.Random(20261130)
    words = [
        "day",
        "far",
        "great",
        "light",
        "jalape\u00f1o",
        "\u6771\u4eac",
        "\u221e",
        "\U0001f388",
    ]
    seen: dict[str, int] = {}
    async with twins(answer_tokens=30) as t:
        for number in range(120):
            text = " ".join(dice.choices(words, k=dice.randint(1, 20))) + str(number)
            chat = dice.random() < 0.5
            body: dict[str, Any] = {
                "model": "simulated",
                "temperature": dice.choice([0, 0.7]),
                "max_tokens": dice.choice([1, 2, 3, 17, 40]),
            }
            body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
            if dice.random() < 0.4:
                letters = ["e", " t", "th", "a", "n ", " the", "東", "o", "zzzz"]
                body["stop"] = dice.sample(letters, dice.randint(1, 3))
                body["include_stop_str_in_output"] = dice.random() < 0.3
            if dice.random() < 0.3:
                body["min_tokens"] = min(body["max_tokens"], dice.randint(0, 5))
            if dice.random() < 0.3:
                body["stop_token_ids"] = dice.sample(range(97, 123), 4)
            if dice.random() < 0.3:
                options = {"include_usage": True, "continuous_usage_stats": dice.random() < 0.5}
                body["stream_options"] = options
            if dice.random() < 0.3:
                body["return_token_ids"] = True
            if dice.random() < 0.2:
                body["ignore_eos"] = True
            went = await t.same("/v1/chat/completions" if chat else COMPLETE, body)
            seen[went] = seen.get(went, 0) + 1
        await t.nothing_is_held()
    assert seen["early: from_prefill"] > 40, seen
    assert seen["early: complete"] > 10, seen
    assert seen["ordinary: block"] > 0, seen


async def test_an_answer_of_one_token_is_complete_and_hands_nothing_over() -> None:
    """By its limit, by the context, by a stop token, a stop string or the end of the text."""
    async with twins(max_model_len=200, kv_blocks=64) as t:
        first = (await t.told("ordinary", COMPLETE, {**GREEDY, "prompt": PROMPT[:100]})).text[0]
        whole = {**GREEDY, "prompt": PROMPT[:100]}
        usage = {"stream_options": {"include_usage": True}}
        chat = {**GREEDY, "messages": [{"role": "user", "content": PROMPT[:100]}]}
        for path, body in (
            (COMPLETE, {**whole, "max_tokens": 1}),
            (COMPLETE, {**whole, "max_tokens": 1, **usage}),
            (COMPLETE, {**whole, "stop": first}),
            (COMPLETE, {**whole, "stop": first, "include_stop_str_in_output": True}),
            (COMPLETE, {**whole, "stop_token_ids": [ord(first)], "return_token_ids": True}),
            (COMPLETE, {**GREEDY, "prompt": [65] * 199, "max_tokens": 1}),
            ("/v1/chat/completions", {**chat, "max_tokens": 1, **usage}),
            ("/v1/chat/completions", {**chat, "max_completion_tokens": 1, "max_tokens": None}),
        ):
            read = t.decode[0].core.counts.prompt_tokens["external_kv_transfer"]
            assert await t.same(path, body) == "early: complete"
            read = t.decode[0].core.counts.prompt_tokens["external_kv_transfer"] - read
            assert read < 250  # the ordinary twin's alone
        await t.nothing_is_held()


async def test_an_end_that_is_the_first_token() -> None:
    """The model has nothing to say."""
    async with twins(answer_tokens=1) as t:
        went = set()
        for number in range(60):
            body = {**GREEDY, "prompt": f"{PROMPT[:70]}. {number}"}
            went.add(await t.same(COMPLETE, body))
            await t.same(COMPLETE, {**body, "min_tokens": 3})
        await t.nothing_is_held()
    assert "early: from_prefill" in went


async def test_stop_strings_that_begin_in_the_first_token_are_found() -> None:
    """Each piece of the text as a stop string, from its first character on."""
    async with twins() as t:
        body = {**GREEDY, "prompt": PROMPT}
        text = (await t.told("ordinary", COMPLETE, body)).text
        went = set()
        for start in range(4):
            for length in (1, 2, 3, 7):
                for kept in (False, True):
                    stop = text[start : start + length]
                    more = {"stop": stop, "include_stop_str_in_output": kept}
                    went.add(await t.same(COMPLETE, {**body, **more}))
        await t.nothing_is_held()
    assert went == {"early: complete", "early: from_prefill", "ordinary: stop_string"}


async def test_a_first_token_that_is_no_whole_character_waits_for_the_rest() -> None:
    """Many prompts, until some answers begin with a character of several tokens."""
    async with twins() as t:
        went = []
        for number in range(100):
            prompt = f"{PROMPT[:64]} {number} "
            went.append(await t.same(COMPLETE, {**GREEDY, "prompt": prompt, "max_tokens": 6}))
            if went.count("ordinary: text") > 2:
                break
        await t.nothing_is_held()
    assert went.count("ordinary: text") > 2


async def test_ids_are_whole_for_who_asks_for_them() -> None:
    """The prompt's once, each token's once, on both routes."""
    async with twins() as t:
        for path, prompt in ((COMPLETE, {"prompt": PROMPT}), ("/v1/chat/completions", CHAT)):
            body = {**GREEDY, **prompt, "return_token_ids": True}
            assert await t.same(path, body) == "early: from_prefill"
            prompts = [
                [
                    holder["prompt_token_ids"]
                    for event in (await t.told(how, path, body)).events
                    for holder in (event, *event["choices"])
                    if holder.get("prompt_token_ids")
                ]
                for how in ("early", "ordinary")
            ]
            assert prompts[0] == prompts[1]
            assert len(prompts[0]) == 1


async def test_what_is_not_streamed_goes_as_before() -> None:
    """There is no first token in an answer that comes in one piece."""
    async with twins() as t:
        body = {**GREEDY, "prompt": PROMPT}
        async with t.session.post(t.urls["early"] + COMPLETE, json=body) as answer:
            assert answer.status == 200
        assert t.went() is None


async def test_a_wrong_request_is_refused_as_before() -> None:
    """Status and message, before any token was said."""
    wrong: list[dict[str, Any]] = [
        {"max_tokens": 0}, {"max_tokens": 9000}, {"max_tokens": "7"}, {"temperature": -1},
        {"stop": [""]}, {"stop": ["a", "b", "c", "d", "e"]}, {"min_tokens": 70}, {"min_tokens": -1},
        {"min_tokens": "x"}, {"stop_token_ids": "x"}, {"stream_options": 5}, {"top_p": 0},
        {"stream_options": {"include_usage": "maybe"}}, {"return_token_ids": "perhaps"},
        {"prompt": [999]}, {"prompt": ""}, {"n": 0}, {"max_tokens": 8192},
    ]  # fmt: skip
    async with twins() as t:
        for more in wrong:
            said = []
            for how in ("early", "ordinary"):
                body = {**GREEDY, "prompt": PROMPT, "stream": True, **more}
                async with t.session.post(t.urls[how] + COMPLETE, json=body) as answer:
                    said.append((answer.status, await answer.read()))
            if said[0][0] != 200:
                assert said[0] == said[1], more
            else:
                early, ordinary = (told_in(raw) for _, raw in said)
                assert (early.text, early.error) == (ordinary.text, ordinary.error), more
        await t.nothing_is_held()


# -- when it comes -------------------------------------------------------------------------------


async def test_the_first_token_does_not_wait_for_the_handoff() -> None:
    """It is with the caller while decode still loads KV, and the rest follows."""
    async with twins() as t:
        held = asyncio.Event()
        peers = t.decode[0].core._peers
        load = peers.read

        async def slow(*args: Any, **more: Any) -> Any:
            await held.wait()
            return await load(*args, **more)

        peers.read = slow
        body = {**GREEDY, "prompt": PROMPT, "stream": True}
        async with t.session.post(t.urls["early"] + COMPLETE, json=body) as answer:
            first = await answer.content.readuntil(b"\n\n")
            assert json.loads(first[6:])["choices"][0]["text"] == "w"
            held.set()
            rest = await answer.read()
        peers.read = load
        told = told_in(first + rest)
        assert told.text == (await t.told("ordinary", COMPLETE, body)).text
        timeline = t.apps["early"].timelines.as_list()[0]
        assert list(timeline["stages"]) == [
            "admit_s",
            "route_s",
            "prefill_s",
            "first_token_s",
            "handoff_s",
            "decode_s",
        ]
        assert timeline["ttft_s"] < timeline["total_s"]


async def test_metrics_say_how_first_tokens_went() -> None:
    """By way and reason."""
    async with twins() as t:
        await t.same(COMPLETE, {**GREEDY, "prompt": PROMPT})
        await t.same(COMPLETE, {**GREEDY, "prompt": PROMPT, "seed": 3})
        await t.same(COMPLETE, {**GREEDY, "prompt": PROMPT, "max_tokens": 1})
        page = t.apps["early"].metrics.render().decode()
        for how, reason in (
            ("early", "from_prefill"), ("early", "complete"), ("ordinary", "request"),
        ):  # fmt: skip
            assert f'baton_first_tokens_total{{how="{how}",reason="{reason}"}} 1.0' in page
        assert 'how="ordinary",reason="off"' in t.apps["ordinary"].metrics.render().decode()


# -- when something fails ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        "fail_kv_load", "refuse", "refuse=close",
        *(f"drop_at={n}" for n in (0, 1, 2, 9)), "die_at=0", "die_at=1", "die_at=14",
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["completion", "chat", "stop string", "stop string kept", "usage"])
async def test_a_decode_engine_that_fails_behind_the_first_token(name: str, fault: str) -> None:
    """Another goes on, and the caller cannot tell."""
    path, body = BODIES[name]
    async with twins(2) as t:
        whole = await t.told("ordinary", path, body)
        t.apps["early"].inflight._counts[t.decode[1].url] = 100  # looks busy
        t.decode[0].app.faults.set([f"{fault}*1"])
        told = await t.told("early", path, body)
        assert t.went() == "early: from_prefill"
        assert (told.text, told.finish, told.usage) == (whole.text, whole.finish, whole.usage)
        assert told.done
        assert len({event["id"] for event in told.events}) == 1
        t.apps["early"].inflight._counts[t.decode[1].url] = 0
        await t.nothing_is_held()


async def test_a_stream_with_a_stop_string_may_break_anywhere_twice() -> None:
    """What was sent runs ahead of what is held back, by as much as each engine has repeated."""
    body = {**GREEDY, "prompt": PROMPT, "stop": ["zzzzzz", " of the"]}
    async with twins(3) as t:
        whole = await t.told("ordinary", COMPLETE, body)
        for first in (1, 2, 3, 5, 6, 7, 12):
            for second in (1, 4, 6, 8):
                t.apps["early"].inflight._counts[t.decode[2].url] = 100
                t.decode[0].app.faults.set([f"drop_at={first}*1"])
                t.decode[1].app.faults.set([f"drop_at={second}*1"])
                told = await t.told("early", COMPLETE, body)
                assert (told.text, told.finish, told.error) == (whole.text, whole.finish, None)
                t.apps["early"].directory.breakers.keep(())
        for engine in t.decode:
            engine.app.faults.set([])


async def test_prefill_that_dies_behind_its_answer_costs_nothing_but_time() -> None:
    """Its token is with the caller; its KV is gone; decode computes the prompt itself."""
    async with twins() as t:
        body = {**GREEDY, "prompt": PROMPT}
        whole = await t.told("ordinary", COMPLETE, body)
        peers = t.decode[0].core._peers
        load = peers.read

        async def then_it_was_dead(*args: Any, **more: Any) -> Any:
            t.prefill.kill()
            return await load(*args, **more)

        peers.read = then_it_was_dead
        told = await t.told("early", COMPLETE, body)
        assert t.went() == "early: from_prefill"
        assert (told.text, told.error) == (whole.text, None)


async def test_when_nobody_goes_on_the_stream_says_so() -> None:
    """An error event behind the first token, no silence; the KV is let go."""
    async with twins(recovery=Recovery(max_attempts=2)) as t:
        t.decode[0].app.faults.set(["drop_at=0*2"])
        told = await t.told("early", COMPLETE, {**GREEDY, "prompt": PROMPT})
        assert told.text == "w"
        assert told.error is not None
        assert "could not go on" in told.error["message"]
        assert not told.done
        timeline = t.apps["early"].timelines.as_list()[-1]
        assert timeline["outcome"] == "broken"
        assert "baton_broken_streams_total 1.0" in t.apps["early"].metrics.render().decode()
        await t.nothing_is_held()


async def test_an_offer_that_got_too_old_behind_the_first_token_is_not_sent() -> None:
    """A caller who reads slowly holds the handoff up: prefill again, never late KV."""
    async with twins() as t:
        body = {**GREEDY, "prompt": PROMPT}
        whole = await t.told("ordinary", COMPLETE, body)
        guard = t.apps["early"]._parts.leases
        late = iter([True])
        begin = guard.begin

        def once(engine: EngineLease) -> Any:
            watch = begin(engine)
            if next(late, False):
                watch.late = lambda: True
            return watch

        guard.begin = once
        told = await t.told("early", COMPLETE, body)
        assert (told.text, told.error) == (whole.text, None)
        attempts = t.apps["early"].timelines.as_list()[-1]["attempts"]
        assert [attempt["kind"] for attempt in attempts] == ["stale_kv"]
        await t.nothing_is_held()


async def test_callers_who_hang_up_at_any_moment_leave_nothing() -> None:
    """While prefill runs, behind the first token, in the handoff, in the stream."""
    dice = random.Random(5)
    slow = LatencyProfile(prefill_tokens_per_s=20_000, tpot_s=0.002, handoff_fixed_s=0.01)
    async with twins(2, latency=slow) as t:
        await t.same(COMPLETE, {**GREEDY, "prompt": PROMPT})  # everybody has met
        await t.nothing_is_held()
        tasks = len(asyncio.all_tasks())

        async def leaves(number: int) -> None:
            body = {**GREEDY, "prompt": f"{number} {PROMPT}", "stream": True, "max_tokens": 25}
            path = COMPLETE
            if number % 2:
                path = "/v1/chat/completions"
                body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
            patience = aiohttp.ClientTimeout(total=dice.uniform(0.001, 0.09))
            with contextlib.suppress(TimeoutError, aiohttp.ClientError):
                async with t.session.post(
                    t.urls["early"] + path, json=body, timeout=patience
                ) as answer:
                    await answer.read()

        for wave in range(10):
            await asyncio.gather(*(leaves(wave * 7 + number) for number in range(7)))
            # Eight at once are waited for (`releases`), more may leave a lease: on a slow machine
            # one wave's releases would still be under way when the next one leaves.
            await t.nothing_is_held()
        outcomes = {one["outcome"] for one in t.apps["early"].timelines.as_list()}
        assert "hangup" in outcomes
        await until(lambda: len(asyncio.all_tasks()) <= tasks)


# -- pure ----------------------------------------------------------------------------------------


def lease(role: str, **more: Any) -> EngineLease:
    return EngineLease.model_validate(
        {
            "replica_id": role, "role": role, "url": "http://x", "engine_id": role,
            "model_id": "m", "max_model_len": 1000, "block_size": 16, "continues": "chat", **more,
        }
    )  # fmt: skip


def asked(path: str = COMPLETE, **body: Any) -> Ask:
    found = lookup(path)
    assert found is not None
    return Ask(found[0], "POST", path, {"stream": True, **body}, True, {}, None)


def planned(ask: Ask, mode: str = "auto", *, keeps_ids: bool = True) -> Any:
    means = means_of(ask.body or {}, ask.route, None)
    return plan(ask, means, keeps_ids=keeps_ids, mode=mode)


def why(ask: Ask, **more: Any) -> str:
    with pytest.raises(Ordinary) as caught:
        planned(ask, **more)
    return caught.value.reason


def test_which_requests_are_planned() -> None:
    """Each reason of the table that the request alone decides."""
    assert why(asked(prompt="x"), mode="ordinary") == "off"
    assert why(asked(prompt="x"), keeps_ids=False) == "request"
    for body in (
        {"seed": 1}, {"logprobs": 0}, {"logprobs": 2}, {"presence_penalty": 0.1}, {"n": 2},
        {"echo": True}, {"tools": []}, {"response_format": {"type": "json_object"}},
        {"bad_words": ["x"]}, {"something_new": 1}, {"best_of": True},
    ):  # fmt: skip
        assert why(asked(prompt="x", **body)) == "request", body
    for body in (
        {"max_tokens": "5"}, {"max_tokens": 0}, {"max_tokens": True}, {"min_tokens": 17},
        {"min_tokens": 3, "max_tokens": 2}, {"return_token_ids": 1}, {"stream_options": []},
        {"stream_options": {"include_usage": 1}}, {"min_tokens": "1"},
    ):  # fmt: skip
        assert why(asked(prompt="x", **body)) == "types", body
    chat = "/v1/chat/completions"
    assert why(asked(chat, messages=[], max_tokens=4, max_completion_tokens=5)) == "types"
    assert planned(asked(chat, messages=[], max_tokens=4, max_completion_tokens=4)).limit == 4
    assert planned(asked(chat, messages=[])).limit is None
    assert planned(asked(prompt="x")).limit == 16


def test_prefill_samples_under_the_answers_own_rules() -> None:
    """What an ordinary prefill leg leaves out decides here which token it is, and where it ends."""
    body = {
        "prompt": "x", "max_tokens": 9, "min_tokens": 4, "stop": ["a"], "stop_token_ids": [3],
        "include_stop_str_in_output": True, "temperature": 0.3, "allowed_token_ids": [1, 2],
    }  # fmt: skip
    leg = planned(asked(**body)).prefill_body()
    assert {key: leg[key] for key in body} == {**body, "max_tokens": 1, "min_tokens": 1}
    assert (leg["stream"], leg["return_token_ids"]) == (False, True)
    assert "min_tokens" not in planned(asked(prompt="x")).prefill_body()


SAID = {
    "id": "cmpl-1", "created": 5, "model": "m", "system_fingerprint": "f",
    "choices": [
        {
            "text": "w", "token_ids": [119], "prompt_token_ids": list(range(20)),
            "finish_reason": "length", "stop_reason": None,
        }
    ],
}  # fmt: skip
OFFER = {
    "do_remote_prefill": True, "remote_engine_id": "p", "remote_block_ids": [[1, 2]],
    "remote_host": "h", "remote_port": 1, "remote_num_tokens": 20,
}  # fmt: skip


def reading(said: Any = SAID, body: Any = None, offer: Any = None, **engines: Any) -> Any:
    return read(
        planned(asked(**({"prompt": "x"} | (body or {}))), engines.pop("mode", "auto")),
        said,
        KVTransferParams.model_validate(OFFER | (offer or {})),
        engines.pop("prefill", lease("prefill")),
        engines.pop("decode", lease("decode")),
    )


def test_what_prefill_said_is_an_answers_beginning() -> None:
    """Events as vLLM writes them, and the request for what is missing."""
    token = reading()
    assert token.rest == {
        "prompt": [*range(20), 119], "max_tokens": 15, "stream": True,
    }  # fmt: skip
    (event,) = token.events.split(b"\n\n")[:-1]
    assert json.loads(event[6:])["choices"][0]["token_ids"] == [119]
    assert reading(body={"max_tokens": 1}).events.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("reason", "case"),
    [
        ("engines", {"decode": lease("decode", continues="nothing")}),
        ("engines", {"decode": lease("decode", continues="unknown")}),
        ("engines", {"prefill": lease("prefill", continues="unknown")}),
        ("engines", {"decode": lease("decode", block_size=32)}),
        ("engines", {"decode": lease("decode", max_model_len=0)}),
        ("engines", {"mode": "early", "decode": lease("decode", block_size=0)}),
        ("engines", {"mode": "early", "decode": lease("decode", continues="nothing")}),
        ("engines", {"offer": {"remote_block_ids": [[1, 2, 3]]}}),
        ("engines", {"offer": {"transfer_mode": "push"}}),
        ("state", {"offer": {"remote_num_tokens": 19}}),
        ("state", {"offer": {"remote_num_tokens": None}}),
        ("length", {"body": {"max_tokens": 981}}),
        ("answer", {"said": {}}),
        ("answer", {"said": None}),
        ("answer", {"said": {**SAID, "choices": [{**SAID["choices"][0], "token_ids": None}]}}),
        ("answer", {"said": {**SAID, "choices": [{**SAID["choices"][0], "token_ids": [1, 2]}]}}),
        ("answer", {"said": {**SAID, "choices": SAID["choices"] * 2}}),
        ("answer", {"said": {**SAID, "choices": [{**SAID["choices"][0], "finish_reason": "x"}]}}),
        ("text", {"said": {**SAID, "choices": [{**SAID["choices"][0], "text": ""}]}}),
        ("text", {"said": {**SAID, "choices": [{**SAID["choices"][0], "text": "\ufffd"}]}}),
        ("stop_string", {"body": {"stop": ["q", "we"]}}),
    ],
)  # fmt: skip
def test_what_leaves_the_first_token_to_decode(reason: str, case: dict[str, Any]) -> None:
    """Each reason of the table that shows in prefill's answer or in the engines."""
    with pytest.raises(Ordinary) as caught:
        reading(**case)
    assert caught.value.reason == reason


def test_engines_that_say_nothing_are_taken_at_their_users_word() -> None:
    """`first_token: early`."""
    unknown = {"continues": "unknown"}
    engines = {"prefill": lease("prefill", **unknown), "decode": lease("decode", **unknown)}
    assert reading(mode="early", **engines).rest is not None


def test_a_chat_behind_a_parser_is_left_alone() -> None:
    """By the lease, and by what a parser has made of the token."""
    said = {
        **SAID, "prompt_token_ids": list(range(20)),
        "choices": [
            {
                "message": {"role": "assistant", "content": "w", "reasoning": None},
                "token_ids": [119], "finish_reason": "length",
            }
        ],
    }  # fmt: skip
    ask = asked("/v1/chat/completions", messages=[])
    offer = KVTransferParams.model_validate(OFFER)
    good = lease("decode")
    token = read(planned(ask), said, offer, good, good)
    assert token.rest == {"prompt": [*range(20), 119], "max_tokens": 979, "stream": True}
    with pytest.raises(Ordinary, match="engines"):
        read(planned(ask), said, offer, good, lease("decode", continues="completions"))
    message = {"role": "assistant", "content": None, "reasoning": "w"}
    said["choices"][0]["message"] = message
    with pytest.raises(Ordinary, match="answer"):
        read(planned(ask), said, offer, good, good)


@given(st.integers(1, 5000), st.integers(1, 256))
def test_one_token_more_stays_inside_the_last_block(tokens: int, block: int) -> None:
    """As many blocks as before, and the last of them not full."""
    inside = ends_inside_a_block(tokens, block)
    needs = -(-(tokens + 1) // block)
    assert inside == (needs == -(-tokens // block) and (tokens + 1) % block != 0)


@given(st.text("ab", min_size=1, max_size=4), st.text("ab", max_size=8), st.data())
@settings(max_examples=300)
def test_no_stop_string_that_begins_in_the_first_text_is_missed(
    first: str, rest: str, data: st.DataObject
) -> None:
    """Where the guard says no, the rest alone shows every stop string of the whole."""
    stops = data.draw(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
    if _may_begin_a_stop_string(first, stops):
        return
    for stop in stops:
        found = (first + rest).find(stop)
        assert found < 0 or found >= len(first)
        assert (found >= 0) == (stop in rest)


def test_a_lease_of_an_older_engine_says_that_nobody_has_looked() -> None:
    """And so nothing is said early through it."""
    plain = lease("decode").model_dump()
    del plain["continues"]
    assert EngineLease.model_validate(plain).continues == "unknown"


async def test_the_size_of_blocks_is_asked_only_where_it_is_needed() -> None:
    """A fixed directory looks into `/metrics` for `first_token: early`."""
    async with SimulatedEngine(role="decode", engine_id="d", block_size=32) as engine:
        for asks, expected in ((False, 0), (True, 32)):
            view = FixedDirectory([], [engine.url], interval_s=30.0, asks_block_size=asks)
            await view._read()
            (seen,) = view.decode_engines()
            assert (seen.block_size, seen.continues) == (expected, "unknown")
            await view.close()
