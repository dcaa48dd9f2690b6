"""A bad network."""

from __future__ import annotations

import asyncio
import time

import aiohttp
import pytest
from aiohttp import web

from baton.drill.proxy import Proxy
from tests.unit.drill.answers import server


async def _echo(request):
    return web.Response(body=await request.read())


async def test_bytes_pass_both_ways_unchanged():
    """More than fits one piece."""
    body = bytes(range(256)) * 1000
    async with (
        server(_echo) as url,
        Proxy(url) as proxy,
        aiohttp.ClientSession() as session,
        session.post(proxy.url, data=body) as answer,
    ):
        assert await answer.read() == body
        assert proxy.passed > 2 * len(body)


async def test_a_delay_is_felt_in_each_direction():
    """No less than two delays for a question and its answer."""
    async with server(_echo) as url, Proxy(url) as proxy, aiohttp.ClientSession() as session:
        proxy.delay_s = 0.05
        started = time.monotonic()
        async with session.post(proxy.url, data=b"x") as answer:
            await answer.read()
        # A lower bound: a busy machine can only add to it.
        assert time.monotonic() - started >= 0.1


async def test_a_throttle_makes_bytes_take_their_time():
    """20,000 bytes at 100,000 a second."""
    async with server(_echo) as url, Proxy(url) as proxy, aiohttp.ClientSession() as session:
        proxy.bytes_per_s = 100_000
        started = time.monotonic()
        async with session.post(proxy.url, data=b"x" * 20_000) as answer:
            assert len(await answer.read()) == 20_000
        assert time.monotonic() - started >= 0.2  # a lower bound, as above


async def test_a_cut_resets_what_is_open_and_the_next_connection_works():
    """The far end lives."""
    held = asyncio.Event()

    async def handler(request):
        if request.path == "/hold":
            held.set()
            await asyncio.sleep(30)
        return web.Response(text="here")

    async with server(handler) as url, Proxy(url) as proxy, aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.post(f"{proxy.url}/hold"))
        await asyncio.wait_for(held.wait(), 10)
        assert proxy.cut() == 1
        with pytest.raises(aiohttp.ClientError):
            await asking
        async with session.get(proxy.url) as answer:
            assert await answer.text() == "here"
        assert proxy.cuts == 1


async def test_a_far_end_that_refuses_is_a_broken_connection():
    """And not one that hangs."""
    async with Proxy("http://127.0.0.1:9") as proxy, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(proxy.url)
