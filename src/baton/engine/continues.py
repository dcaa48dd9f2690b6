"""Which answers a vLLM engine goes on with exactly, from prompt and first tokens as token ids.

The gateway says a first token early only where this is known (`gateway/first_token.py`). Each check
names what would make a continued answer another one than an ordinary answer of vLLM 0.29.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.spec.lease import Continues

# Arguments that change every answer; anything but these values is not known to be harmless.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "enable_force_include_usage": (None, False),  # usage nobody asked for, so none to be written
    "enable_per_request_metrics": (None, False),  # times of a part would stand for the whole
    "override_generation_config": (None, {}),  # `max_new_tokens` there caps each part anew
    "generation_config": (None, "auto"),  # both engines must sample by the same defaults
    "logits_processors": (None, [], ()),  # a state that is not known here
    "speculative_config": (None,),  # not tried: several tokens a step, a drafter's own KV
    "decode_context_parallel_size": (None, 1),  # not tried: blocks are split among ranks
}
# Arguments that put a parser between tokens and a chat's text (openai/chat_completion/serving.py).
_PARSERS = ("reasoning_parser", "tool_call_parser", "tool_parser_plugin", "reasoning_parser_plugin")
_HARMONY = "gpt_oss"
PROVED_CONNECTOR = "NixlConnector"


def continues(
    engine_kwargs: Mapping[str, Any],
    *,
    model_type: str,
    default_max_tokens: int | None,
    has_state: bool,
) -> Continues:
    """What an engine with these arguments continues.

    Args:
        engine_kwargs: Of the role, as Ray Serve LLM gives them to vLLM.
        model_type: Of the model's config: `gpt_oss` has a parser whatever the arguments.
        default_max_tokens: What the model's generation config allows an answer that says nothing.
        has_state: A running state beside KV (Mamba): prefill stops one token short of the prompt.
    """
    kv_transfer = engine_kwargs.get("kv_transfer_config") or {}
    if has_state or kv_transfer.get("kv_connector") != PROVED_CONNECTOR:
        return "nothing"
    for key, harmless in _NEUTRAL.items():
        if engine_kwargs.get(key) not in harmless:
            return "nothing"
    parsed = any(engine_kwargs.get(key) for key in _PARSERS) or model_type == _HARMONY
    structured = engine_kwargs.get("structured_outputs_config")
    # Also where a parser may stand in it: what is no plain mapping is not looked into.
    if isinstance(structured, dict):
        structured = structured.get("reasoning_parser")
    if parsed or structured or default_max_tokens is not None:
        return "completions"
    return "chat"


def continues_of(engine_kwargs: Mapping[str, Any], model_config: Any) -> Continues:
    """The same, for vLLM's `ModelConfig`."""
    return continues(
        engine_kwargs,
        model_type=getattr(model_config.hf_config, "model_type", ""),
        default_max_tokens=model_config.get_diff_sampling_param().get("max_tokens"),
        # vLLM 0.29 `ModelConfig`: models with Mamba layers, alone or among others.
        has_state=bool(model_config.is_hybrid or model_config.is_attention_free),
    )
