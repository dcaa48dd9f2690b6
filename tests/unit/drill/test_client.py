"""What the drill's client notes of an answer."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from baton.drill.client import Client
from tests.unit.drill.answers import DONE, TEXT, USAGE, ask, chunk, server, streams, whole


async def _send(handler, asked):
    async with server(handler) as url, Client([url]) as client:
        seen = await client.send(asked)
        assert client.open_streams == 0
    return seen


async def test_a_whole_stream_is_read_piece_by_piece():
    """Text, reason, usage, and a piece that ends in the middle of an event."""
    raw = chunk("the ") + chunk("end", reason="stop") + chunk(usage=USAGE, name="a") + DONE
    raw = raw.replace(
        b'"choices": [{"index": 0, "text": "", "finish_reason": null}]', b'"choices": []'
    )
    seen = await _send(
        streams(raw[:20], raw[20:]), ask(stream=True, stream_options={"include_usage": True})
    )
    assert (seen.text, seen.finish_reason, seen.usage, seen.fault) == ("the end", "stop", USAGE, "")
    assert seen.whole


@pytest.mark.parametrize(
    ("pieces", "cut", "fault"),
    [
        ([chunk("a", reason="stop")], False, "without [DONE]"),
        ([chunk("a")], True, "Error"),
        ([chunk("a"), DONE], False, "no finish reason"),
        ([chunk("a", reason="stop"), chunk("b"), DONE], False, "text after"),
        ([chunk("a", reason="stop"), chunk("", reason="stop"), DONE], False, "two finish"),
        ([chunk("a", reason="stop"), DONE, chunk("b")], False, "after [DONE]"),
        ([chunk("a"), chunk("b", reason="stop", name="b"), DONE], False, "2 ids"),
        ([chunk("a", reason="stop", usage=USAGE), chunk(usage=USAGE), DONE], False, "usage twice"),
        ([chunk("a"), b'data: {"error": {"code": 502}}\n\n', DONE], False, "error event"),
        ([chunk("a"), b"data: nonsense\n\n", DONE], False, "no chunk: JSONDecodeError"),
        ([chunk("a"), b"data: 1\n\n", DONE], False, "no chunk: TypeError"),
        ([chunk("a"), b'data: {"choices": null}\n\n', DONE], False, "no chunk: TypeError"),
        (
            [chunk("a"), b'data: {"choices": [], "usage": 3}\n\n', DONE],
            False,
            "no chunk: Attribute",
        ),
        ([chunk("a"), b'data: {"choices": [3]}\n\n', DONE], False, "no chunk: Attribute"),
    ],
)
async def test_a_stream_that_breaks_the_protocol_is_not_whole(pieces, cut, fault):
    """Each is what a client library would trip over, or silently get wrong."""
    seen = await _send(streams(*pieces, cut=cut), ask(stream=True))
    assert seen.status == 200
    assert not seen.whole
    assert fault in seen.fault


async def test_usage_that_was_asked_for_must_come():
    """A stream without it is not whole."""
    asked = ask(stream=True, stream_options={"include_usage": True})
    seen = await _send(streams(chunk("a", reason="stop"), DONE), asked)
    assert seen.fault == "no usage"


async def test_a_plain_answer_is_read_whole():
    """Chat and completions."""

    async def handler(request):
        body = await request.json()
        if "messages" in body:
            choice = {"message": {"content": TEXT}, "finish_reason": "stop"}
            return web.json_response(whole(choices=[choice]))
        return web.json_response(whole())

    for chat in (True, False):
        seen = await _send(handler, ask(chat=chat))
        assert (seen.text, seen.usage, seen.whole) == (TEXT, USAGE, True)


async def test_what_a_model_thinks_is_told_from_its_answer():
    """Streamed and not, in the field of vLLM's reasoning parsers."""

    def said(**delta):
        choice = {"index": 0, "delta": delta, "finish_reason": delta.pop("reason", None)}
        return f"data: {json.dumps({'id': 'a', 'choices': [choice]})}\n\n".encode()

    pieces = [said(reasoning="let "), said(reasoning="me", content=None), said(content="see")]
    seen = await _send(
        streams(*pieces, said(content="", reason="stop"), DONE), ask(chat=True, stream=True)
    )
    assert (seen.reasoning, seen.text, seen.fault) == ("let me", "see", "")

    async def handler(_):
        message = {"content": None, "reasoning": "let me"}
        return web.json_response(whole(choices=[{"message": message, "finish_reason": "length"}]))

    seen = await _send(handler, ask(chat=True))
    assert (seen.reasoning, seen.text, seen.fault) == ("let me", "", "")


async def test_a_plain_answer_that_is_none_is_not_whole():
    """A 200 is not enough."""

    async def handler(_):
        return web.json_response({"choices": []})

    assert "not an answer" in (await _send(handler, ask())).fault


async def test_a_refused_connection_is_an_answer_of_status_0():
    """And no exception: the load goes on."""
    async with Client(["http://127.0.0.1:9"]) as client:
        seen = await client.send(ask())
    assert seen.status == 0
    assert seen.fault


async def test_a_retry_goes_to_the_other_endpoint_and_only_once():
    """As a client behind two gateways does, and no better."""
    async with server(streams(chunk("a", reason="stop"), DONE)) as url:
        async with Client([url, "http://127.0.0.1:9"], retries=1) as client:
            answers = [await client.send(ask(stream=True)) for _ in range(4)]
        assert [seen.whole for seen in answers] == [True] * 4
        assert sorted(seen.retried for seen in answers) == [False, False, True, True]
        async with Client(["http://127.0.0.1:9", "http://127.0.0.1:9"], retries=1) as client:
            assert (await client.send(ask())).status == 0


async def test_a_refusal_is_not_sent_again():
    """A 4xx would be one the second time as well."""
    asked = []

    async def handler(request):
        asked.append(request.path)
        return web.json_response({}, status=429)

    async with server(handler) as url, Client([url, url], retries=1) as client:
        seen = await client.send(ask())
    assert (seen.status, len(asked)) == (429, 1)


async def test_every_request_has_a_salt_of_its_own():
    """No prefix cache may answer in the place of a handoff."""
    salts = set()

    async def handler(request):
        salts.add((await request.json())["cache_salt"])
        return web.json_response(whole())

    async with server(handler) as url, Client([url]) as client:
        for _ in range(3):
            await client.send(ask())
    assert len(salts) == 3


async def test_a_hang_up_closes_the_connection_and_keeps_what_was_read():
    """The server sees it go."""
    gone = asyncio.Event()

    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(chunk("begun"))
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            gone.set()
            raise

    async with server(handler) as url, Client([url]) as client:
        seen, was_open = await client.hang_up(ask(stream=True), after_s=0.05, from_first_byte=True)
        assert was_open
        assert seen.text == "begun"
        await asyncio.wait_for(gone.wait(), 10)


async def test_a_hang_up_that_comes_too_late_is_none():
    """The answer was over."""
    async with server(streams(chunk("a", reason="stop"), DONE)) as url, Client([url]) as client:
        _, was_open = await client.hang_up(ask(stream=True), after_s=20, from_first_byte=False)
    assert not was_open


async def test_open_streams_counts_those_in_the_middle_of_their_answer():
    """Not those that wait for their first byte."""
    first, rest = asyncio.Event(), asyncio.Event()

    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await first.wait()
        await response.write(chunk("a"))
        await rest.wait()
        await response.write(chunk("b", reason="stop") + DONE)
        return response

    async with server(handler) as url, Client([url]) as client:
        sending = asyncio.create_task(client.send(ask(stream=True)))
        await asyncio.sleep(0.05)
        assert client.open_streams == 0
        first.set()
        for _ in range(500):
            if client.open_streams:
                break
            await asyncio.sleep(0.01)
        assert client.open_streams == 1
        rest.set()
        assert (await sending).text == "ab"
        assert client.open_streams == 0


def test_details_of_usage_are_not_compared():
    """How many tokens a cache had depends on what ran before."""
    from baton.drill.client import _counts

    assert _counts({**USAGE, "prompt_tokens_details": {"cached_tokens": 2}}) == USAGE
    assert json.dumps(USAGE)
