"""Asks an endpoint, and holds every answer to what all answers have in common."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.conformance.case import Fails, NotOffered, check
from baton.conformance.keyhole import ask_through_keyhole
from baton.conformance.sse import SseReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.conformance.wire import Reply, Wire

OK = 200
CLIENT_ERROR, SERVER_ERROR = 400, 500
_NO_ROUTE = frozenset({404, 405, 501})
NOT_SUPPORTED = (
    "does not support",
    "not supported",
    "not enabled",
    "requires --enable",
    "is not implemented",
    "requires a",
)
"""Words with which an endpoint says that it has not got something."""
LONG = "one runner hands the baton to the next and the crowd counts the steps. " * 6
"""Long enough for a P/D endpoint to hand it over (Baton's `auto` leaves short prompts alone)."""
_ROUTES = ("x-baton-route", "x-baton-fallback", "x-baton-served-by")


@dataclass
class Told:
    """An answer that generated something, joined if it was streamed."""

    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    chunks: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.texts.get(0, "")


class Probe:
    """What a case has in its hands.

    Args:
        wire: The endpoint.
        model: Its model.
    """

    def __init__(self, wire: Wire, model: str) -> None:
        self.wire = wire
        self.model = model
        self.seen: dict[str, Any] = {}
        self.notes: dict[str, str] = {}

    def see(self, **facts: Any) -> None:
        """Note facts that another endpoint should show as well."""
        self.seen.update(facts)

    async def get(self, path: str) -> Reply:
        return self._noted(await self.wire.ask("GET", path))

    async def post(
        self,
        path: str,
        body: Mapping[str, Any] | bytes,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self._noted(await self.wire.ask("POST", path, raw, headers=headers))

    def _noted(self, reply: Reply) -> Reply:
        for name in _ROUTES:
            if name in reply.headers:
                self.notes[name] = reply.headers[name]
        check(not reply.broke, reply.broke)
        return reply

    # -- generation ------------------------------------------------------------------------------

    def asked(self, *, chat: bool, **fields: Any) -> tuple[str, dict[str, Any]]:
        """Path and body of a greedy request; `fields` win."""
        body: dict[str, Any] = {"model": self.model, "temperature": 0, **fields}
        if not {"max_tokens", "max_completion_tokens"} & body.keys():
            body["max_tokens"] = 12
        if chat:
            body.setdefault("messages", [{"role": "user", "content": LONG}])
        else:
            body.setdefault("prompt", LONG)
        body = {name: value for name, value in body.items() if value is not ...}
        return ("/v1/chat/completions" if chat else "/v1/completions"), body

    async def whole(self, *, chat: bool = True, **fields: Any) -> Told:
        """Generate; the answer in one piece."""
        path, body = self.asked(chat=chat, **fields)
        answer = self.offered(await self.post(path, body))
        return read_answer(answer, chat=chat)

    async def stream(self, *, chat: bool = True, **fields: Any) -> Told:
        """Generate, streamed, with usage unless `stream_options` says otherwise."""
        path, body = self._streamed(chat=chat, **fields)
        return self._read_stream(await self.post(path, body), chat=chat)

    async def stream_through_keyhole(
        self, *, chat: bool = True, pause_s: float = 0.0, **fields: Any
    ) -> Told:
        """The same over a connection that cuts everything (`keyhole`)."""
        path, body = self._streamed(chat=chat, **fields)
        raw = json.dumps(body).encode()
        over = threading.Event()
        try:
            reply = await asyncio.to_thread(
                ask_through_keyhole, self.wire, path, raw, over=over, pause_s=pause_s
            )
        finally:
            over.set()
        return self._read_stream(self._noted(reply), chat=chat)

    def _streamed(self, *, chat: bool, **fields: Any) -> tuple[str, dict[str, Any]]:
        fields = {"stream": True, "stream_options": {"include_usage": True}, **fields}
        return self.asked(chat=chat, **fields)

    def _read_stream(self, reply: Reply, *, chat: bool) -> Told:
        if reply.status != OK:
            self.offered(reply)
        kind = reply.headers.get("content-type", "")
        check(kind.startswith("text/event-stream"), f"content-type of a stream is {kind!r}")
        return read_stream(reply.pieces, chat=chat)

    def offered(self, reply: Reply) -> dict[str, Any]:
        """The JSON object of an answer with status 200.

        Raises:
            NotOffered: The endpoint says that it has not got this.
            Fails: Any other status, or no JSON object.
        """
        if reply.status in _NO_ROUTE:
            raise NotOffered(f"status {reply.status}: {short(reply.body)}")
        if reply.status != OK:
            message = message_of(reply)
            if reply.status < SERVER_ERROR and any(mark in message for mark in NOT_SUPPORTED):
                raise NotOffered(f"status {reply.status}: {message[:200]}")
            raise Fails(f"status {reply.status}: {short(reply.body)}")
        if not isinstance(reply.data, dict):
            raise Fails(f"the answer is no JSON object: {short(reply.body)}")
        return reply.data

    def refused(self, reply: Reply, *statuses: int) -> dict[str, Any]:
        """The `error` object of an answer that must be one of these statuses."""
        self.see(status=reply.status)
        wanted = " or ".join(map(str, statuses))
        check(reply.status in statuses, f"status {reply.status}, not {wanted}: {short(reply.body)}")
        error = reply.data.get("error") if isinstance(reply.data, dict) else None
        if not isinstance(error, dict):
            raise Fails(f"no `error` object in the answer: {short(reply.body)}")
        check(isinstance(error.get("message"), str) and error["message"], "error.message is empty")
        check(isinstance(error.get("type"), str), f"error.type is {error.get('type')!r}")
        missing = {"param", "code"} - error.keys()
        check(not missing, f"error lacks {', '.join(sorted(missing))}")
        self.see(type=error["type"], code=error["code"])
        return error


def read_answer(answer: dict[str, Any], *, chat: bool) -> Told:
    """A whole answer, with the shape that every one has."""
    told = Told(usage=answer.get("usage"), chunks=[answer])
    kind = "chat.completion" if chat else "text_completion"
    check(answer.get("object") == kind, f"object is {answer.get('object')!r}, not {kind!r}")
    check(isinstance(answer.get("id"), str) and answer["id"], f"id is {answer.get('id')!r}")
    check(isinstance(answer.get("created"), int), f"created is {answer.get('created')!r}")
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices:
        raise Fails(f"choices is {choices!r}")
    for choice in choices:
        part = choice.get("message") if chat else choice
        check(isinstance(part, dict), f"a choice without its message: {choice!r:.200}")
        if chat:
            check(part.get("role") == "assistant", f"role is {part.get('role')!r}")
        told.texts[choice.get("index")] = part.get("content" if chat else "text") or ""
        told.reasons[choice.get("index")] = choice.get("finish_reason")
    return told


def read_stream(pieces: Sequence[bytes], *, chat: bool) -> Told:
    """A streamed answer in the pieces that came, held to what is said of every stream."""
    reader = SseReader()
    body = b"".join(pieces)
    told = Told(body=body)
    ids, kind = set(), "chat.completion.chunk" if chat else "text_completion"
    try:
        events = [event for piece in pieces for event in reader.feed(piece)]
    except UnicodeDecodeError as exc:
        raise Fails(f"the stream is not UTF-8: {exc.reason} at byte {exc.start}") from exc
    check(not reader.stray, f"a line that no event stream has: {reader.stray[:1]!r:.120}")
    for event in events:
        check(not told.done, "an event after [DONE]")
        if event == "[DONE]":
            told.done = True
            continue
        try:
            chunk = json.loads(event)
        except ValueError as exc:
            raise Fails(f"an event that is no JSON: {event[:120]!r}") from exc
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
            raise Fails(f"an event that is no chunk: {event[:160]!r}")
        check(chunk.get("object") == kind, f"object of a chunk is {chunk.get('object')!r}")
        ids.add(chunk.get("id"))
        told.chunks.append(chunk)
        if chunk.get("usage") is not None and not chunk["choices"]:
            check(told.usage is None, "usage comes twice")
            told.usage = chunk["usage"]
        for choice in chunk["choices"]:
            _take(told, choice, chat=chat)
    check(told.done, f"the stream ends without [DONE]: …{short(body[-80:])}")
    check(not reader.close(), f"bytes behind the last event: {reader.close()!r:.80}")
    check(len(ids) == 1, f"{len(ids)} ids in one stream")
    check(None not in told.reasons.values(), "a choice without a finish_reason")
    check(told.reasons, "no finish_reason")
    return told


def _take(told: Told, choice: dict[str, Any], *, chat: bool) -> None:
    index = choice.get("index", 0)
    part = choice.get("delta") if chat else choice
    if not isinstance(part, dict):
        raise Fails(f"a choice of a chunk without its delta: {choice!r:.160}")
    text = part.get("content" if chat else "text") or ""
    check(not (text and index in told.reasons), "text after the finish_reason")
    told.texts[index] = told.texts.get(index, "") + text
    if (reason := choice.get("finish_reason")) is not None:
        check(index not in told.reasons, "finish_reason comes twice")
        told.reasons[index] = reason


def message_of(reply: Reply) -> str:
    """The error's message; empty where there is none."""
    error = reply.data.get("error") if isinstance(reply.data, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""


def short(body: bytes) -> str:
    """The beginning of a body, for a person."""
    return body[:160].decode(errors="replace").replace("\n", " ")
