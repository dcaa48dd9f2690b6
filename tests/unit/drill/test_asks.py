"""The requests of a drill."""

from __future__ import annotations

import pytest
from aiohttp import web

from baton.drill.asks import CHAT, COMPLETIONS, mix, stop_in, undisturbed
from baton.drill.client import Client
from baton.errors import DrillFailed
from tests.unit.drill.answers import server, whole

SIZES = {"count": 48, "prompt_words": (5, 9), "tokens": (3, 7)}


def test_the_same_seed_gives_the_same_requests():
    """So that a drill can be repeated."""
    assert mix("m", seed=1, **SIZES) == mix("m", seed=1, **SIZES)
    assert mix("m", seed=1, **SIZES) != mix("m", seed=2, **SIZES)


def test_the_mix_has_every_kind():
    """Chat and completions, streamed and not, with and without usage, both names of the limit."""
    bodies = [ask.body for ask in mix("m", seed=1, **SIZES)]
    kinds = {("messages" in body, bool(body.get("stream"))) for body in bodies}
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}
    streamed = [body for body in bodies if body.get("stream")]
    assert {"stream_options" in body for body in streamed} == {True, False}
    assert any("max_completion_tokens" in body for body in bodies)
    assert all(body["temperature"] == 0 for body in bodies)
    assert {ask.path for ask in mix("m", seed=1, **SIZES)} == {CHAT, COMPLETIONS}


def test_a_stop_string_stands_once_and_behind_the_middle():
    """Or it would end the answer at another place."""
    text = "abcdefghijklmnopqrstuvwxyz" * 2
    assert stop_in(text) is None
    stop = stop_in("the runner hands the baton to the next who runs on")
    assert stop is not None
    text = "the runner hands the baton to the next who runs on"
    assert text.count(stop) == 1
    assert text.index(stop) >= len(text) // 2


def test_half_a_character_is_no_stop_string():
    """It would not survive being sent."""
    assert stop_in("�" * 50) is None


async def test_an_endpoint_that_is_not_well_is_not_drilled():
    """Otherwise its own faults would be called losses."""

    async def handler(_):
        return web.json_response({}, status=503)

    async with server(handler) as url, Client([url]) as client:
        with pytest.raises(DrillFailed, match="before anything was broken"):
            await undisturbed(client, mix("m", seed=1, **SIZES))


async def test_a_stop_string_is_asked_for_a_second_time_and_the_answer_kept():
    """What it must say is what it said then."""
    stops = []

    async def handler(request):
        body = await request.json()
        text = "a text that is long enough to hold a stop string somewhere"
        if "stop" in body:
            stops.append(body["stop"][0])
            text = text[: text.index(body["stop"][0])]
        choice = {"text": text, "finish_reason": "stop" if "stop" in body else "length"}
        return web.json_response(whole(choices=[choice]))

    asks = [ask for ask in mix("m", seed=1, **SIZES) if ask.path == COMPLETIONS]
    asks = [ask for ask in asks if not ask.streamed]
    async with server(handler) as url, Client([url]) as client:
        cases = await undisturbed(client, asks)
    stopped = [case for case in cases if "stop" in case.ask.body]
    assert len(stopped) == len(stops) > 0
    assert all(case.expected.finish_reason == "stop" for case in stopped)
