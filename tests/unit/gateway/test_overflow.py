"""What goes to another provider, what of it, and what the caller sees when that fails too."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from baton.errors import ConfigRefused
from baton.gateway import overflow as overflow_module
from baton.gateway.app import build_gateway_app
from baton.gateway.directory import FixedDirectory
from baton.gateway.overflow import _Lines
from baton.gateway.portable import DROPPED, FIELDS, NEUTRAL, NotPortable, portable_body
from baton.spec.key_file import CallerKey
from baton.spec.schema import Admission as Limits
from baton.spec.schema import BatonBlock, Overflow
from tests.unit.gateway.fakes import LONG, Behave, FakeEngine, stack, until

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": LONG}]


@contextlib.asynccontextmanager
async def with_provider(monkeypatch, *, decode=1, admission=None, **settings):
    """A gateway with one place and a provider whose model is called `big`."""
    monkeypatch.setenv("PROVIDER_KEY", "provider-secret")
    provider = await FakeEngine("provider", model="big").start()
    block = BatonBlock(
        admission=Limits(**(admission or {"max_inflight": 1, "max_queue": 0})),
        overflow=Overflow(
            **{
                "base_url": f"{provider.url}/v1",
                "api_key_env": "PROVIDER_KEY",
                "model": "big",
                **settings,
            }
        ),
    )
    try:
        async with stack(settings=block, decode=decode) as s:
            s.provider = provider
            yield s
    finally:
        await provider.stop()


@contextlib.asynccontextmanager
async def busy(s):
    """The only place is taken."""
    s.decode[0].gate = asyncio.Event()
    running = asyncio.create_task(s.complete())
    await until(lambda: s.app.admission.inflight == 1)
    try:
        yield
    finally:
        s.decode[0].gate.set()
        assert (await running)[0] == 200
        await until(lambda: s.app.admission.inflight == 0)


async def _down(s):
    for engine in s.decode:
        engine.healthy = False
    await s.app.directory._read()
    assert not s.app.directory.decode_engines()


async def test_what_does_not_fit_is_served_by_the_provider_and_says_so(monkeypatch):
    """Its own key, its name for the model, none of the caller's headers, nothing of ours."""
    async with with_provider(monkeypatch) as s, busy(s):
        status, raw, headers = await s.post(
            CHAT,
            {"model": "m", "messages": MESSAGES, "priority": 3, "top_k": None, "store": True},
            authorization="Bearer callers-own",
            x_api_key="callers-other",
            cookie="a=b",
            x_request_id="mine",
            x_forwarded_for="10.1.2.3",
            traceparent="00-1",
        )
        assert status == 200
        assert json.loads(raw)["engine"] == "provider"
        assert headers["x-baton-served-by"] == "overflow"
        assert headers["x-baton-route"] == "overflow"
        assert headers["x-request-id"] == "mine"
        (seen,) = s.provider.seen
        assert seen.path == CHAT
        assert seen.body == {"model": "big", "messages": MESSAGES}
        assert seen.headers["authorization"] == "Bearer provider-secret"
        sent = json.dumps(seen.headers)
        assert not any(word in sent for word in ("callers", "a=b", "mine", "10.1.2.3", "00-1"))
        assert set(seen.headers) <= {
            "host", "authorization", "content-type", "content-length", "accept",
            "accept-encoding", "user-agent",
        }  # fmt: skip


async def test_what_fits_is_served_here(monkeypatch):
    """The provider costs money."""
    async with with_provider(monkeypatch) as s:
        status, _, headers = await s.complete()
        assert (status, headers["x-baton-served-by"]) == (200, "local")
        assert s.provider.seen == []


async def test_a_stream_passes_through_whole(monkeypatch):
    """Whatever its pieces, and with CRLF as some providers write it."""
    async with with_provider(monkeypatch) as s, busy(s):
        s.provider.always = Behave(split=3)
        status, raw, headers = await s.post(
            CHAT, {"model": "m", "messages": MESSAGES, "stream": True}
        )
        assert (status, headers["x-baton-served-by"]) == (200, "overflow")
        assert raw.count(b'"engine": "provider"') == 5
        assert raw.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_line_ends_are_made_one_kind_however_they_are_cut(step):
    """Also between CR and LF."""
    lines = _Lines()
    stream = b"data: a\r\n\r\ndata: b\n\ndata: [DONE]\r\n\r\n"
    out = b"".join(lines.feed(stream[n : n + step]) for n in range(0, len(stream), step))
    assert out == b"data: a\n\ndata: b\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_overflowed_request_has_its_timeline_too(monkeypatch, stream):
    """Header or comment, as for any other."""
    async with with_provider(monkeypatch) as s, busy(s):
        body = {"messages": MESSAGES, "stream": stream}
        _, raw, headers = await s.post(CHAT, body, x_baton_timing="1")
        if stream:
            comment, last = raw.split(b"\n\n")[-3:-1]
            assert last == b"data: [DONE]"
            said = json.loads(comment.removeprefix(b": baton-timing "))
        else:
            said = json.loads(headers["x-baton-timing"])
        assert (said["route"], said["outcome"]) == ("overflow", "ok")
        assert "overflow_s" in said["stages"]


async def test_a_request_marked_local_only_never_leaves(monkeypatch):
    """It gets its 429, and is told why."""
    async with with_provider(monkeypatch) as s, busy(s):
        status, _, headers = await s.post(CHAT, {"messages": MESSAGES}, x_baton_local_only="1")
        assert (status, headers["x-baton-served-by"]) == (429, "local")
        assert headers["x-baton-not-overflowed"] == "local-only"
        assert "retry-after" in headers
        assert s.provider.seen == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (CHAT, {"messages": MESSAGES, "top_k": 5}, "top_k"),
        (CHAT, {"messages": MESSAGES, "logit_bias": {"5": 1}}, "logit_bias"),
        (CHAT, {"messages": MESSAGES, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ("/v1/completions", {"prompt": [1, 2, 3]}, "prompt of token ids"),
        ("/v1/responses", {"input": LONG}, "/v1/responses"),
        ("/v1/messages", {"messages": MESSAGES}, "/v1/messages"),
        (CHAT, {"messages": MESSAGES, "new\nfield": 1}, "new?field"),
    ],
)
async def test_what_a_provider_would_not_understand_stays_here(monkeypatch, path, body, field):
    """It would answer something else and call it the same. The caller is told which field."""
    async with with_provider(monkeypatch) as s, busy(s):
        status, _, headers = await s.post(path, body)
        assert (status, headers["x-baton-not-overflowed"]) == (429, field)
        assert s.provider.seen == []


def test_fields_at_the_value_that_changes_nothing_are_dropped():
    """And what the operator says the provider knows goes along."""
    body = {"messages": [], **{name: values[0] for name, values in NEUTRAL.items()}}
    assert portable_body(CHAT, body) == {"messages": []}
    assert portable_body(CHAT, {"messages": [], "top_k": 5}, ["top_k"])["top_k"] == 5
    with pytest.raises(NotPortable):
        portable_body(CHAT, {"skip_special_tokens": False})
    known = frozenset().union(*FIELDS.values())
    assert known.isdisjoint(DROPPED)
    assert known.isdisjoint(NEUTRAL)


async def test_names_of_models_are_mapped(monkeypatch):
    """One by one, or all to one; without either the caller's name goes along."""
    async with with_provider(monkeypatch, models={"m": "big"}, model=None) as s, busy(s):
        assert (await s.post(CHAT, {"model": "m", "messages": MESSAGES}))[0] == 200
        status, _, headers = await s.post(CHAT, {"messages": MESSAGES})
        assert (status, headers["x-baton-not-overflowed"]) == (429, "model")


@pytest.mark.parametrize(
    "behave",
    [Behave(status=500), Behave(status=429), Behave(status=401), Behave(status=404),
     Behave(status=302), Behave(drop=True), Behave(delay_s=60)],
)  # fmt: skip
async def test_when_the_provider_fails_too_the_caller_gets_the_local_error(monkeypatch, behave):
    """Nothing of the provider shows, and it is left alone for a moment."""
    async with with_provider(monkeypatch, timeout_s=0.5) as s, busy(s):
        s.provider.always = behave
        status, raw, headers = await s.post(CHAT, {"messages": MESSAGES})
        assert (status, headers["x-baton-served-by"]) == (429, "local")
        assert "retry-after" in headers
        for word in (b"provider", b"127.0.0.1", s.provider.url.encode()):
            assert word not in raw
        seen = len(s.provider.seen)
        _, _, headers = await s.post(CHAT, {"messages": MESSAGES})
        assert headers["x-baton-not-overflowed"] == "provider-failed"
        assert len(s.provider.seen) == seen
        assert s.app.overflow.inflight == 0


async def test_a_provider_that_cannot_be_reached_is_the_local_error(monkeypatch):
    """Connection refused."""
    async with with_provider(monkeypatch) as s, busy(s):
        await s.provider.stop()
        assert (await s.post(CHAT, {"messages": MESSAGES}))[0] == 429


async def test_a_request_that_the_provider_finds_wrong_is_a_400_in_openais_shape(monkeypatch):
    """The caller's own mistake; the provider stays in use."""
    async with with_provider(monkeypatch) as s, busy(s):
        s.provider.always = Behave(status=400, body={"detail": "no such format"})
        for _ in range(2):
            status, raw, headers = await s.post(CHAT, {"messages": MESSAGES})
            assert (status, headers["x-baton-served-by"]) == (400, "overflow")
            assert json.loads(raw)["error"]["message"] == "no such format"


@pytest.mark.parametrize("behave", [Behave(die_after=2), Behave(end_early=True),
                                    Behave(die_after=1, half_event=True)])  # fmt: skip
async def test_a_provider_that_dies_in_mid_stream_ends_in_an_error_event(monkeypatch, behave):
    """On a clean line; a client library raises."""
    async with with_provider(monkeypatch) as s, busy(s):
        s.provider.always = behave
        status, raw, _ = await s.post(CHAT, {"messages": MESSAGES, "stream": True})
        assert status == 200
        last = raw.rstrip(b"\n").split(b"\n\n")[-1]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "engine_failed"
        assert b"[DONE]" not in raw
        text = (await s.get("/metrics"))[1]
        assert b'baton_overflow_total{outcome="broken",reason="saturated"} 1.0' in text


async def test_a_provider_that_falls_silent_in_mid_stream_ends_in_an_error_event(monkeypatch):
    """Not in a hang."""
    monkeypatch.setenv("PROVIDER_KEY", "k")
    async with with_provider(monkeypatch) as s, busy(s):
        recovery = s.app.settings.recovery.model_copy(update={"stream_idle_timeout_s": 0.2})
        s.app._entrance._settings = s.app.settings.model_copy(update={"recovery": recovery})
        s.provider.always = Behave(hang_after=2)
        _, raw, _ = await s.post(CHAT, {"messages": MESSAGES, "stream": True})
        assert b"silent" in raw


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_hang_up_reaches_the_provider(monkeypatch, streamed):
    """It stops working for nobody."""
    async with with_provider(monkeypatch) as s, busy(s):
        s.provider.always = Behave(hang_after=1) if streamed else Behave(delay_s=60)
        task = asyncio.create_task(s.post(CHAT, {"messages": MESSAGES, "stream": streamed}))
        await until(lambda: s.provider.running == 1)
        task.cancel()
        await until(lambda: s.provider.running == 0 and s.app.overflow.inflight == 0)
        await until(s.app.timelines.as_list)
        assert s.app.timelines.as_list()[-1]["outcome"] == "hangup"


async def test_the_provider_has_a_limit_of_its_own(monkeypatch):
    """Above it the caller gets his 429."""
    async with with_provider(monkeypatch, max_inflight=1) as s, busy(s):
        s.provider.gate = asyncio.Event()
        first = asyncio.create_task(s.post(CHAT, {"messages": MESSAGES}))
        await until(lambda: s.provider.running == 1)
        status, _, headers = await s.post(CHAT, {"messages": MESSAGES})
        assert (status, headers["x-baton-not-overflowed"]) == (429, "provider-full")
        s.provider.gate.set()
        assert (await first)[0] == 200


async def test_within_the_hold_off_a_request_waits_for_a_place_here(monkeypatch):
    """And is served here when one comes free."""
    admission = {"max_inflight": 1, "max_queue": 5, "queue_timeout_s": 60}
    async with with_provider(monkeypatch, admission=admission, hold_off_s=60) as s:
        async with busy(s):
            waiting = asyncio.create_task(s.post(CHAT, {"messages": MESSAGES}))
            await until(lambda: s.app.admission.queued == 1)
        status, _, headers = await waiting
        assert (status, headers["x-baton-served-by"]) == (200, "local")
        assert s.provider.seen == []


async def test_after_the_hold_off_what_waits_goes_to_the_provider(monkeypatch):
    """And leaves the queue."""
    admission = {"max_inflight": 1, "max_queue": 5, "queue_timeout_s": 60}
    async with with_provider(monkeypatch, admission=admission, hold_off_s=0.05) as s, busy(s):
        status, _, headers = await s.post(CHAT, {"messages": MESSAGES})
        assert (status, headers["x-baton-served-by"]) == (200, "overflow")
        assert s.app.admission.queued == 0


async def test_after_the_hold_off_what_cannot_leave_goes_on_waiting(monkeypatch):
    """With its turn in the queue."""
    admission = {"max_inflight": 1, "max_queue": 5, "queue_timeout_s": 60}
    async with with_provider(monkeypatch, admission=admission) as s:
        async with busy(s):
            waiting = asyncio.create_task(
                s.post(CHAT, {"messages": MESSAGES}, x_baton_local_only="1")
            )
            await until(lambda: s.app.admission.queued == 1)
        status, _, headers = await waiting
        assert (status, headers["x-baton-served-by"]) == (200, "local")


@pytest.mark.parametrize(("when", "served"), [("saturated", 503), ("unready", 200), ("both", 200)])
async def test_without_an_engine_the_provider_serves_when_that_was_asked_for(
    monkeypatch, when, served
):
    """`when: saturated` alone is not that."""
    async with with_provider(monkeypatch, when=when) as s:
        await _down(s)
        status, _, headers = await s.post(CHAT, {"messages": MESSAGES})
        assert status == served
        assert headers["x-baton-served-by"] == ("overflow" if served == 200 else "local")
        await until(lambda: s.app.admission.inflight == 0)


async def test_when_unready_alone_a_full_queue_stays_a_429(monkeypatch):
    """The operator said when."""
    async with with_provider(monkeypatch, when="unready") as s, busy(s):
        assert (await s.post(CHAT, {"messages": MESSAGES}))[0] == 429
        assert s.provider.seen == []


async def test_an_engine_that_comes_back_within_the_hold_off_serves(monkeypatch):
    """A restart is not worth the provider's price."""
    async with with_provider(monkeypatch, when="both", hold_off_s=60) as s:
        await _down(s)
        task = asyncio.create_task(s.post(CHAT, {"messages": MESSAGES}))
        await until(lambda: s.app._entrance._unready_since is not None)
        s.decode[0].healthy = True
        await s.app.directory._read()
        status, _, headers = await task
        assert (status, headers["x-baton-served-by"]) == (200, "local")
        assert s.provider.seen == []


async def test_engines_that_refuse_connections_are_unready_too(monkeypatch):
    """Before their probe says so."""
    async with with_provider(monkeypatch, when="both") as s:
        await s.decode[0].stop()
        status, _, headers = await s.post(CHAT, {"messages": MESSAGES})
        assert (status, headers["x-baton-served-by"]) == (200, "overflow")


async def test_a_keys_own_limit_is_no_reason_to_overflow(monkeypatch):
    """Or a limit would only move the bill."""
    async with with_provider(monkeypatch) as s, busy(s):
        s.app.keys.anonymous.limits = CallerKey(name="a", key="k", max_concurrency=1)
        assert (await s.post(CHAT, {"messages": MESSAGES}))[0] == 429
        assert s.provider.seen == []


async def test_an_answer_that_does_not_end_is_cut_off(monkeypatch):
    """Memory is bounded, whatever the provider sends."""
    monkeypatch.setattr(overflow_module, "MAX_ANSWER_BYTES", 10)
    async with with_provider(monkeypatch) as s, busy(s):
        assert (await s.post(CHAT, {"messages": MESSAGES}))[0] == 429


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"base_url": "https://x/v1", "api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
        ({"base_url": "x/v1"}, "base_url"),
        ({"base_url": "https://u:secret@x/v1"}, "base_url"),
    ],
)
def test_a_provider_that_could_never_answer_is_refused_at_start(monkeypatch, settings, words):
    """And a password is not repeated."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    block = BatonBlock(overflow=Overflow(**settings))
    with pytest.raises(ConfigRefused, match=words) as caught:
        build_gateway_app(block, FixedDirectory([], ["http://d:1"]))
    assert "secret" not in str(caught.value)
