"""Hands a streamed answer to the caller: whole events, never parsed, never a silent end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from baton.errors import BrokenStream, LegFailed
from baton.gateway.decode import find_error
from baton.gateway.openai_errors import stream_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.gateway.caller import Caller, Header
    from baton.gateway.decode import DecodeAnswer
    from baton.gateway.routes import Route

EVENT_END = b"\n\n"


class WholeEvents:
    """Cuts a byte stream behind the last event that is complete.

    A caller never gets half an event: when an engine dies in the middle of one, what follows
    (an error event now, the rest of the answer once streams resume) stands on a clean line.
    """

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """All complete events so far, as they came."""
        rest = self._rest
        if not rest and chunk.endswith(EVENT_END):
            return chunk  # vLLM writes an event at a time: nearly always so
        start = max(0, len(rest) - 1)
        rest += chunk
        cut = rest.rfind(EVENT_END, start)
        if cut < 0:
            return b""
        whole = bytes(rest[: cut + 2])
        del rest[: cut + 2]
        return whole

    def rest(self) -> bytes:
        """What is left when the stream has ended."""
        return bytes(self._rest)


async def relay(
    answer: DecodeAnswer,
    caller: Caller,
    route: Route,
    headers: list[Header],
    *,
    idle_s: float,
    last_words: Callable[[], bytes] | None = None,
) -> float:
    """Send a streamed answer on.

    Args:
        answer: With its first events in `held`.
        caller: Has not been answered yet.
        route: Says what ends a whole stream, and how an error looks in it.
        headers: Of the answer.
        idle_s: A stream that is silent for longer is broken.
        last_words: Makes an SSE comment that is sent before the last event.

    Returns:
        When the last byte came, on the clock of `time.perf_counter`.

    Raises:
        BrokenStream: The engine's stream broke off; the caller got an SSE error event.
    """
    last_event = None if route.terminator is None else route.terminator + EVENT_END
    whole = WholeEvents()
    chunk = answer.held
    ended = False
    now = asyncio.get_running_loop().time
    renew_at = 0.0
    await caller.start(answer.status, headers)
    try:
        # One timer for the stream, moved at most eight times an `idle_s` and not at every chunk.
        async with asyncio.timeout(idle_s) as silence:
            while chunk:
                events = whole.feed(chunk)
                await _stop_at_error(events, caller, answer)
                if events:
                    ended = last_event is None or events.endswith(last_event)
                    if ended and last_words is not None and last_event is not None:
                        head = events[: -len(last_event)]
                        events = head + last_words() + last_event
                    await caller.body(events, more=True)
                if now() > renew_at:
                    silence.reschedule(now() + idle_s)
                    renew_at = now() + idle_s / 8
                chunk = await answer.next_chunk()
    except (LegFailed, TimeoutError) as exc:
        why = exc.failure if isinstance(exc, LegFailed) else "silent"
        raise await _broken(caller, route, why) from exc
    ended_at = time.perf_counter()
    if not ended or whole.rest():
        raise await _broken(caller, route, "ended early")
    if last_words is not None and last_event is None:
        await caller.body(last_words(), more=True)
    await caller.body(b"", more=False)
    return ended_at


async def _stop_at_error(events: bytes, caller: Caller, answer: DecodeAnswer) -> None:
    """Send what comes before an engine's error event; the event itself is ours to write."""
    error = find_error(events)
    if error is None or error[1] < 500:  # noqa: PLR2004
        return
    if error[0]:
        await caller.body(events[: error[0]], more=True)
    raise LegFailed("error_event", answer.engine.replica_id)


async def _broken(caller: Caller, route: Route, why: str) -> BrokenStream:
    error = BrokenStream(f"The stream broke off before the answer was complete ({why}).")
    await caller.body(stream_event(error, route.dialect), more=True)
    await caller.body(b"", more=False)
    return error
