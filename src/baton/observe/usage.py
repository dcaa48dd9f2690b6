"""What engines say of tokens: `usage` at the end of an answer, in OpenAI's or Anthropic's words."""

from __future__ import annotations

import re

# A quote inside a JSON string is escaped, so these bytes are a key wherever they stand. Nested
# details (`prompt_tokens_details`, `output_tokens_details`) have other names.
_KEY = b'"usage":'
_TOKENS = re.compile(rb'"(prompt|input|completion|output)_tokens": ?([0-9]{1,12})')
# Anthropic's `input_tokens` leave out what a cache had.
_CACHED = re.compile(rb'"cache_(?:read|creation)_input_tokens": ?([0-9]{1,12})')
_PROMPT = (b"prompt", b"input")
_REACH = 1024
"""So many bytes behind `usage` hold all of it."""


def usage_in(answer: bytes) -> tuple[int | None, int | None]:
    """Tokens of prompt and answer, where the last `usage` in these bytes says them."""
    at = answer.rfind(_KEY)
    if at < 0:
        return None, None
    prompt = completion = None
    for kind, number in _TOKENS.findall(answer, at, at + _REACH):
        if kind in _PROMPT:
            prompt = int(number) if prompt is None else prompt
        else:
            completion = int(number) if completion is None else completion
    if prompt is not None:
        prompt += sum(map(int, _CACHED.findall(answer, at, at + _REACH)))
    return prompt, completion
