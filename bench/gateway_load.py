"""The load of bench/gateway.py: requests over HTTP from bare asyncio protocols on uvloop.

Open-loop: requests are sent when their time has come, whatever became of those before them. Only
`kept_busy`, which looks for the most that somebody can take, waits for answers.

This process shares the machine with what it measures (`gateway_connections`): its own cost is
measured and reported with the rest. Times are nanoseconds on CLOCK_MONOTONIC.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from gateway_connections import Connections, Window
from gateway_engine import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable

PROMPT = "What would you say about prefill and decode, if you had to be brief? " * 30
"""About 2 KB, the 512 tokens that the engines say it has."""
DRAIN_S = 20.0
TO_PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Target:
    """Somebody who answers a chat request at one URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._to = Connections(url)
        self._number = 0

    async def prepare(self, count: int) -> None:
        await self._to.prepare(count)

    def ask(self, window: Window, over: Callable[[], None]) -> None:
        """Send one request now."""
        self._number += 1
        request = post(self.url, chat(self._number, window.tokens))
        self._to.send(request, window, time.monotonic_ns(), lambda body: end(window, body, over))

    def close(self) -> None:
        self._to.close()


class ByHand(Target):
    """Both legs done here: prefill, then decode with what prefill answered."""

    def __init__(self, prefill: str, decode: str) -> None:
        super().__init__(decode)
        self._prefill_url = prefill
        self._to_prefill = Connections(prefill)

    async def prepare(self, count: int) -> None:
        await super().prepare(count)
        await self._to_prefill.prepare(count)

    def ask(self, window: Window, over: Callable[[], None]) -> None:
        self._number += 1
        began = time.monotonic_ns()
        body = chat(self._number, window.tokens)
        first = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": TO_PREFILL}

        def prefilled(answer: bytes | None) -> None:
            if answer is None:
                over()
                return
            offer = msgspec.json.decode(answer)["kv_transfer_params"]
            second = post(self.url, {**body, "kv_transfer_params": offer})
            self._to.send(second, window, began, lambda got: end(window, got, over))

        self._to_prefill.send(post(self._prefill_url, first), window, began, prefilled)

    def close(self) -> None:
        super().close()
        self._to_prefill.close()


def chat(number: int, tokens: int) -> dict[str, object]:
    """A streamed chat request, other than every other from its beginning on."""
    messages = [{"role": "user", "content": f"{number}. {PROMPT}"}]
    return {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": True}


def post(url: str, body: dict[str, object]) -> bytes:
    """The bytes of a request."""
    raw = msgspec.json.encode(body)
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b"
    ) % (urlsplit(url).netloc.encode(), len(raw), raw)


def end(window: Window, body: bytes | None, over: Callable[[], None]) -> None:
    """Count an answer."""
    if body is not None:
        window.answered += 1
    over()


async def open_loop(
    target: Target, *, rate: float, seconds: float, tokens: int, seed: int
) -> Window:
    """Requests at random times (a Poisson process), the same times for the same seed.

    Args:
        target: Who is asked.
        rate: Requests a second.
        seconds: How long requests are sent; then their answers are waited for.
        tokens: Of each answer.
        seed: Of the times.
    """
    draw = random.Random(seed)
    plan, at = [], draw.expovariate(rate)
    while at < seconds:
        plan.append(at)
        at += draw.expovariate(rate)
    window = Window(tokens)
    left = len(plan)
    loop = asyncio.get_running_loop()
    finished = loop.create_future()

    def over() -> None:
        nonlocal left
        left -= 1
        if not left:
            finished.set_result(None)

    began = time.monotonic()
    due = iter(plan)
    following = next(due, None)

    def send() -> None:
        nonlocal following
        now = time.monotonic() - began
        while following is not None and following <= now:
            window.late_ns.append(int(1e9 * (now - following)))
            target.ask(window, over)
            following = next(due, None)
            now = time.monotonic() - began
        if following is not None:
            loop.call_later(following - now, send)

    send()
    await _until(finished, window, seconds + DRAIN_S)
    window.took_s = time.monotonic() - began
    return window


async def kept_busy(target: Target, *, inflight: int, seconds: float, tokens: int) -> Window:
    """As many requests as are answered while so many are always open. Not open-loop."""
    window = Window(tokens)
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    left = inflight
    began = time.monotonic()

    def over() -> None:
        nonlocal left
        if time.monotonic() - began < seconds and not window.failed:
            target.ask(window, over)
            return
        left -= 1
        if not left:
            finished.set_result(None)

    for _ in range(inflight):
        target.ask(window, over)
    await asyncio.sleep(seconds)
    answered, window.took_s = window.answered, time.monotonic() - began
    window.in_time = window.chunks
    await _until(finished, window, DRAIN_S)
    window.answered = answered
    return window


async def opened(target: Target, *, count: int, rate: float, tokens: int) -> Window:
    """Streams that are begun, so many a second, and left open."""
    window = Window(tokens)
    for number in range(count):
        target.ask(window, lambda: None)
        if number % 10 == 9:  # noqa: PLR2004
            await asyncio.sleep(10 / rate)
    return window


async def _until(finished: asyncio.Future[None], window: Window, seconds: float) -> None:
    try:
        await asyncio.wait_for(finished, seconds)
    except TimeoutError:
        window.failed["no answer in time"] += 1
