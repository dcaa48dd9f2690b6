"""Which streams can go on from another engine when theirs dies, and how. Data with reasons.

Three ways, best first (decision 0012):

`restart`   nothing that the caller can see was sent yet: the same request again
`continue`  prompt and written tokens, as exact token ids, are the prompt of `/v1/completions` on
            another engine, which writes what is missing. Costs one prefill
`replay`    the same request again on another engine; what it repeats is compared with what was
            sent and not sent twice. Costs the decoding of what was sent. Only where the same
            request gives the same text: greedy, or with a seed

Whatever fits none of them ends with an SSE error event that says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from baton.gateway.cost import LOCAL_REASONS
from baton.gateway.eligibility import why_decode_alone

if TYPE_CHECKING:
    from baton.gateway.request_body import Body
    from baton.gateway.routes import Route

COMPLETING = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Routes whose streams can go on from another engine."""
GREEDY_BELOW = 1e-5
"""vLLM 0.29 samples greedily below this temperature (`_SAMPLING_EPS`, vllm/sampling_params.py)."""

# Taken over into the request that continues. Each means the same when the tokens written so far
# have become part of the prompt; `repetition_penalty` too, which counts prompt and output alike.
KEPT = frozenset({
    "model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias",
    "allowed_token_ids", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "priority", "cache_salt", "user",
})  # fmt: skip

# Counted down by what was written.
COUNTED = frozenset({"max_tokens", "max_completion_tokens", "min_tokens"})

# Of the prompt, which is known as token ids by then, or of the way the answer is sent.
SPENT = frozenset({
    "messages", "prompt", "stream", "stream_options", "chat_template", "chat_template_kwargs",
    "add_generation_prompt", "continue_final_message", "add_special_tokens", "documents",
    "reasoning_effort", "return_token_ids", "request_id", "metadata", "store", "service_tier",
    "parallel_tool_calls", "safety_identifier", "prompt_cache_key",
})  # fmt: skip

# Harmless at these values.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "logprobs": (False,), "top_logprobs": (0,),
    "presence_penalty": (0,), "frequency_penalty": (0,), "use_beam_search": (False,),
    "response_format": ({"type": "text"},), "tool_choice": ("none",), "include_reasoning": (True,),
    "return_tokens_as_token_ids": (False,), "suffix": ("",),
}  # fmt: skip

# Why a field keeps a stream from being continued; anything else is not known to be safe.
REASONS = {
    "seed": "the generator's state after the written tokens cannot be handed over",
    "presence_penalty": "counts written tokens only, which are part of the prompt by then",
    "frequency_penalty": "counts written tokens only, which are part of the prompt by then",
    "logprobs": "positions would start anew",
    "top_logprobs": "positions would start anew",
    "tools": "the tool-call parser's state cannot be handed over",
    "response_format": "the grammar's state cannot be handed over",
    "structured_outputs": "the grammar's state cannot be handed over",
    "bad_words": "a bad word may span the border",
    "thinking_token_budget": "the budget's state cannot be handed over",
}


@dataclass(frozen=True)
class Means:
    """What could be done for one streamed request, known before it is sent."""

    continues: bool
    replays: bool
    why_not_continue: str | None = None
    why_not_replay: str | None = None

    @property
    def why_not(self) -> str:
        """For the caller's error event."""
        return "; ".join(filter(None, (self.why_not_continue, self.why_not_replay)))


def means_of(body: Body, route: Route, why_alone: str | None) -> Means:
    """What a stream of this request allows should its engine die.

    Args:
        body: The caller's request.
        route: Its route.
        why_alone: What `why_decode_alone` said of it; it is not asked twice.
    """
    if route.path not in COMPLETING:
        why = f"events of {route.path} carry ids and numbers that another engine would not repeat"
        return Means(False, False, why)
    why_continue = _why_not_continue(body, why_alone)
    why_replay = _why_not_replay(body)
    return Means(why_continue is None, why_replay is None, why_continue, why_replay)


def _why_not_continue(body: Body, why_alone: str | None) -> str | None:
    if why_alone == "mode_never":  # said before anything else was looked at
        why_alone = why_decode_alone(body, "always")
    if why_alone not in (None, "short_prompt") and why_alone not in LOCAL_REASONS:
        return f"{why_alone}: not one prompt of tokens with one answer"
    for key, value in body.items():
        if value is None or key in KEPT or key in COUNTED or key in SPENT:
            continue
        if any(value == one and _same_kind(value, one) for one in NEUTRAL.get(key, ())):
            continue
        return f"{key}: {REASONS.get(key, 'not known to mean the same in the middle')}"
    return None


def _same_kind(value: Any, other: Any) -> bool:
    # `logprobs: 0` of a completion asks for the token's own, and Python finds it equal to False.
    return isinstance(value, bool) == isinstance(other, bool)


def _why_not_replay(body: Body) -> str | None:
    temperature = body.get("temperature")
    greedy = isinstance(temperature, int | float) and temperature < GREEDY_BELOW
    if greedy or body.get("top_k") == 1 or isinstance(body.get("seed"), int):
        return None
    return "sampled without a seed: the same request would give another text"


def continuation(
    body: Body, route: Route, prompt: list[int], written: list[int], *, max_model_len: int
) -> Body | None:
    """The `/v1/completions` request that writes what is missing.

    Args:
        body: The caller's request, one that `continues`.
        route: Its route.
        prompt: Token ids of its prompt.
        written: Token ids that the answer has so far.
        max_model_len: The engine's limit in tokens; 0 when it is not known.

    Returns:
        None when it cannot be said how much is missing.
    """
    room = max_model_len - len(prompt) - len(written)
    limits = [
        value - len(written) for key in route.token_limits if type(value := body.get(key)) is int
    ]
    if not limits and route.path == "/v1/completions":
        limits = [DEFAULT_MAX_TOKENS - len(written)]
    if max_model_len:
        limits.append(room)
    if not limits or min(limits) < 1:
        return None
    copy = {key: value for key, value in body.items() if key in KEPT and value is not None}
    options = body.get("stream_options")
    if isinstance(options, dict):
        copy["stream_options"] = options
    min_tokens = body.get("min_tokens")
    if type(min_tokens) is int and min_tokens > len(written):
        copy["min_tokens"] = min_tokens - len(written)
    return {**copy, "prompt": prompt + written, "max_tokens": min(limits), "stream": True}


DEFAULT_MAX_TOKENS = 16
"""vLLM 0.29 `CompletionRequest.max_tokens`; a chat may fill the context."""


def held_back(body: Body) -> tuple[int, bool]:
    """How many characters a stream lags behind its tokens, and how many a resumed one must look at.

    vLLM holds back one character less than the longest stop string (0.29, v1/engine/detokenizer.py
    `stop_buffer_length`), so that no part of a stop string is ever sent. With
    `include_stop_str_in_output` it sends at once, and a stop string may begin in what was sent: so
    far back the other engine has to begin.

    Returns:
        The number of characters, and whether the stream really lags by them.
    """
    stop = body.get("stop")
    texts = [stop] if isinstance(stop, str) else stop if isinstance(stop, list) else []
    longest = max((len(text) for text in texts if isinstance(text, str)), default=0)
    return max(0, longest - 1), not body.get("include_stop_str_in_output")
