"""From a journey's answer to the caller's last byte: whole, or streamed and resumed if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.gateway.answers import way_headers
from baton.gateway.attention import Attention
from baton.gateway.sources import FirstHand
from baton.gateway.stream import relay

if TYPE_CHECKING:
    from baton.gateway.caller import Caller, Header
    from baton.gateway.decode import DecodeAnswer
    from baton.gateway.directory import Directory
    from baton.gateway.journey import Journey
    from baton.gateway.resume import Resumer
    from baton.observe.timeline import Timeline
    from baton.spec.schema import Recovery

NO_BUFFERING: list[Header] = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
EARLY_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    *NO_BUFFERING,
]
"""Of an answer that a keep-alive comment opens, before anybody knows which way it goes."""


async def deliver(
    journey: Journey,
    caller: Caller,
    resumer: Resumer | None,
    *,
    directory: Directory,
    settings: Recovery,
) -> None:
    """Run the journey and hand its answer on.

    Args:
        journey: Has not run yet.
        caller: Has not been answered yet.
        resumer: For a request that wants a stream.
        directory: Tells whether an engine that says nothing is still there.
        settings: How long a silence may be.

    Raises:
        BrokenStream: The caller got an error event.
        GatewayError: There is no answer.
    """
    if resumer is None:
        await _deliver_whole(journey, caller)
        return

    def lives(replica_id: str) -> bool:
        return any(
            engine.replica_id == replica_id and engine.state != "starting"
            for engine in directory.all_engines()
        )

    attention = Attention(
        caller,
        EARLY_HEADERS,
        keep_alive_s=settings.keep_alive_s,
        idle_s=settings.stream_idle_timeout_s,
        lives=lives,
    )
    try:
        attention.wait_for(None)
        answer = await journey.run()
        await attention.pause()
        try:
            if answer.streamed:
                await _deliver_stream(journey, caller, answer, resumer, attention)
            else:
                await _hand_over(journey.timeline, caller, answer)
        finally:
            answer.close()
    finally:
        journey.close()
        resumer.close()
        await attention.close()


async def _deliver_whole(journey: Journey, caller: Caller) -> None:
    try:
        answer = await journey.run()
        try:
            await _hand_over(journey.timeline, caller, answer)
        finally:
            answer.close()
    finally:
        journey.close()


async def _hand_over(timeline: Timeline, caller: Caller, answer: DecodeAnswer) -> None:
    headers = _headers(timeline, caller, answer)
    timeline.finish("ok")
    timeline.bytes_out = len(answer.held)
    if _timed(caller):
        headers.append((b"x-baton-timing", timeline.as_json().encode()))
    headers.append((b"content-length", str(len(answer.held)).encode()))
    if not caller.started:
        await caller.start(answer.status, headers)
    await caller.body(answer.held, more=False)


async def _deliver_stream(
    journey: Journey,
    caller: Caller,
    answer: DecodeAnswer,
    resumer: Resumer,
    attention: Attention,
) -> None:
    timeline = journey.timeline
    headers = [*_headers(timeline, caller, answer), *NO_BUFFERING]
    timeline.streamed = True
    if not caller.started:
        await caller.start(answer.status, headers)

    def last_words() -> bytes:
        timeline.add("decode", timeline.now() - answer.first_byte_at)
        timeline.finish("ok")
        timeline.bytes_out = caller.sent
        return b": baton-timing " + timeline.as_json().encode() + b"\n\n"

    timed = _timed(caller)
    ended_at = await relay(
        FirstHand(answer, resumer.transcript if resumer.keeps else None),
        caller,
        journey.ask.route,
        attention=attention,
        resumer=resumer,
        last_words=last_words if timed else None,
    )
    if not timed:
        timeline.add("decode", ended_at - answer.first_byte_at)


def _timed(caller: Caller) -> bool:
    return caller.header(b"x-baton-timing") == b"1"


def _headers(timeline: Timeline, caller: Caller, answer: DecodeAnswer) -> list[Header]:
    headers = [(b"content-type", answer.content_type.encode("latin-1")), *way_headers(timeline)]
    if _timed(caller):
        headers += [
            (b"x-baton-" + leg + b"-engine", engine.encode("latin-1", "replace"))
            for leg, engine in (
                (b"prefill", timeline.prefill_engine),
                (b"decode", timeline.decode_engine),
            )
            if engine is not None
        ]
    timeline.status = answer.status
    timeline.first_byte()
    return headers
