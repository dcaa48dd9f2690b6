"""Tokens, text, and the next token: what stands in for a model.

Tokens are the bytes of the text (ids 0 to 255) plus `<s>` and `</s>`, as in the tiny model that
real engines serve in tests. So prompt lengths and usage agree between the two.

The next token is a function of all tokens before it and of nothing else. What an engine knows of
them, its "KV cache", is a `Context`: a running fingerprint and the length. A context can be handed
over and continued; a wrong one gives other words. The words come from a small vocabulary spelled
byte by byte, some with characters of two to four bytes, so that characters fall across tokens as
they do with real models.
"""

from __future__ import annotations

import codecs
import re
import sys
from array import array
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BOS_ID = 256
EOS_ID = 257
VOCAB_SIZE = 512
_SPECIAL_IDS = {"<s>": BOS_ID, "</s>": EOS_ID}
_SPECIAL_TEXTS = {token: text for text, token in _SPECIAL_IDS.items()}
_SPECIAL_PATTERN = re.compile("(</?s>)")

# The fingerprint reads the tokens as digits of a number in base 2^16, modulo a prime of 127 bits.
# It composes (the tail of a prompt continues the fingerprint of its head), and Python computes it
# in C for whole prompts. The prime is nothing special: modulo 2^127 - 1, swapping two tokens 127
# places apart would go unseen.
_BASE_BITS = 16
_PRIME = 0x5A17C3E9D24B8F10A6C39D57E2F48135
_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio, the usual mixer

_WORDS = """
a and are as at be by café can come day do each even far find for from give go good great hand have
here house how if in into it its jalapeño know large last left letter light line little long made
make many may more most much must naïve name near new night no not now of old on one open or other
our out over own page part people piñata place point read right river road same say sea see set she
should side small so some sound stand still stone sun take than that the their them then there they
thing this time to turn two under up us use very voilà walk wall was water way we well were what
when where which while who will wind with word work world would year you your Zürich — … 東京 ∞ 🎈
🙂
"""
_SPACE = 0x20
_SENTENCE_TOKENS = 35
"""About how long sentences are in this vocabulary. An answer that ends, ends with one."""


def _spell(words: Iterable[str]) -> dict[bytes, bytes]:
    """For each beginning of a word, the bytes that may come next."""
    following: dict[bytes, bytes] = {}
    for word in words:
        spelled = word.encode()
        for place in range(len(spelled)):
            head = spelled[:place]
            following[head] = following.get(head, b"") + spelled[place : place + 1]
        following[spelled] = following.get(spelled, b"") + b"    ,."
        following[spelled + b","] = following[spelled + b"."] = b" "
    return following


_FOLLOWING = _spell(_WORDS.split())


class Context(NamedTuple):
    """What an engine knows of the tokens it has read: its KV cache.

    `fingerprint` covers all of them, `length` counts them, `tail` is the word that they end in.
    """

    fingerprint: int = 0
    length: int = 0
    tail: bytes = b""

    def read(self, tokens: Sequence[int]) -> Context:
        """The context after these tokens as well."""
        digits = array("H", tokens)
        if sys.byteorder == "little":
            digits.byteswap()
        shift = pow(2, _BASE_BITS * len(tokens), _PRIME)
        number = int.from_bytes(digits.tobytes(), "big")
        return Context(
            (self.fingerprint * shift + number) % _PRIME,
            self.length + len(tokens),
            _tail_after(self.tail, tokens),
        )

    def spoiled(self, reason: str) -> Context:
        """What is read from blocks that hold something else: as long, and wrong."""
        return Context(self.read(list(reason.encode())).fingerprint, self.length, self.tail)


def _tail_after(tail: bytes, tokens: Sequence[int]) -> bytes:
    longest = 32  # no word is longer, and what is no word needs no more to be told from one
    for token in tokens[-longest:]:
        tail = tail + bytes((token,)) if _SPACE < token < BOS_ID else b""
    return tail[-longest:]


class Writer:
    """Writes tokens, one after another, from a context.

    Args:
        context: Everything that was read before.
        answer_tokens: About how many tokens an answer has before it ends by itself; 0 for never.
    """

    __slots__ = ("_answer_tokens", "_fingerprint", "_length", "_tail")

    def __init__(self, context: Context, *, answer_tokens: int = 0) -> None:
        self._fingerprint, self._length, self._tail = context
        self._answer_tokens = answer_tokens

    def next_token(self, *, may_end: bool = True) -> int:
        fingerprint = self._fingerprint
        mixed = ((fingerprint ^ (fingerprint >> 61) ^ self._length) & _MASK) * _MIX & _MASK
        mixed = (mixed ^ (mixed >> 29)) * _MIX & _MASK
        tail = self._tail
        options = _FOLLOWING.get(tail, b" ")
        token = options[(mixed >> 33) % len(options)]
        if (
            self._answer_tokens
            and may_end
            and tail.endswith(b".")
            and mixed % self._answer_tokens < _SENTENCE_TOKENS
        ):
            token = EOS_ID
        self._fingerprint = ((fingerprint << _BASE_BITS) + token) % _PRIME
        self._length += 1
        self._tail = tail + bytes((token,)) if _SPACE < token < BOS_ID else b""
        return token


class Detokenizer:
    """Turns tokens into text as they come; a character that is not whole yet gives no text."""

    __slots__ = ("_decode",)

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def feed(self, token: int) -> str:
        return self._decode(bytes((token,))) if token < BOS_ID else ""


def encode(text: str) -> list[int]:
    """The tokens of a text. Raises UnicodeEncodeError for half a surrogate pair."""
    if "<s>" not in text and "</s>" not in text:
        return list(text.encode())
    tokens: list[int] = []
    for part in _SPECIAL_PATTERN.split(text):
        special = _SPECIAL_IDS.get(part)
        tokens += list(part.encode()) if special is None else [special]
    return tokens


def decode(tokens: Iterable[int], *, skip_special: bool = False) -> str:
    """The text of tokens; ids that stand for nothing give nothing."""
    spelled = bytearray()
    for token in tokens:
        if token < BOS_ID:
            spelled.append(token)
        elif not skip_special:
            spelled += _SPECIAL_TEXTS.get(token, "").encode()
    return spelled.decode(errors="replace")


def signs(tokens: Iterable[int]) -> list[str]:
    """Tokens as byte-level tokenizers spell them: printable Latin-1 as it is, the rest above it."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    odd = [byte for byte in range(BOS_ID) if byte not in plain]
    return [
        _SPECIAL_TEXTS.get(token, "")
        if token >= BOS_ID
        else chr(token if token in plain else 0x100 + odd.index(token))
        for token in tokens
    ]
