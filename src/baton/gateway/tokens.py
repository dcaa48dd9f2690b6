"""Counts a prompt's tokens, where a limit depends on it. The engine counts; nothing is guessed.

An engine's own `/tokenize` is asked (its chat template, its tokenizer), at most eight at a time,
for two seconds at most, and not twice for the same prompt. Prompts of token ids are counted as
they are. Where the rendered prompt cannot be had that way (media, `/v1/responses`), the text alone
is counted: a count that is too low refuses nobody wrongly. When no engine answers, the count is
unknown, and what is unknown is let in: the engine's own check of its context comes after it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import uuid
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from baton.errors import LegFailed, PromptTooLong
from baton.gateway.ask import leg_headers
from baton.gateway.eligibility import has_media
from baton.gateway.request_body import encode_body

if TYPE_CHECKING:
    from baton.gateway.ask import Ask
    from baton.gateway.directory import Directory
    from baton.gateway.engine_client import EngineClient
    from baton.gateway.request_body import Body
    from baton.gateway.routing import Router
    from baton.observe.metrics import GatewayMetrics

log = logging.getLogger("baton.gateway.tokens")

AT_ONCE = 8
TIMEOUT_S = 2.0
CACHED = 4096
MOST_PROMPTS = 8
"""Of a completion with several: the rest stays uncounted."""

# What shapes the prompt, by route. vLLM 0.29 serve/tokenize/protocol.py, anthropic/protocol.py.
_CHAT_FIELDS = (
    "model", "messages", "tools", "add_generation_prompt", "continue_final_message",
    "add_special_tokens", "chat_template", "chat_template_kwargs",
)  # fmt: skip
_MESSAGES_FIELDS = ("model", "messages", "system", "tools", "tool_choice", "chat_template_kwargs")
_TEXT_KEYS = frozenset({"text", "content", "system", "instructions", "input", "messages", "prompt"})


class PromptCounter:
    """Counts for one gateway."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._cache: OrderedDict[bytes, int] = OrderedDict()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def count(
        self, ask: Ask, client: EngineClient, directory: Directory, router: Router
    ) -> list[int]:
        """The tokens of each prompt; fewer where only the text can be counted, 0 when nothing can.

        Empty for what generates nothing: limits on prompts are about prefill.
        """
        body = ask.body
        if body is None or ask.route.kind != "pd" or _is_cut(body):
            return []
        counts = []
        for path, question in questions(ask.route.path, body):
            if isinstance(question, int):
                counts.append(question)
                continue
            counted = await self._ask(path, question, client, directory, router)
            if counted is None:
                self._metrics.prompt_counts.labels("unknown").inc()
            counts.append(counted or 0)
        return counts

    async def _ask(
        self,
        path: str,
        question: Body,
        client: EngineClient,
        directory: Directory,
        router: Router,
    ) -> int | None:
        raw = encode_body(question)
        known_as = hashlib.blake2b(path.encode() + b" " + raw, digest_size=16).digest()
        known = self._cache.get(known_as)
        if known is not None:
            self._cache.move_to_end(known_as)
            self._metrics.prompt_counts.labels("remembered").inc()
            return known
        # Prefill first: its server has less to do, decode's streams every token.
        choice = router.pick(directory.prefill_engines()) or router.pick(directory.decode_engines())
        if choice is None:
            return None
        engine = choice.engine
        headers = leg_headers(
            directory, {"content-type": "application/json"}, f"count-{uuid.uuid4().hex[:12]}"
        )
        try:
            async with asyncio.timeout(TIMEOUT_S), self._slots:
                status, answer = await client.fetch(
                    engine, "POST", path, timeout_s=TIMEOUT_S, body=raw, headers=headers
                )
        except (LegFailed, TimeoutError) as exc:
            log.warning(
                "a prompt could not be counted and is let in",
                extra={"engine": engine.replica_id, "error": repr(exc)},
            )
            return None
        count = _count_in(status, answer)
        if count is None:
            return None  # most likely a wrong request: its own route tells the caller
        self._metrics.prompt_counts.labels("counted").inc()
        self._cache[known_as] = count
        if len(self._cache) > CACHED:
            self._cache.popitem(last=False)
        return count


def questions(path: str, body: Body) -> list[tuple[str, Body | int]]:
    """What to ask for a request's prompts: a path and a body each, or the count itself."""
    if path == "/v1/completions":
        return _completion(body)
    if path == "/v1/chat/completions" and not has_media(body):
        return [("/tokenize", _chat(body))]
    if path == "/v1/messages" and not has_media(body):
        fields = {key: body[key] for key in _MESSAGES_FIELDS if key in body}
        return [("/v1/messages/count_tokens", fields)]
    text = "".join(_texts({key: value for key, value in body.items() if key in _TEXT_KEYS}))
    return [_plain(text, special=False)] if text else []


def _completion(body: Body) -> list[tuple[str, Body | int]]:
    prompt = body.get("prompt")
    special = body.get("add_special_tokens") is not False
    if isinstance(prompt, str):
        return [_plain(prompt, special=special)]
    if not isinstance(prompt, list) or not prompt:
        return []
    if isinstance(prompt[0], int):
        return [("", len(prompt))]
    return [
        _plain(one, special=special) if isinstance(one, str) else ("", len(one))
        for one in prompt[:MOST_PROMPTS]
        if isinstance(one, (str, list))
    ]


def _plain(text: str, *, special: bool) -> tuple[str, Body | int]:
    return "/tokenize", {"prompt": text, "add_special_tokens": special}


def _chat(body: Body) -> Body:
    question = {key: body[key] for key in _CHAT_FIELDS if body.get(key) is not None}
    # vLLM hands these two to the template as well (openai/chat_completion/protocol.py,
    # build_chat_params); /tokenize knows them only as the template's arguments.
    extra = {key: body[key] for key in ("documents", "reasoning_effort") if body.get(key)}
    if extra:
        given = body.get("chat_template_kwargs")
        question["chat_template_kwargs"] = {**extra, **(given if isinstance(given, dict) else {})}
    return question


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if isinstance(value, dict):
        return [text for key in value if key in _TEXT_KEYS for text in _texts(value[key])]
    return []


def _is_cut(body: Body) -> bool:
    """Whether vLLM shortens the prompt: what it had before that does not matter."""
    return body.get("truncate_prompt_tokens") is not None or body.get("truncation") not in (
        None,
        "disabled",
    )


def _count_in(status: int, raw: bytes) -> int | None:
    if status != 200:  # noqa: PLR2004
        return None
    try:
        answer = msgspec.json.decode(raw)
        count = answer.get("count", answer.get("input_tokens"))
    except (msgspec.DecodeError, UnicodeError, AttributeError):
        return None
    return count if type(count) is int and count >= 0 else None


def check_length(counts: list[int], *, limit: int | None, context: int) -> None:
    """Refuse a prompt that is too long, before anything is computed.

    Args:
        counts: Of each prompt of the request.
        limit: `admission.max_prompt_tokens`.
        context: The engines' `max_model_len`; 0 when unknown.

    Raises:
        PromptTooLong: One is.
    """
    tokens = max(counts, default=0)
    if context and tokens > context:
        raise PromptTooLong(
            f"This model's maximum context length is {context} tokens. However, your prompt has"
            f" {tokens} tokens.",
            param="prompt",
        )
    if limit is not None and tokens > limit:
        raise PromptTooLong(
            f"Prompts may have {limit} tokens here. However, your prompt has {tokens} tokens.",
            param="prompt",
        )
