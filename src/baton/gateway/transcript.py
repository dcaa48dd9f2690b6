"""What a stream has said so far: enough to go on with it elsewhere, at next to no cost a chunk.

A chunk costs one search for token ids, which are put away and taken out of what the caller gets,
and one append. JSON is parsed only when a stream has to be resumed, or when much has come
together: then the text is folded out of the events and the events are dropped.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

# vLLM 0.29 serializes choices without spaces. Inside a JSON string a quote is escaped, so these
# bytes are a key wherever they stand.
_ONE_IDS = b'"token_ids":['
_PROMPT_IDS = b'"prompt_token_ids":['
_IDS_ARE_MADE_OF = b"0123456789,"
_NEWLINE = 10
_END = b"]}]}\n\n"
_END_SIZE = len(_END)
_NO_IDS = b"null}]}\n\n"
_TEXTS = (b'"choices":[{"index":0,"delta":{"content":"', b'"choices":[{"index":0,"text":"')
# What stands behind the text of a chunk in the middle, once its ids are taken out.
_TEXT_ENDS = (
    b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n',
    (
        b'","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,'
        b'"token_ids":null}]}\n\n'
    ),
)
_EMPTY_DELTA = b'"delta":{},'
_NOT_FINISHED = b'"finish_reason":null'
_DATA = b"data: "
FOLD_BYTES = 256 * 1024
TAIL_EVENTS = 256
"""How far back the place may be from which another engine goes on: stop strings are shorter."""

Channel = tuple[Any, ...]
Said = dict[Channel, str]


class Diverged(Exception):
    """Another engine does not repeat what was sent."""


@dataclass(frozen=True)
class Began:
    """Where an engine began to write.

    Args:
        kept: Tokens of the answer before it.
        chars: Characters that those tokens spell.
    """

    kept: int
    chars: int


class Transcript:
    """Keeps a stream. `feed` takes whole events and returns what the caller gets.

    Args:
        asks_ids: The engine was asked for token ids.
        shows_ids: The caller asked for them, too.
    """

    __slots__ = (
        "_asks_ids", "_folded", "_ids", "_mold", "_pending", "_pending_size", "_prompt",
        "_shows_ids", "began", "count", "first", "tail",
    )  # fmt: skip

    def __init__(self, *, asks_ids: bool, shows_ids: bool) -> None:
        self._asks_ids = asks_ids
        self._shows_ids = shows_ids
        self._prompt = b""
        self._mold = b""
        self._ids: list[bytes] = []
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._folded: dict[Channel, list[str]] = {}
        self.first = b""
        """The first event: its id, time and model are those of the whole stream."""
        self.count = 0
        """Events so far."""
        self.tail: deque[bytes] = deque(maxlen=TAIL_EVENTS)
        """The last events of the engine that writes now, with their token ids."""
        self.began = Began(0, 0)
        """Where that engine began."""

    def plain(self, event: bytes) -> bytes | None:
        """`feed` for one event that is made as the one before it was, and None for all else.

        Nearly all events of a stream are: the same bytes up to the text, one token id at the end. A
        line's end inside JSON is escaped, so an event without one up to its end is one event, and
        neither an error's nor the last.
        """
        mold = self._mold
        size = len(event)
        if not mold or not event.startswith(mold) or event.find(b"\n", len(mold)) != size - 2:
            return None
        if self._asks_ids and not self._shows_ids:
            start = event.rfind(_ONE_IDS) + len(_ONE_IDS)
            ids = event[start:-_END_SIZE]
            if not ids.isdigit() or not event.endswith(_END):
                return None
            self._ids.append(ids)
            self.tail.append(event)
            event = event[: start - 1] + _NO_IDS
        elif self._asks_ids or event[-1] != _NEWLINE:
            return None
        else:
            self.tail.append(event)
        self.count += 1
        self._pending.append(event)
        self._pending_size += size
        if self._pending_size > FOLD_BYTES:
            self._fold()
        return event

    def feed(self, events: bytes) -> bytes:
        """Keep whole events; what the caller gets of them."""
        one = self.plain(events)
        if one is not None:
            return one
        out = []
        for event in events.split(b"\n\n")[:-1]:
            event += b"\n\n"  # noqa: PLW2901
            shown = self.plain(event)
            if shown is None:
                self.keep(event)
                shown = self.show(event)
                self._learn(event)
            out.append(shown)
        return b"".join(out)

    def _learn(self, event: bytes) -> None:
        """What events begin with, up to the text."""
        for key in _TEXTS:
            at = event.find(key)
            if at >= 0 and b"\n" not in event[: at + len(key)]:
                self._mold = event[: at + len(key)]
                return

    def keep(self, event: bytes) -> None:
        """Keep one event as an engine wrote it, with its token ids."""
        if not self.first:
            self.first = event
        self.tail.append(event)
        if self._asks_ids:
            for key, ids, _, _ in _lists_of_ids(event):
                if key == _PROMPT_IDS:
                    self._prompt = ids
                elif ids:
                    self._ids.append(ids)

    def show(self, event: bytes) -> bytes:
        """What the caller gets of an event; it counts as said."""
        if self._asks_ids and not self._shows_ids:
            lists = _lists_of_ids(event)
            if lists and _EMPTY_DELTA in event and _NOT_FINISHED in event:
                # vLLM sends these only because ids were asked for (chat_completion/serving.py).
                return b""
            for _, _, start, end in reversed(lists):
                event = event[:start] + b"null" + event[end:]
        self.count += 1
        self._pending.append(event)
        self._pending_size += len(event)
        if self._pending_size > FOLD_BYTES:
            self._fold()
        return event

    @property
    def prompt(self) -> list[int]:
        """Token ids of the prompt; empty when they are not known."""
        return _numbers(self._prompt)

    @property
    def written(self) -> list[int]:
        """Token ids of the answer so far."""
        return _numbers(b",".join(self._ids))

    @property
    def written_count(self) -> int:
        """How many ids the answer has so far."""
        return sum(ids.count(b",") + 1 for ids in self._ids)

    def rewind(self, count: int, chars: int) -> None:
        """Another engine writes what comes after `count` ids, which spell `chars` characters.

        What was said stays said.
        """
        kept = self.written[:count]
        self._ids = [",".join(map(str, kept)).encode()] if kept else []
        self.tail.clear()
        self.began = Began(count, chars)

    def said(self) -> Said:
        """Everything sent so far, by channel: `(0, "content")`, `(0, "tool_calls", 1, …)`."""
        self._fold()
        return {channel: "".join(parts) for channel, parts in self._folded.items()}

    def _fold(self) -> None:
        """Keep the text of what is pending and drop the rest."""
        alike: list[bytes] = []
        for event in self._pending:
            text = _cut_out(event, self._mold)
            if text is not None:
                alike.append(event)
                continue
            self._fold_alike(alike)
            alike = []
            self._fold_one(event)
        self._fold_alike(alike)
        for channel, parts in self._folded.items():
            self._folded[channel] = ["".join(parts)]
        self._pending.clear()
        self._pending_size = 0

    def _fold_one(self, event: bytes) -> None:
        document = parse_event(event)
        if document is not None:
            for channel, text, _ in pieces(document):
                self._folded.setdefault(channel, []).append(text)

    def _fold_alike(self, events: list[bytes]) -> None:
        """Fold events that differ by what stands between mold and end, parsed all at once.

        That is text if nothing in it ends the string: then the texts make as many strings as they
        are. Parsing a thousand events one by one takes 5 ms, in which no stream moves.
        """
        cut = [_cut_out(event, self._mold) or b"" for event in events]
        try:
            texts = msgspec.json.decode(b'["' + b'","'.join(cut) + b'"]', type=list[str])
        except (msgspec.DecodeError, UnicodeError):
            texts = []
        if len(texts) == len(events):
            channel = (0, "content" if self._mold.endswith(_TEXTS[0]) else "text")
            self._folded.setdefault(channel, []).extend(texts)
            return
        for event in events:
            self._fold_one(event)


def _cut_out(event: bytes, mold: bytes) -> bytes | None:
    """What stands between the mold and the end of an event of plain text; None for any other."""
    end = _TEXT_ENDS[0] if mold.endswith(_TEXTS[0]) else _TEXT_ENDS[1]
    if mold and event.startswith(mold) and event.endswith(end) and len(event) >= len(mold + end):
        return event[len(mold) : -len(end)]
    return None


def _lists_of_ids(event: bytes) -> list[tuple[bytes, bytes, int, int]]:
    """The lists of token ids in an event: key, what is between the brackets, begin and end."""
    found = []
    for key in (_PROMPT_IDS, _ONE_IDS):
        at = event.find(key)
        while at >= 0:
            start = at + len(key)
            end = event.find(b"]", start)
            ids = event[start:end]
            if end >= 0 and not ids.strip(_IDS_ARE_MADE_OF):
                found.append((key, ids, start - 1, end + 1))
            at = event.find(key, start)
    return sorted(found, key=_by_place)


def _by_place(one: tuple[bytes, bytes, int, int]) -> int:
    return one[2]


def _numbers(raw: bytes) -> list[int]:
    return [int(number) for number in raw.split(b",")] if raw else []


def parse_event(event: bytes) -> dict[str, Any] | None:
    """The JSON object of an event; None for comments, `[DONE]` and what is none."""
    at = event.find(_DATA)
    if at < 0 or event.startswith(b"data: [DONE]"):
        return None
    try:
        document = msgspec.json.decode(event[at + len(_DATA) :].strip())
    except (msgspec.DecodeError, UnicodeError):
        return None
    return document if isinstance(document, dict) else None


def write_event(document: dict[str, Any]) -> bytes:
    return _DATA + msgspec.json.encode(document) + b"\n\n"


def pieces(document: dict[str, Any]) -> Iterator[tuple[Channel, str, dict[str, Any]]]:
    """Every piece of text in a chunk: its channel, the text, and the object that holds it.

    The last part of a channel is the key in that object.
    """
    for choice in document.get("choices") or ():
        index = choice.get("index", 0)
        if isinstance(choice.get("text"), str):
            yield (index, "text"), choice["text"], choice
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            continue
        for key, value in delta.items():
            if isinstance(value, str) and key != "role":
                yield (index, key), value, delta
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            for key in ("name", "arguments"):
                if isinstance(function.get(key), str):
                    yield (index, "tool_calls", call.get("index", 0), key), function[key], function


class Replay:
    """Lets through what another engine writes beyond what was sent, and checks the rest.

    Args:
        said: What was sent, by channel.
    """

    def __init__(self, said: Said) -> None:
        self._said = said
        self._at = dict.fromkeys(said, 0)

    @property
    def caught_up(self) -> bool:
        """Whether everything that was sent has been repeated."""
        return all(self._at[channel] == len(text) for channel, text in self._said.items())

    def new_in(self, document: dict[str, Any]) -> dict[str, Any] | None:
        """The chunk without what was sent before; None when nothing is new in it.

        Raises:
            Diverged: It says something else than was sent.
        """
        fresh = False
        for channel, text, holder in pieces(document):
            at = self._at.get(channel, 0)
            left = self._said.get(channel, "")[at:]
            if not text.startswith(left) and not left.startswith(text):
                raise Diverged(f"{channel[-1]} differs after {at} characters")
            if channel in self._at:
                self._at[channel] = min(at + len(text), len(self._said[channel]))
            holder[channel[-1]] = text[len(left) :]
            fresh = fresh or bool(holder[channel[-1]])
        choices = document.get("choices") or ()
        if not choices:
            return document  # the usage
        self._forget_announced_calls(choices)
        finished = any(choice.get("finish_reason") is not None for choice in choices)
        if finished and not self.caught_up:
            raise Diverged("it ends before it has said all that was sent")
        return document if fresh or finished else None

    def _forget_announced_calls(self, choices: Any) -> None:
        """A tool call that the caller knows keeps the id that he has; clients join what comes."""
        for choice in choices:
            for call in (choice.get("delta") or {}).get("tool_calls") or ():
                channel = (choice.get("index", 0), "tool_calls", call.get("index", 0), "name")
                if channel in self._said:
                    call.pop("id", None)
                    call.pop("type", None)
                    call.get("function", {}).pop("name", None)
