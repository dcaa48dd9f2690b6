"""Pieces of a stream that are written to the caller's connection without going through ASGI."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from baton.gateway import caller_wire
from baton.gateway.app import GatewayApp
from baton.gateway.caller_wire import SEND, CallerWire, Outbox, wire_behind
from baton.spec.schema import BatonBlock, Recovery
from tests.unit.gateway.fakes import LONG, Behave, stack, until
from tests.unit.gateway.test_resume import GREEDY, PROMPT, pair


class Transport:
    """Keeps what is written."""

    def __init__(self, fails: bool = False) -> None:
        self.got = b""
        self.fails = fails

    def write(self, data: bytes) -> None:
        if self.fails:
            raise RuntimeError("closed")
        self.got += data


def cycle(**said: Any) -> Any:
    flow = SimpleNamespace(write_paused=False)
    made = {"flow": flow, "transport": Transport(), "disconnected": False}
    return SimpleNamespace(**{**made, "response_complete": False, **said})


@pytest.fixture
def pieces(monkeypatch):
    """What goes over the wire."""
    seen: list[bytes] = []
    write = CallerWire.write

    def noted(self: CallerWire, piece: bytes) -> None:
        seen.append(piece)
        write(self, piece)

    monkeypatch.setattr(CallerWire, "write", noted)
    return seen


def behind(monkeypatch, around):
    """The gateway's app with somebody around its `send`."""
    call = GatewayApp.__call__

    async def called(self, scope, receive, send):
        await call(self, scope, receive, around(send) if scope["type"] == "http" else send)

    monkeypatch.setattr(GatewayApp, "__call__", called)


async def test_the_middle_of_a_stream_goes_over_the_wire(pieces):
    """Its beginning and its end do not."""
    async with stack() as s:
        s.decode[0].tokens, s.decode[0].token_delay_s = 6, 0.005
        raw, _ = await s.stream()
        assert b"t1" in b"".join(pieces)
        assert b"[DONE]" not in b"".join(pieces)
        assert raw.count(b'"text"') == 6
        assert raw.endswith(b"data: [DONE]\n\n")


async def test_an_answer_is_the_same_with_and_without_the_wire(pieces, monkeypatch):
    """Byte for byte, however the engine cuts its events."""
    for split in (0, 7):
        async with stack() as s:
            s.decode[0].tokens, s.decode[0].token_delay_s = 6, 0.002
            s.decode[0].always = Behave(split=split)
            over_it, _ = await s.stream()
            with monkeypatch.context() as m:
                m.setattr(caller_wire, "_UVICORN", "not.there")
                pieces.clear()
                ordinary, _ = await s.stream()
                assert pieces == []
            assert over_it == ordinary


async def test_a_dialect_without_a_last_word_is_whole_when_its_answer_is(pieces):
    """`/v1/responses`: the last pieces may all have gone over the wire, and nothing follows."""
    async with stack() as s:
        s.decode[0].tokens, s.decode[0].token_delay_s = 6, 0.005
        s.decode[0].always = Behave(end_early=True)  # no `[DONE]` there
        raw, _ = await s.stream("/v1/responses", input=LONG, prompt=None)
        assert b"stop" in b"".join(pieces)
        assert raw.endswith(b'data: {"finish_reason":"stop"}\n\n')
        assert b"error" not in raw
        assert s.app.timelines.as_list()[-1]["outcome"] == "ok"


async def test_somebody_around_the_app_sees_every_piece(pieces, monkeypatch):
    """Who knows what he makes of it."""

    def loud(send: Any) -> Any:
        async def louder(message: Any) -> None:
            if "body" in message:
                message = {**message, "body": message["body"].upper()}
            await send(message)

        return louder

    behind(monkeypatch, loud)
    async with stack() as s:
        raw, _ = await s.stream()
        assert (raw, pieces) == (raw.upper(), [])


async def test_a_caller_who_reads_slowly_makes_the_engine_wait():
    """Nothing is kept for him without bounds, and he misses nothing."""
    async with stack() as s:
        engine = s.decode[0]
        engine.tokens, engine.pad = 1500, 16_000
        reader, writer = await asyncio.open_connection(*s.url.removeprefix("http://").split(":"))
        writer.transport.pause_reading()
        body = json.dumps({"prompt": LONG, "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        before = -1
        while engine.wrote != before or not before:
            before = engine.wrote
            await asyncio.sleep(0.1)
        assert before < engine.tokens * engine.pad
        writer.transport.resume_reading()
        raw = await reader.read(-1)
        assert raw.count(b'"text": "t') == engine.tokens
        assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()


async def test_a_caller_who_hangs_up_between_pieces_ends_the_engine(pieces):
    """As everywhere: decode is cancelled, and nothing stays held."""
    async with stack() as s:
        s.decode[0].tokens, s.decode[0].token_delay_s = 2000, 0.002
        _, writer = await asyncio.open_connection(*s.url.removeprefix("http://").split(":"))
        body = json.dumps({"prompt": LONG, "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        await until(lambda: len(pieces) > 3)
        writer.close()
        await until(lambda: s.decode[0].cancelled == 1)
        assert s.kv_is_free()
        assert s.app.admission.inflight == 0


async def test_what_went_over_the_wire_counts_as_sent_when_the_engine_dies(pieces):
    """Another engine goes on behind it, over the wire as well: no token is lost or doubled."""
    async with pair() as p:
        body = {**GREEDY, "prompt": PROMPT}
        whole = await p.told("/v1/completions", body)
        p.break_decode("drop_at=20")
        p.avoid_the_last()
        pieces.clear()
        told = await p.told("/v1/completions", body)
        assert p.resumes() == ["continue"]
        assert pieces
        assert (told.text, told.done) == (whole.text, True)


async def test_a_silence_after_pieces_still_gives_the_caller_a_sign(pieces):
    """Pieces that no task sees are heard all the same, and so is their end."""
    settings = BatonBlock(recovery=Recovery(keep_alive_s=0.05, stream_idle_timeout_s=20))
    async with stack(settings=settings) as s:
        s.decode[0].tokens, s.decode[0].token_delay_s = 4, 0.3
        raw, _ = await s.stream()
        assert raw.count(b": keep-alive") >= 2
        assert raw.replace(b": keep-alive\n\n", b"").count(b'"text"') == 4


async def test_an_outbox_keeps_the_order_and_survives_a_closed_connection():
    """One caller's transport is no other's business."""
    outbox, well, gone = Outbox(), cycle(), cycle(transport=Transport(fails=True))
    for number in range(3):
        CallerWire(gone, outbox).write(b"x")
        CallerWire(well, outbox).write(b"%d" % number)
    assert well.transport.got == b""
    await asyncio.sleep(0)
    assert well.transport.got == b"1\r\n0\r\n1\r\n1\r\n1\r\n2\r\n"
    CallerWire(well, outbox).write(b"now")
    outbox.flush()
    assert well.transport.got.endswith(b"3\r\nnow\r\n")
    await asyncio.sleep(0)
    assert well.transport.got.count(b"now") == 1


@pytest.mark.parametrize("said", [{"disconnected": True}, {"response_complete": True}])
def test_a_wire_is_not_ready_for_a_caller_who_is_gone_or_served(said):
    """What is written then would be lost, or stand behind the answer."""
    assert not CallerWire(cycle(**said), Outbox()).ready
    paused = cycle()
    paused.flow.write_paused = True
    assert not CallerWire(paused, Outbox()).ready
    assert CallerWire(cycle(), Outbox()).ready


def test_only_uvicorns_own_send_has_a_wire_behind_it(monkeypatch):
    """And only while its answer is chunked and has a body."""

    class RequestResponseCycle(SimpleNamespace):
        async def send(self, message: Any) -> None: ...

    module = SimpleNamespace(RequestResponseCycle=RequestResponseCycle)
    monkeypatch.setitem(caller_wire.sys.modules, caller_wire._UVICORN, module)
    one = RequestResponseCycle(**vars(cycle()), chunked_encoding=True)

    async def other(message: Any) -> None: ...

    get, head = {"method": "GET"}, {"method": "HEAD"}
    assert wire_behind(get, one.send, Outbox()) is not None
    assert wire_behind({**get, SEND: one.send}, other, Outbox()) is not None
    assert wire_behind(get, other, Outbox()) is None
    assert wire_behind({**get, SEND: other}, one.send, Outbox()) is None
    assert wire_behind(head, one.send, Outbox()) is None
    for chunked in (None, False):
        one.chunked_encoding = chunked
        assert wire_behind(get, one.send, Outbox()) is None
    del one.chunked_encoding
    assert wire_behind(get, one.send, Outbox()) is None
