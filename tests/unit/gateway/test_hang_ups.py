"""Callers that go away, and legs that nobody waits for: nothing runs on, no KV stays held."""

from __future__ import annotations

import asyncio
import json

import pytest

from baton.gateway import releases
from baton.spec.schema import Admission, BatonBlock, Recovery
from tests.unit.gateway.fakes import LONG, Behave, stack, until


async def test_a_late_prefill_is_cancelled(monkeypatch):
    """What passed its deadline does not go on computing."""
    monkeypatch.setattr(releases, "PATIENCE_S", 0.1)
    settings = BatonBlock(recovery=Recovery(prefill_timeout_s=0.05))
    async with stack(settings=settings) as s:
        s.prefill[0].always = Behave(delay_s=30)
        await s.complete()
        await until(lambda: s.prefill[0].cancelled == 1)


async def test_a_prefill_that_answers_just_after_its_deadline_gives_its_kv_back():
    """The answer is collected and the blocks released through decode."""
    settings = BatonBlock(recovery=Recovery(prefill_timeout_s=0.05))
    async with stack(settings=settings) as s:
        s.prefill[0].always = Behave(delay_s=0.15)
        assert (await s.complete())[0] == 200
        await until(lambda: s.decode[0].released == 1)
        assert s.kv_is_free()


async def _hang_up(s, body, when):
    """Send a request and close the connection as soon as `when()` is so."""
    reader, writer = await asyncio.open_connection(*s.url.removeprefix("http://").split(":"))
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    await until(when)
    writer.close()
    del reader


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hang_up_during_prefill_cancels_prefill(stream, monkeypatch):
    """And decode is never asked."""
    monkeypatch.setattr(releases, "PATIENCE_S", 0.1)
    async with stack() as s:
        s.prefill[0].always = Behave(delay_s=30)
        await _hang_up(s, {"prompt": LONG, "stream": stream}, lambda: s.prefill[0].running == 1)
        await until(lambda: s.prefill[0].cancelled == 1)
        assert s.decode[0].seen == []
        assert s.app.admission.inflight == 0
        _, metrics = await s.get("/metrics")
        assert b'baton_hangups_total{stage="prefill"} 1.0' in metrics


async def test_a_hang_up_as_prefill_ends_releases_its_kv_through_decode():
    """The answer that nobody waits for still says what to free."""
    async with stack() as s:
        s.prefill[0].always = Behave(delay_s=0.1)
        await _hang_up(s, {"prompt": LONG}, lambda: s.prefill[0].running == 1)
        await until(lambda: s.decode[0].released == 1)
        assert s.kv_is_free()
        assert s.decode[0].generated == []


async def test_a_storm_of_hang_ups_does_not_keep_prefill_busy(monkeypatch):
    """A few legs are let finish; the others are closed soon."""
    monkeypatch.setattr(releases, "PATIENCE_S", 60)
    monkeypatch.setattr(releases, "IMPATIENCE_S", 0.01)
    monkeypatch.setattr(releases, "PATIENT_BYTES", 4 * 1024)
    async with stack() as s:
        gate = s.prefill[0].gate = asyncio.Event()
        storm = [
            _hang_up(s, {"prompt": LONG}, lambda: s.prefill[0].running == 20) for _ in range(20)
        ]
        await asyncio.gather(*storm)
        await until(lambda: s.prefill[0].cancelled == 16)
        gate.set()
        await until(lambda: s.decode[0].released == 4)
        assert s.kv_is_free()


async def test_short_prompts_that_are_given_up_together_all_give_their_kv_back(monkeypatch):
    """Two dozen of them are no more work than a step or two; closed, some would leave their KV."""
    monkeypatch.setattr(releases, "PATIENCE_S", 60)
    monkeypatch.setattr(releases, "IMPATIENCE_S", 0.01)
    async with stack() as s:
        gate = s.prefill[0].gate = asyncio.Event()
        storm = [
            _hang_up(s, {"prompt": LONG}, lambda: s.prefill[0].running == 24) for _ in range(24)
        ]
        await asyncio.gather(*storm)
        await until(lambda: s.app.admission.inflight == 0)
        await asyncio.sleep(20 * releases.IMPATIENCE_S)  # in which none may be closed
        gate.set()
        await until(lambda: s.decode[0].released == 24)
        assert s.prefill[0].cancelled == 0
        assert s.kv_is_free()


async def test_a_long_prompt_is_closed_soon(monkeypatch):
    """An abort saves the steps that are still to come."""
    monkeypatch.setattr(releases, "PATIENCE_S", 60)
    async with stack() as s:
        s.prefill[0].always = Behave(delay_s=60)
        await _hang_up(s, {"prompt": LONG * 300}, lambda: s.prefill[0].running == 1)
        await until(lambda: s.prefill[0].cancelled == 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_hang_up_before_decode_answers_frees_both_engines(stream):
    """Decode is cancelled and prefill's blocks are released."""
    async with stack() as s:
        s.decode[0].always = Behave(delay_s=30)
        await _hang_up(s, {"prompt": LONG, "stream": stream}, lambda: s.decode[0].running == 1)
        await until(lambda: s.decode[0].cancelled == 1)
        await until(s.kv_is_free)


async def test_a_hang_up_in_mid_stream_cancels_decode():
    """The third token was the last that anybody computed."""
    async with stack() as s:
        s.decode[0].tokens = 10_000
        s.decode[0].token_delay_s = 0.005
        async with s.session.post(
            s.url + "/v1/completions", json={"prompt": LONG, "stream": True}
        ) as response:
            await response.content.readuntil(b"t2 ")
            response.close()
        await until(lambda: s.decode[0].cancelled == 1)
        await until(lambda: s.app.admission.inflight == 0)
        assert s.app.inflight.count(s.decode[0].url) == 0


async def test_a_whole_answer_is_not_a_hang_up():
    """Servers say "disconnected" after the last byte as well."""
    async with stack() as s:
        for _ in range(10):
            await s.stream()
            await s.complete()
        _, metrics = await s.get("/metrics")
        assert b"baton_hangups_total{" not in metrics


async def test_a_hang_up_in_the_queue_leaves_it():
    """The place goes to the next."""
    settings = BatonBlock(admission=Admission(max_inflight=1, max_queue=1))
    async with stack(settings=settings) as s:
        gate = s.prefill[0].gate = asyncio.Event()
        first = asyncio.create_task(s.complete())
        await until(lambda: s.app.admission.inflight == 1)
        await _hang_up(s, {"prompt": LONG}, lambda: s.app.admission.queued == 1)
        await until(lambda: s.app.admission.queued == 0)
        gate.set()
        assert (await first)[0] == 200
        assert s.app.admission.inflight == 0


async def test_an_engine_that_hung_with_an_offer_is_asked_under_another_salt():
    """It may read the KV when its lease has ended, and keep it under the name of the right one."""
    settings = BatonBlock(recovery=Recovery(decode_first_byte_timeout_s=0.3))
    async with stack(settings=settings) as s:
        s.decode[0].plan.append(Behave(hang_after=0))
        await s.post("/v1/completions", {"prompt": LONG, "stream": True, "cache_salt": "mine"})
        await s.post("/v1/completions", {"prompt": LONG, "stream": True, "cache_salt": "mine"})
        asked = [one.body["cache_salt"] for one in s.decode[0].generated]
    assert asked[0] == "mine"
    assert len(asked) > 1
    assert asked[-1] != "mine"
    assert asked[-1].startswith("mine")
