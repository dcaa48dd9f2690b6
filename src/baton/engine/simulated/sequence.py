"""One answer in the making: tokens in, text and the reason to end out.

Follows vLLM's incremental detokenizer (0.29, vllm/v1/engine/detokenizer.py): while stop strings
are wanted, as much text is held back as could still turn into one; the text of a stop string is cut
off; characters come when their last byte has come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from baton.engine.simulated.text import EOS_ID, Detokenizer, Writer

if TYPE_CHECKING:
    from baton.engine.simulated.text import Context


@dataclass(frozen=True)
class Sampling:
    """What of a request decides where its answer ends."""

    max_tokens: int
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False


class Step(NamedTuple):
    """What one token gave."""

    token: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Sequence:
    """Writes one answer, step by step, until a step has a `finish_reason`."""

    def __init__(self, context: Context, sampling: Sampling, *, answer_tokens: int = 0) -> None:
        self._writer = Writer(context, answer_tokens=answer_tokens)
        self._sampling = sampling
        self._feed = Detokenizer().feed
        self._written = 0
        # Text is kept only where stop strings have to be looked for.
        self._text = ""
        self._told = 0
        keeps_all = sampling.include_stop_str_in_output or not sampling.stop
        self._held_back = 0 if keeps_all else max(map(len, sampling.stop)) - 1

    def step(self) -> Step:
        sampling = self._sampling
        self._written += 1
        # vLLM masks what ends an answer until so many tokens are there (0.29,
        # v1/sample/logits_processor/builtin.py): the next one may be an end.
        early = self._written <= sampling.min_tokens
        token = self._writer.next_token(may_end=not (early or sampling.ignore_eos))
        ended = token == EOS_ID or (not early and token in sampling.stop_token_ids)
        if ended:
            stop_reason = None if token == EOS_ID else token
            kept = token != EOS_ID and sampling.include_stop_str_in_output
            text = self._feed(token) if kept else ""
            return Step(token, self._told_at_end(text), "stop", stop_reason)
        text = self._feed(token)
        if sampling.stop:
            return self._watch(token, text)
        return Step(token, text, "length" if self._written == sampling.max_tokens else None)

    def _watch(self, token: int, text: str) -> Step:
        self._text += text
        found = self._find_stop(len(text)) if self._written > self._sampling.min_tokens else None
        if found is not None:
            stop, place = found
            end = place + len(stop) if self._sampling.include_stop_str_in_output else place
            self._text = self._text[:end]
            return Step(token, self._told_at_end(""), "stop", stop)
        if self._written == self._sampling.max_tokens:
            return Step(token, self._told_at_end(""), "length")
        return Step(token, self._tell(len(self._text) - self._held_back))

    def _find_stop(self, new: int) -> tuple[str, int] | None:
        """The stop string that ends first in the text that is new, and where it begins."""
        best: tuple[int, str, int] | None = None
        for stop in self._sampling.stop:
            place = self._text.find(stop, max(0, len(self._text) - new - len(stop) + 1))
            if place >= 0 and (best is None or place + len(stop) < best[0]):
                best = (place + len(stop), stop, place)
        return None if best is None or not new else best[1:]

    def _told_at_end(self, text: str) -> str:
        if not self._sampling.stop:
            return text
        self._text += text
        return self._tell(len(self._text))

    def _tell(self, end: int) -> str:
        if end <= self._told:
            return ""
        told, self._told = self._text[self._told : end], end
        return told
