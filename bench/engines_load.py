"""The load of bench/engines.py: streamed completions, from so many callers that wait for answers.

Closed-loop: a caller asks again when its answer is complete, as in the table that this bench
repeats. No two prompts begin alike, so no prefix cache has seen one. The tiny model has one token
for each byte and says ASCII only: a prompt's and an answer's tokens are their characters.
"""

from __future__ import annotations

import asyncio
import random
import string
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
from engines_stats import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MODEL = "tiny"
ANSWER_TOKENS = 32
LONGEST_S = 60.0
"""An answer that takes longer is none."""
_DATA = b"data: "


class NoAnswer(Exception):
    """A request that was refused, broke, or brought another number of tokens."""


def prompts(seed: str, count: int, tokens: int, spread: int) -> list[str]:
    """Random words, the same for the same seed.

    Args:
        seed: Names round and setup.
        count: Of prompts.
        tokens: Their length on average.
        spread: Lengths lie evenly within so many tokens of it.
    """
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        length = draw.randint(tokens - spread, tokens + spread)
        text = ""
        while len(text) < length:
            text += "".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9))) + " "
        made.append(text[:length])
    return made


def body_of(prompt: str, *, stream: bool) -> bytes:
    """The request, the same for every setup."""
    return msgspec.json.encode({
        "model": MODEL, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0,
        "ignore_eos": True, "stream": stream,
    })  # fmt: skip


def session() -> aiohttp.ClientSession:
    """Connections that are kept open between requests."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=5),
        timeout=aiohttp.ClientTimeout(total=LONGEST_S),
        headers={"content-type": "application/json"},
        auto_decompress=False,
    )


async def ask(http: aiohttp.ClientSession, url: str, prompt: str) -> Answer:
    """One streamed answer.

    Raises:
        NoAnswer: With what came instead.
    """
    try:
        return await _ask(http, url, prompt)
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise NoAnswer(repr(exc)) from exc


async def _ask(http: aiohttp.ClientSession, url: str, prompt: str) -> Answer:
    body = body_of(prompt, stream=True)
    answer = Answer(time.perf_counter())
    async with http.post(f"{url}/v1/completions", data=body) as response:
        if response.status != 200:  # noqa: PLR2004
            raise NoAnswer(f"status {response.status}: {(await response.text())[:300]}")
        answer.route = response.headers.get("x-baton-route", "")
        if (fallback := response.headers.get("x-baton-fallback")) is not None:
            answer.route += f" ({fallback})"
        rest = b""
        async for data in response.content.iter_any():
            now = time.perf_counter()
            *lines, rest = (rest + data).split(b"\n")
            text = "".join(_texts(lines))
            if text:
                answer.chunks.append((now, len(text)))
                answer.text += text
    answer.ended_s = time.perf_counter()
    if answer.tokens != ANSWER_TOKENS:
        raise NoAnswer(f"{answer.tokens} tokens instead of {ANSWER_TOKENS}: {rest[:300]!r}")
    return answer


def _texts(lines: Sequence[bytes]) -> Iterator[str]:
    for line in lines:
        if not line.startswith(_DATA + b"{"):
            continue
        event: dict[str, Any] = msgspec.json.decode(line[len(_DATA) :])
        if "error" in event:
            raise NoAnswer(str(event["error"])[:300])
        for choice in event["choices"]:
            yield choice["text"]


async def lengths(http: aiohttp.ClientSession, url: str, prompt: str) -> tuple[int, int]:
    """Tokens of the prompt and of its answer, as the engine counts them."""
    body = body_of(prompt, stream=False)
    async with http.post(f"{url}/v1/completions", data=body) as response:
        raw = await response.read()
        if response.status != 200:  # noqa: PLR2004
            raise NoAnswer(f"status {response.status}: {raw[:300]!r}")
        usage = msgspec.json.decode(raw)["usage"]
        return usage["prompt_tokens"], usage["completion_tokens"]


async def closed_loop(
    http: aiohttp.ClientSession, url: str, asked: Sequence[str], callers: int
) -> list[Answer]:
    """All prompts, by so many callers; in the order in which they were asked.

    Raises:
        NoAnswer: One of them got none: a window with lost answers is no measurement.
    """
    answers: list[Answer | None] = [None] * len(asked)
    left = iter(enumerate(asked))

    async def caller() -> None:
        for place, prompt in left:
            answers[place] = await ask(http, url, prompt)

    async with asyncio.timeout(LONGEST_S * len(asked)):
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(callers):
                    group.create_task(caller())
        except* NoAnswer as failed:
            raise NoAnswer(str(failed.exceptions[0])) from None
    return [answer for answer in answers if answer is not None]
