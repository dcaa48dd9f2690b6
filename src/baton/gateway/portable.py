"""What of a request can be sent to another provider. Data with reasons, read by `overflow`.

Three kinds of fields: OpenAI's own go along; what this deployment's engines ignore, or what only
steers them, is dropped; anything else changes the answer in a way that the provider would not know
of, so the request stays here and its caller is told which field it was. `overflow.pass_fields` adds
to the first kind for a provider that understands more, such as another vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from baton.gateway.request_body import Body

_SAMPLING = frozenset({
    "frequency_penalty", "logprobs", "max_tokens", "model", "n", "presence_penalty", "seed", "stop",
    "stream", "stream_options", "temperature", "top_p", "user",
})  # fmt: skip

FIELDS: Mapping[str, frozenset[str]] = {
    "/v1/chat/completions": _SAMPLING
    | {
        "messages", "functions", "function_call", "max_completion_tokens", "parallel_tool_calls",
        "reasoning_effort", "response_format", "tool_choice", "tools", "top_logprobs",
    },
    "/v1/completions": _SAMPLING | {"prompt", "best_of", "echo", "suffix"},
    "/v1/embeddings": frozenset({"input", "model", "encoding_format", "dimensions", "user"}),
}  # fmt: skip
"""OpenAI's fields by route. Other routes stay here: `/v1/responses` and `/v1/messages` are spoken
by few providers, and a response lives in the memory of the engine that made it."""

DROPPED: Mapping[str, str] = {
    "request_id": "names the request inside an engine",
    "session_id": "routing between engines",
    "priority": "the engine's own queue",
    "cache_salt": "the engine's prefix cache",
    "stream_interval": "how often the engine writes",
    # OpenAI's own that vLLM 0.29 ignores. Sent on, they would do what did not happen here: keep
    # the conversation, or choose another price.
    "store": "vLLM stores nothing",
    "metadata": "belongs to what is stored",
    "service_tier": "the provider's price list",
    "prompt_cache_key": "the provider's prefix cache",
    "prompt_cache_retention": "the provider's prefix cache",
    "safety_identifier": "vLLM ignores it",
    "prediction": "vLLM ignores it",
    "verbosity": "vLLM ignores it",
    "web_search_options": "vLLM ignores it; the provider would search",
    "audio": "vLLM ignores it",
    "modalities": "vLLM ignores it",
}

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "bad_words": ([],),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "top_k": (0, -1),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
"""vLLM's fields at the value that changes nothing (protocol.py's defaults): dropped then. A field
set to null is always dropped."""


class NotPortable(Exception):
    """The request stays here. `field` says why."""

    def __init__(self, field: str) -> None:
        self.field = field
        super().__init__(field)


def portable_body(path: str, body: Body, extra: Collection[str] = ()) -> Body:
    """A copy of the body with what a provider understands.

    Raises:
        NotPortable: The route or a field is not.
    """
    known = FIELDS.get(path)
    if known is None:
        raise NotPortable(path)
    copy: Body = {}
    for name, value in body.items():
        if name in known or name in extra:
            copy[name] = value
        elif value is None or name in DROPPED or value in NEUTRAL.get(name, ()):
            continue
        else:
            # Also `logit_bias`: its token ids belong to this model's tokenizer.
            raise NotPortable(name)
    for name in ("prompt", "input"):
        if name in copy and name not in extra and not _is_text(copy[name]):
            raise NotPortable(f"{name} of token ids")
    return copy


def _is_text(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, str)
