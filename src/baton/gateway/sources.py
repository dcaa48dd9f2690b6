"""The streams that `relay` reads: the first engine's own, and those that go on with it.

Each gives whole events as the caller gets them and keeps the transcript: what an engine wrote and
what the caller gets of it differ by token ids, and in a resumed stream by what was sent before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from baton.errors import LegFailed
from baton.gateway.resumable import held_back
from baton.gateway.sse import EVENT_END, WholeEvents
from baton.gateway.transcript import (
    TAIL_EVENTS,
    Diverged,
    Replay,
    Transcript,
    parse_event,
    write_event,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.gateway.decode import DecodeAnswer
    from baton.gateway.request_body import Body
    from baton.gateway.transcript import Said


class Source(Protocol):
    """What `relay` reads: whole events of one engine, as the caller gets them."""

    @property
    def engine_id(self) -> str:
        """`replica_id` of the engine that writes now."""

    async def next_events(self) -> bytes:
        """More whole events; empty at the proper end.

        Raises:
            LegFailed: The stream broke.
        """

    async def flow(self, taker: Callable[[bytes], bool]) -> None:
        """Have whole events taken as they come, until something else does (`EngineAnswer.flow`)."""

    def plain(self, chunk: bytes) -> bytes | None:
        """What the caller gets of one event like those before it; None for anything else."""

    def digest(self, events: bytes) -> bytes:
        """What the caller gets of whole events.

        Raises:
            LegFailed: They are not what has to follow.
        """

    def close(self) -> None:
        """Done with it."""


@dataclass(frozen=True)
class Place:
    """Where another engine can go on.

    Args:
        kept: Written tokens before it.
        chars: Characters that those tokens spell.
        repeated: What the engine will say that was sent already.
        sure: Whether no character is cut there, whatever the tokenizer.
    """

    kept: int
    chars: int
    repeated: str
    sure: bool


def find_places(transcript: Transcript, body: Body, *, greedy: bool) -> Iterator[Place]:
    """Places after which another engine can go on, the latest first.

    A place is the end of an event whose text was whole there: no character cut by a token, and no
    further on than what was sent, so that a stop string still lies ahead whole. vLLM gives text
    only when its last character is complete, so an event with text and one token ends in a clean
    place; with several tokens, the last of them may have begun another character. The place where
    the engine itself began, were it not the first, is clean as well.

    Args:
        transcript: With its tail.
        body: The caller's request.
        greedy: Whether an engine that repeats a piece repeats it alike.
    """
    back, lags = held_back(body)
    written = [_written_in(parse_event(raw)) for raw in transcript.tail]
    said = "".join(text for (_, key), text in _flat(transcript.said()) if key in _PLAIN)
    began = transcript.began
    whole = len(written) < TAIL_EVENTS
    # An engine that was cut off while it repeated what was sent has not written all that was said.
    end = began.chars + sum(len(one.text) for one in written) if whole else len(said)
    kept, after = len(transcript.written), 0
    for one in reversed(written):
        if not one.plain:
            return  # what came before was no plain text: a parser's state lies in between
        if one.text and one.tokens and after >= back:
            # While text is held back the tokens are ahead of it by that much.
            chars = end - after + (back if lags else 0)
            repeated = said[chars:]
            if not repeated or greedy:
                yield Place(kept, chars, repeated, sure=one.tokens == 1)
        after += len(one.text)
        kept -= one.tokens
    if began.kept and whole:
        repeated = said[began.chars :]
        if not repeated or greedy:
            yield Place(began.kept, began.chars, repeated, sure=True)


_PLAIN = ("text", "content")


def _flat(said: Said) -> Iterator[tuple[tuple[int, str], str]]:
    return ((channel, text) for channel, text in said.items() if len(channel) == 2)  # noqa: PLR2004


class _Written(NamedTuple):
    """What one event of a stream with one choice has written."""

    text: str
    tokens: int
    plain: bool


def _written_in(event: dict[str, Any] | None) -> _Written:
    choices: list[Any] = (event or {}).get("choices") or []
    choice = choices[0] if len(choices) == 1 else {}
    delta = choice.get("delta")
    text = choice.get("text") if delta is None else delta.get("content")
    plain = not (isinstance(delta, dict) and set(delta) - {"content", "role"})
    return _Written(text or "", len(choice.get("token_ids") or ()), plain)


def head_of(transcript: Transcript) -> dict[str, Any]:
    """What every chunk of the stream begins with: its id, kind, time and model."""
    first = parse_event(transcript.first) or {}
    return {key: first[key] for key in ("id", "object", "created", "model") if key in first}


class _OfAnEngine:
    """What an engine's answer says, whole events at a time."""

    __slots__ = ("_answer", "_held", "_key", "_prompt_usage", "_whole")

    def __init__(self, answer: DecodeAnswer) -> None:
        self._answer = answer
        self._prompt_usage = said = answer.prompt_usage
        self._key = None if said is None else said.key
        self._held: bytes | None = answer.held
        self._whole = WholeEvents()

    @property
    def engine_id(self) -> str:
        return self._answer.engine.replica_id

    def close(self) -> None:
        self._answer.close()

    async def flow(self, taker: Callable[[bytes], bool]) -> None:
        if self._held is None and not self._whole.rest():
            await self._answer.flow(taker)

    def plain(self, chunk: bytes) -> bytes | None:  # noqa: ARG002
        return None

    def digest(self, events: bytes) -> bytes:
        # One plain search: all that the chunks of a stream without a transcript cost.
        if self._key is not None and self._key in events and self._prompt_usage is not None:
            return self._prompt_usage.put_into(events, streamed=True)
        return events

    async def next_events(self) -> bytes:
        while events := await self._whole_events():
            shown = self.digest(events)
            if shown:
                return shown
        return b""

    async def _whole_events(self) -> bytes:
        while True:
            chunk = self._held
            if chunk is None:
                chunk = await self._answer.next_chunk()
            else:
                self._held = None
            if not chunk:
                if self._whole.rest():
                    raise LegFailed("truncated", self.engine_id, "half an event")
                return b""
            events = self._whole.feed(chunk)
            if events:
                return events


class FirstHand(_OfAnEngine):
    """The first engine's own stream. With a transcript, token ids are kept and taken out."""

    __slots__ = ("_transcript",)

    def __init__(self, answer: DecodeAnswer, transcript: Transcript | None) -> None:
        super().__init__(answer)
        self._transcript = transcript

    def plain(self, chunk: bytes) -> bytes | None:
        return None if self._transcript is None else self._transcript.plain(chunk)

    def digest(self, events: bytes) -> bytes:
        events = super().digest(events)
        return events if self._transcript is None else self._transcript.feed(events)


class Written:
    """The last events of a stream that had said everything."""

    engine_id = "none"

    def __init__(self, events: list[bytes]) -> None:
        self._left = b"".join(events)

    async def next_events(self) -> bytes:
        left, self._left = self._left, b""
        return left

    async def flow(self, taker: Callable[[bytes], bool]) -> None:
        """Nothing more comes than what is here."""

    def plain(self, chunk: bytes) -> bytes | None:  # noqa: ARG002
        return None

    def digest(self, events: bytes) -> bytes:
        return events

    def close(self) -> None:
        self._left = b""


class Rewritten(_OfAnEngine):
    """Another engine's stream under the first one's name, less what was sent before.

    It keeps the transcript itself: what an engine wrote, and what the caller gets of it, differ.
    """

    def __init__(self, answer: DecodeAnswer, transcript: Transcript, said: Said) -> None:
        super().__init__(answer)
        self._transcript = transcript
        self._head = head_of(transcript)
        self._replay = Replay(said)

    def digest(self, events: bytes) -> bytes:
        events = super().digest(events)
        return b"".join([self._rewrite(event) for event in events.split(EVENT_END)[:-1]])

    def _rewrite(self, event: bytes) -> bytes:
        document = parse_event(event)
        if document is None or "error" in document:
            return event + EVENT_END
        document = {**self._translate(document), **self._head}
        self._transcript.keep(write_event(document))
        try:
            new = self._new_in(document)
        except Diverged as exc:
            raise LegFailed("diverged", self.engine_id, str(exc)) from exc
        return b"" if new is None else self._transcript.show(write_event(new))

    def _translate(self, document: dict[str, Any]) -> dict[str, Any]:
        return document

    def _new_in(self, document: dict[str, Any]) -> dict[str, Any] | None:
        return self._replay.new_in(document)


# What vLLM 0.29 writes around the text of a chunk in the middle of a completion, and of a chat.
_TEXT = b'"choices":[{"index":0,"text":"'
_BEHIND = (
    b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
    b'"token_ids":['
)
_END = b"]}]}\n\n"
_CHAT_TEXT = b'"choices":[{"index":0,"delta":{"content":"'
_CHAT_BEHIND = b'"},"logprobs":null,"finish_reason":null,"token_ids":['


class Continued(Rewritten):
    """The tokens that `/v1/completions` writes behind prompt and answer, as the route's own chunks.

    Most chunks differ from the one before in text and token id only: they are cut out and put
    between the caller's own bytes, without parsing. A quote inside a JSON string is escaped, so
    what begins with one is found where it stands only.

    Args:
        answer: Of `/v1/completions`.
        transcript: Of the stream so far.
        place: Where it goes on.
        chat: Whether the caller reads chat chunks.
    """

    def __init__(
        self, answer: DecodeAnswer, transcript: Transcript, place: Place, *, chat: bool
    ) -> None:
        said = {(0, "content" if chat else "text"): place.repeated} if place.repeated else {}
        super().__init__(answer, transcript, said)
        self._moved = place.kept
        self._chat = chat
        self._caught_up = not said
        # Of the engine's chunks up to the text, once one was seen, and of the caller's.
        self._theirs = b""
        head = write_event({**self._head, "choices": []})
        self._ours = head[: head.index(b'"choices":')] + (_CHAT_TEXT if chat else _TEXT)
        self._behind = _CHAT_BEHIND if chat else _BEHIND

    def plain(self, chunk: bytes) -> bytes | None:
        ours = self._as_ours(chunk)
        return None if ours is None else self._transcript.plain(ours)

    def _as_ours(self, event: bytes) -> bytes | None:
        """The caller's bytes of a chunk that is made as the one before it; None for all else."""
        theirs = self._theirs
        if not theirs or not event.startswith(theirs) or not event.endswith(_END):
            return None
        at = event.find(_BEHIND, len(theirs))
        ids = event[at + len(_BEHIND) : -len(_END)]
        if at < 0 or not ids.isdigit() or not self._caught_up:
            return None
        return b"".join((self._ours, event[len(theirs) : at], self._behind, ids, _END))

    def _rewrite(self, event: bytes) -> bytes:
        ours = self._as_ours(event + EVENT_END)
        if ours is not None:
            return self._transcript.feed(ours)
        if not self._theirs:
            at = event.find(_TEXT)
            self._theirs = event[: at + len(_TEXT)] if at >= 0 else b""
        return super()._rewrite(event)

    def _translate(self, document: dict[str, Any]) -> dict[str, Any]:
        usage = document.get("usage")
        choices = document.get("choices") or ()
        if isinstance(usage, dict):
            # The tokens written before are prompt there and answer here.
            usage["prompt_tokens"] -= self._moved
            usage["completion_tokens"] += self._moved
            _keep_within(usage.get("prompt_tokens_details"), usage["prompt_tokens"])
            if self._chat and choices:
                usage.setdefault("completion_tokens_details", None)
        if self._chat:
            return {**document, "choices": [_as_chat(choice) for choice in choices]}
        for choice in choices:
            if choice.get("prompt_token_ids") is not None:
                choice["prompt_token_ids"] = None  # not the caller's prompt
        return document

    def _new_in(self, document: dict[str, Any]) -> dict[str, Any] | None:
        if self._caught_up:
            return document  # an event without text may still have a token id that is wanted
        new = super()._new_in(document)
        self._caught_up = self._replay.caught_up
        return new


def _keep_within(details: Any, prompt_tokens: int) -> None:
    """No more of a prompt is cached than it has: the rest was answer."""
    if not isinstance(details, dict):
        return
    for key in ("cached_tokens", "created_cache_tokens"):
        if isinstance(details.get(key), int):
            details[key] = min(details[key], prompt_tokens)


def _as_chat(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice of `/v1/completions` as one of `/v1/chat/completions`, keys in vLLM's order."""
    finish_reason = choice.get("finish_reason")
    chat: dict[str, Any] = {
        "index": choice.get("index", 0),
        "delta": {"content": choice.get("text", "")},
        "logprobs": None,
        "finish_reason": finish_reason,
    }
    if finish_reason is not None:
        chat["stop_reason"] = choice.get("stop_reason")
    chat["token_ids"] = choice.get("token_ids")
    return chat
