"""Which engines have computed the beginning of a prompt: what routing by prefix goes by.

An engine's prefix cache is keyed by blocks of token ids, each hash built on the one before, with
`cache_salt` in the first (vLLM 0.29, `v1/core/kv_cache_utils.py`). The gateway has no tokens, and
asking for them would cost a round trip. But what an engine's cache shares, equal bytes of the
request share: so a prompt's beginning is written out in the order in which templates render it
(model, salt, tools, then the messages) and hashed at fixed lengths, each hash built on the one
before. Bytes that differ where the rendered prompt does not only cost a cache hit. Equal bytes are
never another prompt, and if they were, an engine would be chosen less well: it looks into its own
cache by its own tokens.

The lengths grow: four to each doubling, from 1 KiB (about 256 tokens; less is not worth a detour)
to 64 KiB. A prompt has 25 keys at most, however long it is, and what is shared is known to a fifth.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.gateway.ask import Ask
    from baton.gateway.request_body import Body
    from baton.spec.lease import EngineLease

SHORTEST = 1024
LONGEST = 64 * 1024
LENGTHS = (
    *(octave * part // 4 for octave in (SHORTEST << n for n in range(6)) for part in (4, 5, 6, 7)),
    LONGEST,
)
"""Bytes of a prompt that are looked at together."""
KEPT_KEYS = 128 * 1024
"""Of all prompts together; `bench/results/routing.json` has what that takes."""
KEPT_HOLDERS = 4
"""Of one key: more engines need not be known to hold what many prompts begin with."""

# What templates render before the conversation, or what keeps caches apart.
_HEAD = (
    "model", "cache_salt", "add_special_tokens", "chat_template", "chat_template_kwargs",
    "reasoning_effort", "tools", "documents", "instructions", "system",
)  # fmt: skip
_PROMPT = ("messages", "prompt", "input")

_UNREADABLE = frozenset({"media", "prompt_embeds", "engine_state"})
"""Why a request goes to decode alone, and its prompt is not what its text says (`eligibility`)."""

_encode = msgspec.json.Encoder().encode

Holder = tuple[str, str]
"""`replica_id` and `engine_id`: an engine that was started again has an empty cache."""


class Prompt:
    """The beginning of one request's prompt. Nothing is computed until its keys are asked for."""

    __slots__ = ("_body", "_keys", "_size", "home")

    def __init__(self, body: Body) -> None:
        self._body = body
        self._keys: tuple[int, ...] | None = None
        self._size = 0
        self.home = 0
        """A number for the first kilobyte, the same in every process. Set once keys were asked."""

    @property
    def asked(self) -> bool:
        """Whether anybody wanted the keys: nobody does where there is no choice."""
        return self._keys is not None

    @property
    def keys(self) -> tuple[int, ...]:
        """A key for each of `LENGTHS` that the prompt reaches, shortest first."""
        if self._keys is None:
            data = beginning_of(self._body)
            self._size = len(data)
            self._keys = keys_of(data)
            self.home = zlib.crc32(data[:SHORTEST])
        return self._keys

    def share(self, count: int) -> float:
        """What part of the beginning the first `count` keys cover, from 0 to 1."""
        return LENGTHS[count - 1] / self._size if self._size and count else 0.0


def prompt_of(ask: Ask) -> Prompt | None:
    """What a request will have read, where its beginning can be known from its text.

    Not with media: writing out an image's megabytes of letters is no way to save its prefill.
    """
    if ask.body is None or ask.route.kind != "pd" or ask.why_alone in _UNREADABLE:
        return None
    return Prompt(ask.body)


def keys_of(data: bytes) -> tuple[int, ...]:
    """Chained hashes: equal keys at one place mean equal bytes up to there.

    Python's own hash, which is keyed by a secret of the process: four times as fast as BLAKE2, and
    nobody can make two prompts meet. Keys mean nothing in another process.
    """
    keys: list[int] = []
    key = start = 0
    for end in LENGTHS:
        if end > len(data):
            break
        key = hash((key, data[start:end]))
        keys.append(key)
        start = end
    return tuple(keys)


def beginning_of(body: Body) -> bytes:
    """At most `LONGEST` bytes of the request, in the order of its prompt.

    A conversation's beginning stays the same when messages are added to it.
    """
    data = _encode({name: body[name] for name in _HEAD if body.get(name) is not None})
    for name in _PROMPT:
        value = body.get(name)
        if value is not None:
            left = max(0, LONGEST - len(data))
            return (data + name.encode() + _beginning(value, left))[:LONGEST]
    return data[:LONGEST]


def _beginning(value: Any, left: int) -> bytes:
    if isinstance(value, str):
        return value[:left].encode()
    if not isinstance(value, list) or not value:
        return _encode(value)
    first = value[0]
    if isinstance(first, int):
        # Token ids, at least a digit and a comma each; the comma in the place of the bracket
        # keeps 1 from being the beginning of 12.
        return _encode(value[: left // 2 + 1])[:-1] + b","
    if not isinstance(first, dict):
        return _beginning(first, left)  # several prompts: they go to one engine, whole
    parts: list[bytes] = []
    for message in value:
        part = _encode(_clipped(message, left))
        parts.append(part)
        left -= len(part)
        if left <= 0:
            break
    return b"".join(parts)


def _clipped(message: Any, left: int) -> Any:
    """A message without text that will not be looked at, so that a long one costs no more."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str) and len(content) > left:
        return {**message, "content": content[:left]}
    return message


class PrefixIndex:
    """Remembers who has computed what, and forgets what was not seen for the longest time.

    That an engine has evicted a prefix meanwhile is not known here: it is chosen in vain then, and
    computes what any other engine would have had to compute.

    Args:
        size: Keys to keep.
    """

    def __init__(self, size: int = KEPT_KEYS) -> None:
        self._size = size
        self._holders: OrderedDict[int, tuple[Holder, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def learn(self, keys: Sequence[int], engine: EngineLease) -> None:
        """The engine has computed, or been handed, the KV of a prompt with these keys."""
        holder = (engine.replica_id, engine.engine_id)
        table = self._holders
        # The shortest last: it is shared by the most, and must be the last to be forgotten.
        for key in reversed(keys):
            known = table.get(key, ())
            if not known or known[0] != holder:
                others = (other for other in known if other[0] != holder[0])
                table[key] = (holder, *others)[:KEPT_HOLDERS]
            table.move_to_end(key)
        while len(table) > self._size:
            table.popitem(last=False)

    def holders(self, keys: Sequence[int]) -> Iterator[tuple[int, tuple[Holder, ...]]]:
        """Who holds how many of the keys: the most first, and of those the latest first."""
        for count in range(len(keys), 0, -1):
            found = self._holders.get(keys[count - 1])
            if found is not None:
                yield count, found
