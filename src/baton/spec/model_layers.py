"""What each layer of a model keeps for a sequence: KV of all tokens, of a window, a state, nothing.

Read from `config.json` as the model's class in transformers and vLLM 0.29 reads it. Layers that are
a feed-forward network alone (Nemotron-H's `-`) keep nothing and are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATE_WORDS = ("mamba", "ssm", "linear", "gdn", "kda", "recurrent", "conv")
_BOTH_WORDS = ("hybrid",)
_EMPTY_WORDS = ("mlp", "moe", "ffn")
# Every nth layer sees everything, the others a window; the class's default where the config of a
# published model leaves it out (transformers `Gemma3TextConfig`, `Gemma2Config`, `Cohere2Config`).
_WINDOW_PATTERN = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
_ONLY_STATE = frozenset({"mamba", "mamba2", "falcon_mamba"})
# Attention and state side by side in each layer.
_BOTH = frozenset({"falcon_h1"})


@dataclass(frozen=True)
class LayerKinds:
    """How many layers keep what. `kept` counts a layer with KV and a state twice."""

    kept: int
    sliding: int = 0
    states: int = 0


def count(config: Mapping[str, Any], *names: str) -> int:
    """The first of these keys that holds a positive whole number, else 0."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def layer_kinds(config: Mapping[str, Any], kind: str, layers: int) -> LayerKinds:
    """What the layers of a model keep."""
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        # Nemotron-H: `M` Mamba-2, `*` attention, `-` and `E` feed-forward.
        states = pattern.count("M")
        return LayerKinds(states + pattern.count("*"), 0, states)
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(kinds, list) and kinds:
        return _from_names([str(name).lower() for name in kinds])
    if kind in _ONLY_STATE:
        return LayerKinds(layers, 0, layers)
    if kind in _BOTH:
        return LayerKinds(2 * layers, 0, layers)
    attention = _attention_layers(config, layers)
    if attention is not None:
        return LayerKinds(layers, 0, layers - attention)
    return LayerKinds(layers, _sliding(config, kind, layers))


def _from_names(names: list[str]) -> LayerKinds:
    both = sum(any(word in name for word in _BOTH_WORDS) for name in names)
    empty = sum(any(word in name for word in _EMPTY_WORDS) for name in names)
    states = sum(any(word in name for word in _STATE_WORDS) for name in names)
    sliding = sum("sliding" in name or "chunked" in name for name in names)
    return LayerKinds(len(names) - empty + both, sliding, states + both)


def _attention_layers(config: Mapping[str, Any], layers: int) -> int | None:
    """How many layers are attention where the others keep a state; None for other models."""
    interval = count(config, "full_attention_interval")
    if interval > 1 and count(config, "linear_num_value_heads"):
        return layers // interval  # Qwen3-Next
    period, offset = count(config, "attn_layer_period"), config.get("attn_layer_offset")
    if period > 1 and isinstance(offset, int):
        return sum(layer % period == offset for layer in range(layers))  # Jamba
    indices = config.get("attn_layer_indices")
    if isinstance(indices, list):
        return len(indices)  # Bamba
    return None


def _sliding(config: Mapping[str, Any], kind: str, layers: int) -> int:
    if not count(config, "sliding_window") or config.get("use_sliding_window") is False:
        return 0
    pattern = count(config, "sliding_window_pattern") or _WINDOW_PATTERN.get(kind, 0)
    if pattern > 1:
        return layers - layers // pattern
    if config.get("use_sliding_window") is True and "max_window_layers" in config:
        return max(layers - count(config, "max_window_layers"), 0)  # Qwen2: the upper layers
    return layers


def state_bytes(
    config: Mapping[str, Any], kind: str, each: float, widths: Mapping[str, Any]
) -> int:
    """State of one such layer for one sequence, over all TP workers; 0 when the config tells none.

    Two tensors: the last inputs of a convolution in the model's type, and the state itself. vLLM
    0.29 `mamba_utils.py`, `gated_delta_net_state_shape`, `mamba2_state_shape`,
    `mamba1_state_shape`; the state's type is `mamba_ssm_cache_dtype`, for Nemotron-H float32 if
    left out (`models/config.py`).
    """
    named = config.get("mamba_ssm_cache_dtype") or config.get("mamba_ssm_dtype")
    default = 4 if kind == "nemotron_h" else each
    wide = widths.get(named, default) if isinstance(named, str) else default
    for shape in (_delta_net, _mamba2, _mamba1):
        sizes = shape(config)
        if sizes is not None:
            return int(sizes[0] * each + sizes[1] * wide)
    return 0


def _delta_net(config: Mapping[str, Any]) -> tuple[int, int] | None:
    keys, key_dim = count(config, "linear_num_key_heads"), count(config, "linear_key_head_dim")
    values = count(config, "linear_num_value_heads")
    value_dim = count(config, "linear_value_head_dim")
    kernel = count(config, "linear_conv_kernel_dim")
    if not (keys and key_dim and values and value_dim and kernel):
        return None
    convolution = (2 * keys * key_dim + values * value_dim) * (kernel - 1)
    return convolution, values * key_dim * value_dim


def _mamba2(config: Mapping[str, Any]) -> tuple[int, int] | None:
    heads = count(config, "mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    head_dim = count(config, "mamba_head_dim", "mamba_d_head", "mamba_headdim")
    state = count(config, "ssm_state_size", "mamba_d_state", "state_size")
    groups = count(config, "n_groups", "mamba_n_groups", "mamba_ngroups")
    kernel = count(config, "conv_kernel", "mamba_d_conv")
    if not (heads and head_dim and state and groups and kernel):
        return None
    return (heads * head_dim + 2 * groups * state) * (kernel - 1), heads * head_dim * state


def _mamba1(config: Mapping[str, Any]) -> tuple[int, int] | None:
    inner = count(config, "mamba_expand") * count(config, "hidden_size")
    inner = inner or count(config, "intermediate_size")
    state = count(config, "mamba_d_state", "state_size")
    kernel = count(config, "mamba_d_conv", "conv_kernel")
    if not (inner and state and kernel):
        return None
    return inner * (kernel - 1), inner * state
