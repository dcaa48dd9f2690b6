"""Streams whose engine dies go on from another one, and the caller cannot tell.

Engines are simulated ones on real sockets. Their text depends on every token before it, so a token
that is lost, doubled or changed gives other words.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from baton.errors import LegFailed
from baton.gateway import releases
from baton.gateway.directory import FixedDirectory
from baton.spec.schema import BatonBlock, Recovery
from tests.unit.gateway.fakes import serving, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROMPT = "Hand the baton over, and over again, and never let it fall. " * 3
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}
GREEDY = {"model": "simulated", "temperature": 0, "max_tokens": 60}
ALWAYS = {"x_baton_disaggregate": "always"}
REFUSED = {**GREEDY, "prompt": PROMPT, "logprobs": 40}
"""Decode answers 200 to it, and then refuses."""


@dataclass
class Pair:
    """A prefill engine, decode engines, and a gateway before them."""

    url: str
    prefill: SimulatedEngine
    decode: list[SimulatedEngine]
    app: Any
    session: aiohttp.ClientSession
    begun: int = 0
    """Streams whose first bytes have come."""

    async def raw(self, path: str, body: dict[str, Any], **headers: str) -> bytes:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {**body, "stream": True}
        async with self.session.post(self.url + path, json=body, headers=names) as answer:
            raw = b""
            async for chunk in answer.content.iter_any():
                self.begun += not raw
                raw += chunk
            assert answer.status == 200, raw
            return raw

    async def told(self, path: str, body: dict[str, Any], **headers: str) -> Told:
        return read(await self.raw(path, body, **headers))

    def break_decode(self, *faults: str) -> None:
        """All decode engines get the fault for their next request; the last one stays sound."""
        for engine in self.decode[:-1]:
            engine.app.faults.set([f"{fault}*1" for fault in faults])

    def avoid_the_last(self) -> None:
        """Make the last decode engine look busy, so that the others are chosen first."""
        self.app.inflight._counts[self.decode[-1].url] = 100

    def resumes(self) -> list[str]:
        return [r["how"] for t in self.app.timelines.as_list() for r in t["resumes"]]


@dataclass
class Told:
    """What a stream said."""

    events: list[dict[str, Any]]
    text: str
    finish: list[str]
    usage: dict[str, Any] | None
    done: bool
    error: dict[str, Any] | None


def read(raw: bytes) -> Told:
    events, done = [], False
    for event in raw.split(b"\n\n"):
        if event == b"data: [DONE]":
            done = True
        elif event.startswith(b"data: "):
            events.append(json.loads(event[6:]))
    text, finish, usage, error = "", [], None, None
    for event in events:
        error = event.get("error") or error
        usage = event.get("usage") or usage
        for choice in event.get("choices") or ():
            text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
            if choice["finish_reason"] is not None:
                finish.append(choice["finish_reason"])
    return Told(events, text, finish, usage, done, error)


@contextlib.asynccontextmanager
async def pair(
    decode: int = 2, *, recovery: Recovery | None = None, **more: Any
) -> AsyncIterator[Pair]:
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
        view = FixedDirectory([prefill.url], [e.url for e in engines], interval_s=30.0)
        app, url = await stack.enter_async_context(
            serving(view, BatonBlock(recovery=recovery or Recovery()))
        )
        async with aiohttp.ClientSession() as session:
            made = Pair(url, prefill, engines, app, session)
            if decode > 1:
                made.avoid_the_last()
            yield made


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {**GREEDY, "prompt": PROMPT}),
    "chat": ("/v1/chat/completions", {**GREEDY, **CHAT}),
    "usage": (
        "/v1/chat/completions",
        {**GREEDY, **CHAT, "stream_options": {"include_usage": True}},
    ),
    "usage in every chunk": (
        "/v1/completions",
        {
            **GREEDY,
            "prompt": PROMPT,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "stop string": ("/v1/completions", {**GREEDY, "prompt": PROMPT, "stop": [" th", " of the"]}),
    "stop string kept": (
        "/v1/completions",
        {**GREEDY, "prompt": PROMPT, "stop": ["e th"], "include_stop_str_in_output": True},
    ),
    "sampled": ("/v1/chat/completions", {**GREEDY, **CHAT, "temperature": 0.7}),
    "max_completion_tokens": (
        "/v1/chat/completions",
        {"model": "simulated", "temperature": 0, "max_completion_tokens": 50, **CHAT},
    ),
    "min_tokens": (
        "/v1/completions",
        {**GREEDY, "prompt": PROMPT, "min_tokens": 40, "stop": ["e"]},
    ),
    "logprobs": ("/v1/completions", {**GREEDY, "prompt": PROMPT, "logprobs": 1}),
    "penalty": ("/v1/chat/completions", {**GREEDY, **CHAT, "presence_penalty": 0.5}),
    "seed": ("/v1/chat/completions", {**GREEDY, **CHAT, "temperature": 0.9, "seed": 7}),
}


def same(again: Told, whole: Told) -> None:
    assert again.error is None, again
    assert (again.text, again.finish, again.usage) == (whole.text, whole.finish, whole.usage)
    assert again.done
    assert len({(event["id"], event["created"]) for event in again.events}) == 1


@pytest.mark.parametrize("name", BODIES)
async def test_a_stream_goes_on_as_if_nothing_had_happened(name: str) -> None:
    """Cut at several tokens, twice in a row: same text, same end, same usage, one id, no error."""
    path, body = BODIES[name]
    async with pair(3) as p:
        whole = await p.told(path, body)
        for token in (1, 10, 27, 39):
            before = len(p.resumes())
            p.break_decode(f"drop_at={token}")
            same(await p.told(path, body), whole)
            if token < 12 or len(whole.text) > 45:
                assert len(p.resumes()) > before, "the fault did not happen"
            p.app.directory.breakers.keep(())
        assert p.prefill.core.pool.leases == 0


@pytest.mark.parametrize("name", ["completion", "stop string", "usage", "penalty"])
async def test_a_stream_goes_on_when_the_whole_engine_is_gone(name: str) -> None:
    """The process is dead, and nobody listens there any more."""
    path, body = BODIES[name]
    async with pair() as p:
        whole = await p.told(path, body)
        p.break_decode("die_at=21")
        same(await p.told(path, body), whole)
        assert len(p.resumes()) == 1


async def test_token_ids_that_nobody_asked_for_reach_nobody() -> None:
    """The engine writes them into every chunk; the caller gets vLLM's ordinary chunks."""
    path, body = BODIES["chat"]
    async with pair() as p:
        through = await p.raw(path, body)
        direct = await (
            await p.session.post(p.decode[1].url + path, json={**body, "stream": True})
        ).read()
    assert b'token_ids":[' not in through
    cut = [e.split(b'"choices"')[1] for e in through.split(b"\n\n") if b'"choices"' in e]
    plain = [e.split(b'"choices"')[1] for e in direct.split(b"\n\n") if b'"choices"' in e]
    assert cut == plain


async def test_token_ids_that_were_asked_for_are_whole_after_a_resume() -> None:
    """Each token of the answer once."""
    path, body = BODIES["completion"]
    body = {**body, "return_token_ids": True}
    async with pair(3) as p:
        whole = await p.told(path, body)
        p.break_decode("drop_at=13")
        again = await p.told(path, body)
        assert p.resumes() == ["continue", "continue"]
    assert _ids(again) == _ids(whole)
    assert len(_ids(whole)) == 60


def _ids(told: Told) -> list[int]:
    return [
        token
        for event in told.events
        for choice in event["choices"]
        for token in choice["token_ids"] or ()
    ]


async def test_every_way_to_go_on_is_used_where_it_fits() -> None:
    """Exact ids where the request allows it, the same request again where it repeats itself."""
    ways = {
        "completion": "continue", "chat": "continue", "sampled": "continue",
        "min_tokens": "continue",
        "logprobs": "replay", "penalty": "replay", "seed": "replay",
    }  # fmt: skip
    for name, how in ways.items():
        path, body = BODIES[name]
        async with pair() as p:
            p.break_decode("drop_at=20")
            await p.told(path, body)
            assert p.resumes() == [how], name


async def test_what_cannot_go_on_ends_with_an_error_that_says_why() -> None:
    """Sampled without a seed, and with a penalty: neither ids nor a repetition would be right."""
    path, body = BODIES["penalty"]
    async with pair() as p:
        p.break_decode("drop_at=20")
        told = await p.told(path, {**body, "temperature": 0.8})
    assert told.error is not None
    assert "presence_penalty" in told.error["message"]
    assert "seed" in told.error["message"]
    assert not told.done


async def test_before_anything_was_said_any_request_starts_again() -> None:
    """A chat's first event names the role and says nothing yet."""
    path, body = BODIES["penalty"]
    async with pair() as p:
        p.break_decode("drop_at=1")
        told = await p.told(path, {**body, "temperature": 0.8, "stop": ["zzzzzzzz"]})
        assert p.resumes() == ["restart"]
    assert told.error is None
    assert told.finish == ["length"]


async def test_a_stream_that_died_behind_its_last_token_is_finished_here() -> None:
    """Why it ended was said; only the usage and [DONE] are missing."""
    path, body = BODIES["usage"]
    async with pair() as p:
        whole = await p.told(path, body)
        p.break_decode("drop_at=60")
        told = await p.told(path, body)
        assert p.resumes() == ["finish"]
    assert (told.text, told.usage, told.done) == (whole.text, whole.usage, True)


async def test_switched_off_it_stays_off() -> None:
    """`recovery.resume_streams: false`: an error event, and no token ids asked for."""
    path, body = BODIES["chat"]
    async with pair(recovery=Recovery(resume_streams=False)) as p:
        p.break_decode("drop_at=20")
        told = await p.told(path, body)
    assert told.error is not None
    assert "resume_streams" in told.error["message"]


async def test_a_hung_engine_is_given_up_and_the_stream_goes_on() -> None:
    """An engine that keeps the connection and says nothing more."""
    path, body = BODIES["chat"]
    async with pair(recovery=Recovery(stream_idle_timeout_s=0.8)) as p:
        whole = await p.told(path, body)
        p.break_decode("hang_at=20")
        told = await p.told(path, body)
        assert p.resumes() == ["continue"]
    assert (told.text, told.error) == (whole.text, None)


async def test_fifty_streams_survive_the_death_of_their_engine() -> None:
    """All at once, of every kind that can go on."""
    names = [name for name in BODIES if name != "sampled"]
    async with pair(latency=LatencyProfile(tpot_s=0.004)) as p:
        bodies = [
            (path, {**body, "cache_salt": str(number)})
            for number in range(50)
            for path, body in [BODIES[names[number % len(names)]]]
        ]
        p.app.inflight._counts.clear()
        whole = await asyncio.gather(*(p.told(path, body) for path, body in bodies))
        p.avoid_the_last()
        streams = [asyncio.create_task(p.told(path, body)) for path, body in bodies]
        await until(lambda: p.begun >= 50 + 40)
        p.decode[0].kill()
        again = await asyncio.gather(*streams)
        assert len(p.resumes()) > 10
    assert [told.error for told in again] == [None] * 50
    assert [told.text for told in again] == [told.text for told in whole]
    assert [told.usage for told in again] == [told.usage for told in whole]
    assert [told.finish for told in again] == [told.finish for told in whole]


async def test_an_engine_that_has_just_failed_is_better_than_an_error() -> None:
    """The stream's engine dies while the only other one's circuit is open."""
    path, body = BODIES["chat"]
    async with pair(latency=LatencyProfile(tpot_s=0.004)) as p:
        whole = await p.told(path, body)
        p.avoid_the_last()
        stream = asyncio.create_task(p.told(path, body))
        await until(lambda: p.begun >= 2)
        breakers = p.app.directory.breakers
        other = next(e for e in p.app.directory.decode_engines() if e.url == p.decode[-1].url)
        with contextlib.suppress(LegFailed), breakers.leg(other):
            raise LegFailed("unreachable", other.replica_id)
        assert breakers.state(other) == "open"
        p.decode[0].kill()
        told = await stream
    assert (told.text, told.error) == (whole.text, None)


async def test_a_caller_who_waits_long_gets_signs_of_life() -> None:
    """SSE comments while prefill takes its time: clients skip them, load balancers see traffic."""
    path, body = BODIES["chat"]
    recovery = Recovery(keep_alive_s=0.2, decode_first_byte_timeout_s=1)
    async with pair(recovery=recovery) as p:
        p.decode[0].app.faults.set(["hang_at=0*1"])
        raw = await p.raw(path, body)
    told = read(raw)
    assert raw.startswith(b": keep-alive\n\n")
    assert raw.count(b": keep-alive") >= 3
    assert told.error is None
    assert told.finish == ["length"]


async def test_an_error_after_a_sign_of_life_is_an_event() -> None:
    """The status is gone by then."""
    path, body = BODIES["chat"]
    recovery = Recovery(keep_alive_s=0.1, decode_first_byte_timeout_s=0.5, max_attempts=1)
    async with pair(1, recovery=recovery) as p:
        p.decode[0].app.faults.set(["hang"])
        told = await p.told(path, body)
    assert told.error is not None
    assert told.events[-1]["error"]["type"]


async def test_a_release_through_an_engine_that_has_never_met_prefill_is_not_left_to_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decode refuses the first request that it ever gets; it is given steps to take, once."""
    monkeypatch.setattr(releases, "NUDGES_S", (0.05, 0.05))
    async with pair(1) as p:
        asked = p.decode[0].core.counts.finished
        for at_once in (5, 1):
            refused = await asyncio.gather(
                *(
                    p.told("/v1/completions", REFUSED, x_baton_disaggregate="always")
                    for _ in range(at_once)
                )
            )
            assert all(told.error is not None for told in refused)
            await until(lambda: p.prefill.core.pool.leases == 0, seconds=3)
        await until(lambda: not p.app._parts.releases._nudges)
        assert asked["length"] == 2  # both nudges of the first five together, none of the last
        assert p.prefill.core.pool.expired_requests == 0


async def test_an_engine_that_was_restarted_behind_its_fixed_url_has_met_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gateway knows the pair by the URL: the new process is given steps to take as well."""
    monkeypatch.setattr(releases, "NUDGES_S", (0.05, 0.05))
    async with pair(1) as p:
        whole = await p.told("/v1/completions", {**GREEDY, "prompt": PROMPT}, **ALWAYS)
        assert whole.error is None  # the two have met
        (old,) = p.decode
        await old.__aexit__(None, None, None)
        await p.app.directory._read()
        async with SimulatedEngine(role="decode", engine_id="d0", port=int(old.url[-5:])) as new:
            assert new.url == old.url
            await p.app.directory._read()
            assert [e.state for e in p.app.directory.decode_engines()] == ["ready"]
            told = await p.told("/v1/completions", REFUSED, **ALWAYS)
            assert told.error is not None
            await until(lambda: p.prefill.core.pool.leases == 0, seconds=3)
            assert p.prefill.core.pool.expired_requests == 0


async def test_a_refusal_inside_a_stream_leaves_no_kv_behind() -> None:
    """vLLM refuses some values only when it has answered 200, and lets nothing go then."""
    async with pair(1) as p:
        told = await p.told("/v1/completions", REFUSED, x_baton_disaggregate="always")
        assert told.error is not None
        assert told.error["code"] == 400
        assert p.app.timelines.as_list()[0]["route"] == "pd"
        await until(lambda: p.prefill.core.pool.leases == 0, seconds=3)
