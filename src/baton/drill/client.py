"""Sends one request as a client would, and notes what came: every byte's meaning, no opinion."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from baton.drill.asks import Ask

OK = 200
PATIENCE_S = 120.0
"""A request that is not over by then is lost."""
_LOOK_S = 0.01
_DONE = b"[DONE]"


@dataclass
class Seen:
    """What one request got. Times are on the clock of `time.monotonic`."""

    status: int = 0
    """0 when no answer began."""
    text: str = ""
    reasoning: str = ""
    """What a model that thinks says before its answer, as vLLM's reasoning parser tells it."""
    finish_reason: str | None = None
    usage: dict[str, int] | None = None
    fallback: bool = False
    fault: str = ""
    """What was wrong with the answer as such; empty when it is whole."""
    sent_at: float = 0.0
    first_byte_at: float | None = None
    ended_at: float = 0.0
    longest_gap_s: float = 0.0
    """The longest silence between two pieces of a stream."""
    retried: bool = False
    ids: set[str] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        return self.status == OK and not self.fault


class Client:
    """Asks one or several endpoints, in turns.

    Args:
        endpoints: Base URLs, without `/v1`.
        headers: Of every request; a key, perhaps.
        retries: How often a request that was lost is sent again, to the next endpoint. A status
            below 500 is an answer and is not sent again.
    """

    def __init__(
        self,
        endpoints: list[str],
        *,
        headers: Mapping[str, str] | None = None,
        retries: int = 0,
    ) -> None:
        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._headers = dict(headers or {})
        self._retries = retries
        self._turn = 0
        self.open_streams = 0
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=PATIENCE_S),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def send(self, ask: Ask) -> Seen:
        """Send a request and read its answer to the end. Never raises for a bad answer."""
        sent_at = time.monotonic()
        self._turn += 1
        turn = self._turn
        for attempt in range(self._retries + 1):
            seen = Seen(sent_at=sent_at, retried=attempt > 0)
            await self._once(ask, seen, turn + attempt)
            if seen.whole or (seen.status and OK < seen.status < 500):  # noqa: PLR2004
                break
        return seen

    async def hang_up(
        self, ask: Ask, *, after_s: float, from_first_byte: bool
    ) -> tuple[Seen, bool]:
        """Send a request and close the connection after so long.

        Args:
            ask: The request.
            after_s: How long.
            from_first_byte: Since the first byte of the answer, not since the request.

        Returns:
            What came until then, and whether the answer was still open.
        """
        seen = Seen(sent_at=time.monotonic())
        self._turn += 1
        sending = asyncio.create_task(self._once(ask, seen, self._turn))
        while from_first_byte and seen.first_byte_at is None and not sending.done():
            await asyncio.wait({sending}, timeout=_LOOK_S)
        done, _ = await asyncio.wait({sending}, timeout=after_s)
        if not done:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return seen, not done

    async def _once(self, ask: Ask, seen: Seen, turn: int) -> None:
        endpoint = self._endpoints[turn % len(self._endpoints)]
        reader = _Reader(seen, chat="messages" in ask.body)
        try:
            async with self._session.post(endpoint + ask.path, json=ask.salted()) as answer:
                seen.status = answer.status
                seen.fallback = "x-baton-fallback" in answer.headers
                if answer.status != OK:
                    seen.fault = (await answer.text())[:300]
                elif ask.streamed:
                    with self._counted(reader):
                        await self._read_stream(answer, reader)
                    reader.conclude(usage_wanted="stream_options" in ask.body)
                else:
                    seen.first_byte_at = time.monotonic()
                    reader.whole(await answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            seen.fault = f"{type(exc).__name__}: {exc}"[:300]
        finally:
            seen.ended_at = time.monotonic()

    async def _read_stream(self, answer: aiohttp.ClientResponse, reader: _Reader) -> None:
        while piece := await answer.content.readany():
            reader.feed(piece)
            if reader.seen.first_byte_at is not None and not reader.counted:
                reader.counted = True
                self.open_streams += 1

    @contextmanager
    def _counted(self, reader: _Reader) -> Iterator[None]:
        try:
            yield
        finally:
            if reader.counted:
                self.open_streams -= 1

    async def get_text(self, path: str) -> str:
        """A page of the first endpoint. Raises aiohttp.ClientError."""
        async with self._session.get(self._endpoints[0] + path) as answer:
            answer.raise_for_status()
            return await answer.text()

    async def get_json(self, path: str) -> Any:
        """A JSON document of the first endpoint. Raises aiohttp.ClientError."""
        async with self._session.get(self._endpoints[0] + path) as answer:
            answer.raise_for_status()
            return await answer.json()


class _Reader:
    """Reads an answer's JSON, piece by piece or whole, and holds it to the protocol."""

    def __init__(self, seen: Seen, *, chat: bool) -> None:
        self.seen = seen
        self.counted = False
        self._chat = chat
        self._rest = b""
        self._done = False
        self._last_at = 0.0

    def feed(self, piece: bytes) -> None:
        now = time.monotonic()
        if self.seen.first_byte_at is None:
            self.seen.first_byte_at = now
        else:
            self.seen.longest_gap_s = max(self.seen.longest_gap_s, now - self._last_at)
        self._last_at = now
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip())

    def _event(self, data: bytes) -> None:
        if self._done:
            self._wrong("data after [DONE]")
        elif data == _DONE:
            self._done = True
        else:
            try:
                self._chunk(json.loads(data))
            except (ValueError, KeyError, TypeError, AttributeError) as exc:
                self._wrong(f"an event that is no chunk: {type(exc).__name__}: {data[:80]!r}")

    def _chunk(self, chunk: dict[str, Any]) -> None:
        seen = self.seen
        if "error" in chunk:
            self._wrong(f"error event: {str(chunk['error'])[:200]}")
            return
        seen.ids.add(str(chunk.get("id")))
        if chunk.get("usage") is not None:
            if seen.usage is not None:
                self._wrong("usage twice")
            seen.usage = _counts(chunk["usage"])
        for choice in chunk["choices"]:
            self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        seen = self.seen
        part = choice["delta"] if self._chat else choice
        text = part.get("content" if self._chat else "text") or ""
        reasoning = part.get("reasoning") or ""
        if (text or reasoning) and seen.finish_reason is not None:
            self._wrong("text after the finish reason")
        seen.text += text
        seen.reasoning += reasoning
        if (reason := choice.get("finish_reason")) is not None:
            if seen.finish_reason is not None:
                self._wrong("two finish reasons")
            seen.finish_reason = reason

    def conclude(self, *, usage_wanted: bool) -> None:
        """The stream has ended."""
        seen = self.seen
        if not self._done:
            self._wrong("the stream ended without [DONE]")
        elif seen.finish_reason is None:
            self._wrong("no finish reason")
        elif usage_wanted and seen.usage is None:
            self._wrong("no usage")
        elif len(seen.ids) != 1:
            self._wrong(f"{len(seen.ids)} ids in one stream")

    def whole(self, body: bytes) -> None:
        seen = self.seen
        try:
            answer = json.loads(body)
            (choice,) = answer["choices"]
            part = choice["message"] if self._chat else choice
            seen.text = part["content" if self._chat else "text"] or ""
            seen.reasoning = part.get("reasoning") or ""
            seen.finish_reason = choice["finish_reason"]
            seen.usage = _counts(answer["usage"])
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            self._wrong(f"not an answer: {type(exc).__name__} {exc}: {body[:120]!r}")

    def _wrong(self, what: str) -> None:
        self.seen.fault = self.seen.fault or what


def _counts(usage: dict[str, Any]) -> dict[str, int]:
    # Not the details: how many tokens a cache had depends on what ran before.
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return {name: usage[name] for name in names if usage.get(name) is not None}
