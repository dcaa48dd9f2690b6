"""From a journey's answer to the caller's last byte: whole, or streamed and resumed if need be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.errors import GatewayError
from baton.gateway.answers import timing_comment, wants_timing, way_headers
from baton.gateway.attention import Attention
from baton.gateway.prefill import RequestRejected
from baton.gateway.sources import FirstHand, Place, Written
from baton.gateway.stream import broken, relay

if TYPE_CHECKING:
    from baton.errors import BrokenStream
    from baton.gateway.ask import Ask
    from baton.gateway.caller import Caller, Header
    from baton.gateway.decode import DecodeAnswer
    from baton.gateway.directory import Directory
    from baton.gateway.first_token import FirstToken
    from baton.gateway.journey import Journey
    from baton.gateway.resume import Resumer
    from baton.gateway.sources import Source
    from baton.observe.timeline import Timeline
    from baton.spec.schema import Recovery

NO_BUFFERING: list[Header] = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
EVENT_STREAM = "text/event-stream; charset=utf-8"
EARLY_HEADERS: list[Header] = [
    (b"content-type", EVENT_STREAM.encode()),
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
        gaps=journey.timeline.streams(),
    )
    streaming = _Streaming(journey, caller, resumer, attention, journey.ask)
    try:
        attention.wait_for(None)
        token = await journey.first_token()
        if token is not None:
            await attention.pause()
            await streaming.deliver_early(token)
            return
        answer = await journey.run()
        await attention.pause()
        try:
            if answer.streamed:
                await streaming.deliver(answer)
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
    headers = _headers(timeline, caller, answer.content_type, answer.status)
    timeline.count_usage(answer.held)
    timeline.finish("ok")
    timeline.bytes_out = len(answer.held)
    if wants_timing(caller):
        headers.append((b"x-baton-timing", timeline.as_json().encode()))
    headers.append((b"content-length", str(len(answer.held)).encode()))
    if not caller.started:
        await caller.start(answer.status, headers)
    await caller.body(answer.held, more=False)


@dataclass(frozen=True)
class _Streaming:
    """One streamed answer on its way to the caller."""

    journey: Journey
    caller: Caller
    resumer: Resumer
    attention: Attention
    ask: Ask
    """The caller's own: the journey's may be another one later."""

    async def deliver(self, answer: DecodeAnswer) -> None:
        """Decode's answer, from its first word on."""
        await self._start(answer.content_type, answer.status)
        resumer = self.resumer
        resumer.prompt_usage = answer.prompt_usage
        source = FirstHand(answer, resumer.transcript if resumer.keeps else None)
        await self._relay(source, answer.first_byte_at)

    async def deliver_early(self, token: FirstToken) -> None:
        """What prefill has said, then what decode says behind it."""
        await self._start(EVENT_STREAM, 200)
        journey, resumer = self.journey, self.resumer
        events = resumer.transcript.feed(token.events)
        resumer.prompt_usage = journey.prompt_usage
        if token.rest is None:
            await self._relay(Written([events]), None)
            return
        await self.caller.body(events, more=True)
        self.attention.wait_for(None)
        journey.go_on_with(resumer.continuing(token.rest))
        try:
            answer = await journey.run()
        except RequestRejected as exc:
            raise await self._broken("rejected", f"the engine answered {exc.status}") from exc
        except GatewayError as exc:
            raise await self._broken("no_decode", str(exc)) from exc
        await self.attention.pause()
        source = resumer.go_on(answer, Place(1, len(token.text), "", sure=True))
        await self._relay(source, answer.first_byte_at)

    async def _start(self, content_type: str, status: int) -> None:
        timeline, caller = self.journey.timeline, self.caller
        timeline.streamed = True
        headers = [*_headers(timeline, caller, content_type, status), *NO_BUFFERING]
        if not caller.started:
            await caller.start(status, headers)

    async def _broken(self, failure: str, why: str) -> BrokenStream:
        await self.attention.pause()
        return await broken(self.caller, self.ask.route, failure, why)

    async def _relay(self, source: Source, decode_since: float | None) -> None:
        """To the end; `decode_since` is when decode's first byte came, if anything came of it."""
        timeline = self.journey.timeline

        def last_words() -> bytes:
            if decode_since is not None:
                timeline.add("decode", timeline.now() - decode_since)
            self.resumer.count_tokens()
            timeline.finish("ok")
            timeline.bytes_out = self.caller.sent
            return timing_comment(timeline)

        timed = wants_timing(self.caller)
        ended_at = await relay(
            source,
            self.caller,
            self.ask.route,
            attention=self.attention,
            resumer=self.resumer,
            last_words=last_words if timed else None,
        )
        if not timed and decode_since is not None:
            timeline.add("decode", ended_at - decode_since)


def _headers(timeline: Timeline, caller: Caller, content_type: str, status: int) -> list[Header]:
    headers = [(b"content-type", content_type.encode("latin-1")), *way_headers(timeline)]
    if wants_timing(caller):
        headers += [
            (b"x-baton-" + leg + b"-engine", engine.encode("latin-1", "replace"))
            for leg, engine in (
                (b"prefill", timeline.prefill_engine),
                (b"decode", timeline.decode_engine),
            )
            if engine is not None
        ]
    timeline.status = status
    timeline.first_byte()
    return headers
