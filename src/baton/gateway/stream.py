"""Hands a streamed answer to the caller: whole events, never a silent end.

Bytes pass through as they come, most of them in the callback in which they came (`_passing`): no
task wakes up for them. When the engine's stream breaks, `resume` looks for another engine
that goes on with it; the caller sees a pause. When nothing can go on, the stream ends with an error
event that client libraries raise.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from baton.errors import BrokenStream, LegFailed
from baton.gateway.decode import find_error, may_be_error
from baton.gateway.openai_errors import stream_event
from baton.gateway.resume import CannotResume
from baton.gateway.sse import EVENT_END

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.gateway.attention import Attention
    from baton.gateway.caller import Caller
    from baton.gateway.caller_wire import CallerWire
    from baton.gateway.resume import Resumer
    from baton.gateway.routes import Route
    from baton.gateway.sources import Source


async def relay(
    source: Source,
    caller: Caller,
    route: Route,
    *,
    attention: Attention,
    resumer: Resumer,
    last_words: Callable[[], bytes] | None = None,
) -> float:
    """Send a streamed answer on.

    Args:
        source: The answer.
        caller: Has got status and headers.
        route: Says what ends a whole stream, and how an error looks in it.
        attention: Watches silences.
        resumer: Finds a source that goes on when one breaks.
        last_words: Makes an SSE comment that is sent before the last event.

    Returns:
        When the last byte came, on the clock of `time.perf_counter`.

    Raises:
        BrokenStream: The stream broke off for good; the caller got an SSE error event.
    """
    try:
        while True:
            try:
                with resumer.breakers.streaming(source.engine_id):
                    ended_at = await _pass_on(source, caller, route, attention, last_words)
                break
            except LegFailed as failure:
                source.close()
                attention.wait_for(None)
                try:
                    source = await resumer.resume(source.engine_id, failure.failure)
                except CannotResume as exc:
                    await attention.pause()
                    raise await broken(caller, route, failure.failure, str(exc)) from failure
                await attention.pause()
    finally:
        source.close()
    await caller.body(b"", more=False)
    return ended_at


async def _pass_on(
    source: Source,
    caller: Caller,
    route: Route,
    attention: Attention,
    last_words: Callable[[], bytes] | None,
) -> float:
    last_event = None if route.terminator is None else route.terminator + EVENT_END
    ended = False
    wire = caller.wire()
    taker = None if wire is None else _passing(source, caller, wire, attention, last_event)
    while True:
        attention.wait_for(source)
        try:
            if wire is not None and taker is not None:
                before = caller.sent
                await source.flow(taker)
                passed = caller.sent != before
                # A dialect without a last word is whole when its answer is.
                ended = (ended or passed) if last_event is None else (ended and not passed)
                wire.flush()
            events = await source.next_events()
        except LegFailed as failure:
            if attention.given_up is None:
                raise
            why, attention.given_up = attention.given_up, None
            raise LegFailed("silent", source.engine_id, why) from failure
        sign = attention.heard()
        if sign is not None:
            await sign
        if not events:
            break
        await _stop_at_error(events, caller, source)
        ended = last_event is None or events.endswith(last_event)
        if ended and last_words is not None and last_event is not None:
            events = events[: -len(last_event)] + last_words() + last_event
        await caller.body(events, more=True)
    if not ended:
        raise LegFailed("truncated", source.engine_id, "ended early")
    ended_at = time.perf_counter()
    if last_words is not None and last_event is None:
        await caller.body(last_words(), more=True)
    return ended_at


def _passing(
    source: Source,
    caller: Caller,
    wire: CallerWire,
    attention: Attention,
    last_event: bytes | None,
) -> Callable[[bytes], bool]:
    """Takes what needs no thought: whole events in the middle of a stream, for a caller who reads.

    Everything else is left to `_pass_on`: the end, an error, half an event, a caller who is slow or
    gone, a sign on its way to him.
    """
    plain, digest, passed, write = source.plain, source.digest, attention.passed, wire.write

    def take(chunk: bytes) -> bool:
        if not wire.ready or attention.gives_sign:
            return False
        events = plain(chunk)
        if events is None:
            if (
                not chunk.endswith(EVENT_END)
                or (last_event is not None and chunk.endswith(last_event))
                or may_be_error(chunk)
            ):
                return False
            events = digest(chunk)
            if not events:
                return True
        passed()
        caller.sent += len(events)
        write(events)
        return True

    return take


async def _stop_at_error(events: bytes, caller: Caller, source: Source) -> None:
    """Send what comes before an engine's error event; the event itself is ours to write."""
    error = find_error(events)
    if error is None or error[1] < 500:  # noqa: PLR2004
        return
    if error[0]:
        await caller.body(events[: error[0]], more=True)
    raise LegFailed("error_event", source.engine_id)


async def broken(caller: Caller, route: Route, failure: str, why: str) -> BrokenStream:
    """Send the error event of a stream that nobody can go on with; the error to raise."""
    error = BrokenStream(
        f"The stream broke off before the answer was complete ({failure}) and could not go "
        f"on: {why}."
    )
    await caller.body(stream_event(error, route.dialect), more=True)
    await caller.body(b"", more=False)
    return error
