"""Which beginnings of prompts an engine has read: what vLLM's prefix cache would hold.

It is for `cached_tokens` only (`prompt_tokens_details` of the settings): a prompt takes its time
here however much of it was read before. As in vLLM whole blocks count, the last token of a prompt
never does, and `cache_salt` keeps callers apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Cached(NamedTuple):
    """What vLLM says of a prompt in `prompt_tokens_details`.

    Handed-over KV counts as cached: vLLM 0.29, v1/core/sched/scheduler.py, `PrefillStats.set`.
    """

    tokens: int
    created: int


class Prefixes:
    """The whole blocks that were read, the latest of them.

    Args:
        block_size: Tokens in a block.
        most: So many blocks are remembered.
    """

    def __init__(self, block_size: int, most: int) -> None:
        self._block_size = block_size
        self._most = most
        self._read: dict[int, None] = {}

    def read(self, tokens: Sequence[int], salt: str, *, handed: bool) -> Cached:
        """A prompt is read, here or, when it is `handed` over, elsewhere."""
        names = list(self._names(tokens, salt))
        known = 0
        while known < len(names) and names[known] in self._read:
            known += 1
        cached = min(known, (len(tokens) - 1) // self._block_size) * self._block_size
        if handed:
            # A prompt's last token is computed in any case: of one token nothing is left as cached.
            cached = len(tokens) if len(tokens) > 1 else 0
        for name in names:
            self._read.pop(name, None)
            self._read[name] = None
        while len(self._read) > self._most:
            del self._read[next(iter(self._read))]
        return Cached(cached, max(0, len(names) * self._block_size - cached))

    def _names(self, tokens: Sequence[int], salt: str) -> Iterator[int]:
        """One for each whole block, which stands for everything up to its end."""
        name, size = hash(salt), self._block_size
        for start in range(0, len(tokens) - size + 1, size):
            name = hash((name, *tokens[start : start + size]))
            yield name
