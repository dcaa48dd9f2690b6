"""Says of the prompt what prefill said of it, where decode's `usage` would say something else.

vLLM counts KV that an engine was handed as cached (0.29, v1/core/sched/scheduler.py,
`num_external_cached_tokens`), so an answer through both phases would call its whole prompt cached,
whoever sent it. What the cache really had is in the answer of the prefill leg. Engines tell it with
`--enable-prompt-tokens-details`, and in `/v1/responses` always.

| route                   | where decode says it           | where it stands                     |
| ----------------------- | ------------------------------ | ----------------------------------- |
| chat completions,       | `prompt_tokens_details`        | in a whole answer's usage, and in a |
| completions             |                                | stream's last chunk with usage      |
| responses               | `input_tokens_details`         | in a whole answer's usage, and in   |
|                         |                                | the stream's last event             |
| messages                | `input_tokens` (less what was  | in a whole answer's usage, and in   |
|                         | cached) and `cache_…_tokens`   | the stream's `message_delta`        |

Only bytes that hold the key are touched, and of these only its value: the rest of an answer is as
decode wrote it. A quote inside a JSON string is escaped, so the bytes of a key are one wherever
they stand; that a caller's own objects (the schema of a tool) hold the same key is why the last one
counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from baton.gateway.routes import Dialect

_KEYS: dict[Dialect, bytes] = {
    "openai": b',"prompt_tokens_details":{',
    "responses": b'"input_tokens_details":{',
    "anthropic": b'"usage":{"input_tokens":',
}
_VALUES: dict[Dialect, re.Pattern[bytes]] = {
    "openai": re.compile(rb',"prompt_tokens_details":\{[^{}]*\}'),
    "responses": re.compile(rb'"input_tokens_details":\{[^{}]*\}'),
    # Without a cache's counts (`message_start`) it says how long the prompt is, which is right.
    "anthropic": re.compile(
        rb'"usage":\{"input_tokens":[0-9]+,"output_tokens":([0-9]+)(?:,"cache_[a-z_]+":[0-9]+)+\}'
    ),
}


@dataclass(frozen=True, slots=True)
class PromptUsage:
    """What the prefill leg's `usage` said.

    Args:
        dialect: Whose words they are.
        said: The `usage` object; empty when there was none.
    """

    dialect: Dialect
    said: dict[str, Any]

    @classmethod
    def of(cls, answer: Any, dialect: Dialect) -> PromptUsage:
        """Of a prefill leg's whole answer."""
        usage = answer.get("usage") if isinstance(answer, dict) else None
        return cls(dialect, usage if isinstance(usage, dict) else {})

    @property
    def key(self) -> bytes:
        """Bytes that every event has in which something is to be put right."""
        return _KEYS[self.dialect]

    @property
    def details(self) -> dict[str, Any] | None:
        """`prompt_tokens_details` as a stream has it, without nulls; None when it was not told."""
        details = self.said.get("prompt_tokens_details")
        if not isinstance(details, dict):
            return None
        return {key: value for key, value in details.items() if value is not None}

    def put_into(self, answer: bytes, *, streamed: bool) -> bytes:
        """Decode's answer, whole or some whole events of it, with prefill's figures."""
        at = answer.rfind(self.key)
        found = None if at < 0 else _VALUES[self.dialect].match(answer, at)
        if found is None:
            return answer
        if self.dialect == "openai":
            new = self._openai(streamed=streamed)
        elif self.dialect == "responses":
            details = self.said.get("input_tokens_details", {"cached_tokens": 0})
            new = b'"input_tokens_details":' + msgspec.json.encode(details)
        else:
            new = self._anthropic(found[1])
        return answer[: found.start()] + new + answer[found.end() :]

    def _openai(self, *, streamed: bool) -> bytes:
        details = self.details
        if streamed and details is None:
            return b""
        if not streamed and details is not None:
            details = self.said["prompt_tokens_details"]  # with its nulls
        return b',"prompt_tokens_details":' + msgspec.json.encode(details)

    def _anthropic(self, output_tokens: bytes) -> bytes:
        counts = {
            "input_tokens": self.said.get("input_tokens", 0),
            "output_tokens": int(output_tokens),
            **{
                key: value
                for key in ("cache_creation_input_tokens", "cache_read_input_tokens")
                if (value := self.said.get(key)) is not None
            },
        }
        return b'"usage":' + msgspec.json.encode(counts)
