"""Streams: the order of their chunks, and bytes that come in any pieces."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from baton.conformance.case import Case, Fails, check
from baton.conformance.cases import sources
from baton.conformance.cases.basics import counts
from baton.conformance.probe import OK, read_stream, short
from baton.conformance.wire import until

if TYPE_CHECKING:
    from baton.conformance.probe import Probe

_EVENTS_BEFORE_HANG_UP = 3
_LONG = 48
_PAUSE_S = 0.002


async def _role(probe: Probe) -> None:
    told = await probe.stream()
    first = told.chunks[0]["choices"]
    check(first, "the first chunk has no choice")
    delta = first[0]["delta"]
    check(delta.get("role") == "assistant", f"the first delta is {delta!r:.120}")
    later = [
        chunk["choices"][0]["delta"]["role"]
        for chunk in told.chunks[1:]
        if chunk["choices"] and chunk["choices"][0]["delta"].get("role")
    ]
    check(not later, f"the role comes again: {later}")
    probe.see(first_delta=delta)


async def _joins(probe: Probe, *, chat: bool) -> None:
    whole, streamed = await probe.whole(chat=chat), await probe.stream(chat=chat)
    check(
        streamed.text == whole.text,
        f"streamed {streamed.text!r:.100}, in one piece {whole.text!r:.100}",
    )
    check(streamed.reasons == whole.reasons, f"{streamed.reasons} streamed, {whole.reasons} not")
    same = counts(streamed) == counts(whole)
    check(same, f"usage {counts(streamed)} streamed, {counts(whole)} not")
    probe.see(text=streamed.text, usage=counts(streamed))


async def _usage_once(probe: Probe, *, chat: bool) -> None:
    told = await probe.stream(chat=chat)
    last = told.chunks[-1]
    check(not last["choices"], "the last chunk has choices")
    check(isinstance(last.get("usage"), dict), f"usage of the last chunk is {last.get('usage')!r}")
    early = [chunk["usage"] for chunk in told.chunks[:-1] if chunk.get("usage") is not None]
    check(not early, f"{len(early)} chunks before the last have usage")
    counts(told)


async def _usage_never(probe: Probe, *, chat: bool) -> None:
    told = await probe.stream(chat=chat, stream_options=...)
    found = [chunk for chunk in told.chunks if chunk.get("usage") is not None]
    check(not found, f"{len(found)} chunks have usage, which nobody asked for")
    check(all(chunk["choices"] for chunk in told.chunks), "a chunk without choices")


async def _finish(probe: Probe, *, chat: bool) -> None:
    told = await probe.stream(chat=chat)
    with_choices = [chunk for chunk in told.chunks if chunk["choices"]]
    last = with_choices[-1]["choices"][0]
    check(last.get("finish_reason"), "the last choice has no finish_reason")
    probe.see(finish_reason=told.reasons[0], created=len({c["created"] for c in told.chunks}))


async def _split(probe: Probe, *, chat: bool) -> None:
    usual = await probe.stream(chat=chat)
    cut = await probe.stream_through_keyhole(chat=chat)
    check(cut.text == usual.text, f"cut: {cut.text!r:.100}, uncut: {usual.text!r:.100}")
    check(cut.reasons == usual.reasons, f"{cut.reasons} cut, {usual.reasons} uncut")
    same = counts(cut) == counts(usual)
    check(same, f"usage {counts(cut)} cut, {counts(usual)} uncut")
    probe.see(text=cut.text)


async def _slow(probe: Probe) -> None:
    usual = await probe.stream(max_tokens=_LONG)
    slow = await probe.stream_through_keyhole(max_tokens=_LONG, pause_s=_PAUSE_S)
    check(slow.text == usual.text, f"read slowly: {slow.text!r:.100}")
    probe.see(text=slow.text)


async def _unicode(probe: Probe) -> None:
    whole = await probe.whole(max_tokens=48)
    told = await probe.stream(max_tokens=48)
    check(told.text == whole.text, f"streamed {told.text!r:.100}, whole {whole.text!r:.100}")
    for chunk in told.chunks:
        part = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        try:
            part.encode()
        except UnicodeEncodeError as exc:
            raise Fails(f"half a character in one chunk: {part!r}") from exc
    probe.see(text=told.text)


async def _hang_up(probe: Probe) -> None:
    path, body = probe.asked(chat=True, stream=True, max_tokens=64)
    raw = json.dumps(body).encode()
    for _ in range(3):
        async with probe.wire.open("POST", path, raw) as (reader, parser):
            check(
                await until(reader, parser, _EVENTS_BEFORE_HANG_UP),
                f"the stream ended early: {short(parser.reply.body)}",
            )
    told = await probe.whole()
    check(told.reasons[0], "no answer after three callers hung up")


async def _error_before_stream(probe: Probe) -> None:
    _, body = probe.asked(chat=True, stream=True, temperature=-1)
    reply = await probe.post("/v1/chat/completions", body)
    probe.refused(reply, 400, 422)
    kind = reply.headers.get("content-type", "")
    check(kind.startswith("application/json"), f"content-type of the error is {kind!r}")


async def _keeps_ids(probe: Probe) -> None:
    path, body = probe.asked(chat=True, stream=True)
    reply = await probe.post(path, body)
    if reply.status != OK:
        probe.offered(reply)
    told = read_stream(reply.pieces, chat=True)
    models = {chunk.get("model") for chunk in told.chunks}
    check(models == {probe.model}, f"model of the chunks is {models}")
    ids = {chunk["id"] for chunk in told.chunks}
    check(all(str(one).startswith("chatcmpl-") for one in ids), f"ids are {ids}")


def _both(name: str, says: str, act: Any, source: str = sources.CHAT_STREAM) -> tuple[Case, ...]:
    return tuple(
        Case(f"stream.{area}.{name}", says, source, partial(act, chat=area == "chat"))
        for area in ("chat", "completions")
    )


CASES = (
    Case("stream.chat.role", "the first delta, and no other, has the role", sources.CHAT_STREAM,
         _role),
    Case("stream.chat.ids", "every chunk has the same id and the model's name",
         sources.CHAT_STREAM, _keeps_ids),
    *_both("joins", "the deltas make the text that comes without `stream`", _joins),
    *_both("finish", "finish_reason stands in the last choice of a stream", _finish),
    *_both("usage_once", "with include_usage, usage comes once, last, with no choices",
           _usage_once),
    *_both("usage_never", "without include_usage no chunk has usage", _usage_never),
    *_both("split", "a connection may cut the bytes anywhere", _split, sources.SSE),
    Case("stream.chat.slow_reader", "a caller may take his time over every few bytes",
         sources.SSE, _slow),
    Case("stream.chat.unicode", "characters of several tokens come whole", sources.CHAT_STREAM,
         _unicode),
    Case("stream.chat.hang_up", "callers may hang up; others are served on", sources.SSE,
         _hang_up),
    Case("stream.chat.error_first", "a bad request is refused with its status, not in a stream",
         sources.ERRORS, _error_before_stream),
)  # fmt: skip
