"""Which requests P/D cannot do right. They go to one decode engine, whole.

The list is data with a reason each. It is asked about the parsed request, never about its text.
Adding a row is always safe; leaving one out can make wrong answers, or kill an engine: a decode
engine that is offered KV for another prompt than its own fails an assertion in its core
(vLLM 0.29, `nixl/pull_scheduler.py`, `pull_worker.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.gateway.request_body import Body

Mode = Literal["auto", "always", "never"]

SHORT_PROMPT = 64
"""In `auto`, prompts under this many tokens are not handed over.

64 is vLLM's own default for when fetching KV cannot pay (`kv_recompute_threshold`,
`nixl/base_scheduler.py`). A token is at least one byte of text, so a text under 64 bytes has
fewer than 64 tokens whatever the tokenizer (a chat template adds a few). Prefilling so few costs
decode about one step; the prefill leg alone costs more.
"""


@dataclass(frozen=True)
class Unfit:
    """A kind of request that P/D cannot do right."""

    name: str
    reason: str
    applies: Callable[[Body], bool]


def _not_one(key: str) -> Callable[[Body], bool]:
    # Not "more than one": vLLM's parser also takes "2".
    return lambda body: body.get(key) not in (None, 1)


def _set(*keys: str) -> Callable[[Body], bool]:
    return lambda body: any(body.get(key) not in (None, False) for key in keys)


def _several_prompts(body: Body) -> bool:
    # A list of numbers is one prompt as token ids; of strings or lists, as many as it has.
    prompt = body.get("prompt")
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def has_media(body: Body) -> bool:
    """Any content part that is not text, in chat messages, responses input or messages."""
    return any(_media_item(item) for key in ("messages", "input") for item in _items(body.get(key)))


_TEXT_PARTS = frozenset({
    "text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking",
    "reasoning", "reasoning_text", "summary_text", "tool_use", "tool_reference",
    "message", "function_call", "function_call_output",
})  # fmt: skip


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _media_item(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type")
    nested = (*_items(item.get("content")), *_items(item.get("output")))
    if isinstance(kind, str) and kind not in _TEXT_PARTS and kind != "tool_result":
        return True
    if kind is None and any(key.split("_")[0] in _MEDIA_WORDS for key in item):
        return True  # vLLM also takes parts without a type: {"image_url": …}
    return any(_media_item(part) for part in nested)


_MEDIA_WORDS = frozenset({"image", "audio", "video", "input"})


def _engine_tools(body: Body) -> bool:
    """Tools of /v1/responses that the engine itself runs, in a loop of several prompts."""
    return "input" in body and any(
        isinstance(tool, dict) and tool.get("type") not in (None, "function", "custom", "namespace")
        for tool in _items(body.get("tools"))
    )


UNFIT: tuple[Unfit, ...] = (
    Unfit("n", "prefill's one answer cannot seed several choices", _not_one("n")),
    Unfit("best_of", "as n", _not_one("best_of")),
    Unfit(
        "beam_search",
        "vLLM runs one request for each beam and step; none of them is the one prefill did",
        _set("use_beam_search"),
    ),
    Unfit("several_prompts", "KV params name one request; these are several", _several_prompts),
    Unfit("echo", "the prompt's text and logprobs are made where it is prefilled", _set("echo")),
    Unfit(
        "prompt_logprobs",
        "made while prefilling; a decode engine that was handed KV never sees those logits",
        lambda body: body.get("prompt_logprobs") is not None,
    ),
    Unfit(
        "prompt_embeds",
        "vLLM counts handed-over tokens from prompt token ids, which embeddings have not",
        lambda body: body.get("prompt_embeds") is not None,
    ),
    Unfit(
        "truncation",
        "vLLM cuts the prompt to what max_tokens leaves, so the legs would see different prompts",
        lambda body: (
            body.get("truncate_prompt_tokens") is not None
            or body.get("truncation") not in (None, "disabled")
        ),
    ),
    Unfit(
        "media",
        "each engine fetches and encodes media on its own; that both see the same is not proved",
        has_media,
    ),
    Unfit(
        "routed_experts",
        "expert choices of the prompt are known where it is prefilled",
        _set("routed_experts_prompt_start"),
    ),
    Unfit(
        "engine_state",
        "lives in one engine's memory: previous_response_id, background, stored messages",
        _set("previous_response_id", "background"),
    ),
    Unfit(
        "engine_tools",
        "the engine runs the tools and prompts itself again with the first prompt's KV params",
        _engine_tools,
    ),
)


def why_decode_alone(body: Body, mode: Mode) -> str | None:
    """The name of the reason to leave prefill on decode, or None to disaggregate.

    `always` still leaves to decode what P/D cannot do right. `auto` also leaves prompts that are
    too short for a handoff ever to pay; of the others, `cost` compares measured times.
    """
    if mode == "never":
        return "mode_never"
    for unfit in UNFIT:
        if unfit.applies(body):
            return unfit.name
    if mode == "auto" and at_most(body, SHORT_PROMPT):
        return "short_prompt"
    return None


_PROMPT_KEYS = (
    "prompt", "messages", "input", "system", "instructions", "tools", "documents",
    "chat_template_kwargs",
)  # fmt: skip


def at_most(body: Body, limit: int) -> bool:
    """Whether the prompt surely has fewer than `limit` tokens. Stops counting when it does not."""
    left = limit
    for key in _PROMPT_KEYS:
        left = _count_down(body.get(key), left)
        if left <= 0:
            return False
    return True


@dataclass(frozen=True)
class PromptSize:
    """How long a prompt is.

    Args:
        bytes: Of its text, in UTF-8; a number or a flag counts one.
        tokens: Exactly, where the caller sent token ids.
    """

    bytes: int
    tokens: int | None = None


def prompt_size(body: Body) -> PromptSize:
    """The size of the one prompt in a request."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt:
        ids = prompt[0] if len(prompt) == 1 and isinstance(prompt[0], list) else prompt
        if ids and type(ids[0]) is int:
            return PromptSize(len(ids), len(ids))
    return PromptSize(sum(_size(body.get(key)) for key in _PROMPT_KEYS))


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if isinstance(value, dict):
        return sum(_size(item) for key, item in value.items() if key not in _LABELS)
    if isinstance(value, list):
        return sum(map(_size, value))
    return 0 if value is None else 1


_LABELS = frozenset({"role", "type"})


def _count_down(value: Any, left: int) -> int:
    if left <= 0:
        return left
    if isinstance(value, str):
        # A character is at least one byte: enough to know that the limit is passed.
        return left - (len(value) if len(value) >= left else len(value.encode()))
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in _LABELS:
                left = _count_down(item, left)
    elif isinstance(value, list):
        for item in value:
            left = _count_down(item, left)
            if left <= 0:
                break
    elif value is not None:
        left -= 1
    return left
