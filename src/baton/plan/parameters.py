"""Counts a model's parameters from its config, layer by layer: mixers, feed-forward, experts.

A layer mixes tokens by attention or by a state (Mamba, delta net) and has a feed-forward network or
experts, or only one of both (Nemotron-H). Norms, biases and routers' corrections are left out: they
are a thousandth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from baton.spec.model_layers import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.spec.model_facts import ModelFacts

# Two products instead of three, by the name of what lies between, or by class where it is fixed.
_PLAIN_ACTS = frozenset({"gelu_new", "gelu", "gelu_fast", "relu", "relu2", "squared_relu"})
_PLAIN_KINDS = frozenset(
    {
        "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt",
        "nemotron", "nemotron_h", "opt", "persimmon", "phi", "starcoder2",
    }
)  # fmt: skip
_GATED_KINDS = ("gemma", "dbrx")
_ONLY_STATE = frozenset({"mamba", "mamba2", "falcon_mamba"})


@dataclass(frozen=True)
class Parameters:
    """Of all layers; embeddings and head are not in it."""

    always: float
    """What every token meets: mixers, dense feed-forward, routers, shared experts."""
    experts_met: float
    """Of the routed experts, those that one token meets."""
    experts_all: float
    experts: int
    experts_per_token: int

    @property
    def total(self) -> float:
        """All of the layers."""
        return self.always + self.experts_all

    @property
    def active(self) -> float:
        """Those that one token meets."""
        return self.always + self.experts_met


def count_parameters(config: Mapping[str, Any], facts: ModelFacts, hidden: int) -> Parameters:
    """What the layers of a flat config hold (`published.as_its_class_reads`)."""
    layers = count(config, "num_hidden_layers", "n_layer", "num_layers") or facts.layers
    attention = facts.full_layers + facts.sliding_layers
    always = attention * _attention(config, facts, hidden)
    always += facts.mamba_layers * _state(config, facts, hidden)
    expert, experts, each = _experts(config, hidden)
    dense_layers, moe_layers = _feed_forward_layers(config, layers, bool(experts))
    products = _products(config)
    always += dense_layers * products * hidden * _dense_width(config, hidden)
    always += moe_layers * (products * hidden * _shared_width(config) + hidden * experts)
    return Parameters(
        always=float(always),
        experts_met=float(moe_layers * each * expert),
        experts_all=float(moe_layers * experts * expert),
        experts=experts if moe_layers else 0,
        experts_per_token=each if moe_layers else 0,
    )


# --- mixers


def _attention(config: Mapping[str, Any], facts: ModelFacts, hidden: int) -> float:
    heads = max(facts.attention_heads, 1)
    if facts.is_mla:
        compressed = count(config, "kv_lora_rank")
        rope = count(config, "qk_rope_head_dim")
        nope, value = count(config, "qk_nope_head_dim"), count(config, "v_head_dim")
        q_rank = count(config, "q_lora_rank")
        query = heads * (nope + rope)
        queries = hidden * q_rank + q_rank * query if q_rank else hidden * query
        keys = hidden * (compressed + rope) + compressed * heads * (nope + value)
        return float(queries + keys + heads * value * hidden)
    kind = str(config.get("model_type") or "")
    gate = 1 if config.get("attn_output_gate") is True or kind == "qwen3_next" else 0
    return float(hidden * facts.head_dim * ((2 + gate) * heads + 2 * facts.kv_heads))


def _state(config: Mapping[str, Any], facts: ModelFacts, hidden: int) -> float:
    values = count(config, "linear_num_value_heads")
    if values:  # gated delta net: queries, keys, values, gate, two rates, output
        keys = count(config, "linear_num_key_heads") * count(config, "linear_key_head_dim")
        value = values * count(config, "linear_value_head_dim")
        kernel = count(config, "linear_conv_kernel_dim")
        return float(hidden * (2 * keys + 3 * value + 2 * values) + kernel * (2 * keys + value))
    heads = count(config, "mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    state = count(config, "ssm_state_size", "mamba_d_state", "state_size")
    if heads:  # Mamba-2
        inner = heads * count(config, "mamba_head_dim", "mamba_d_head", "mamba_headdim")
        groups = count(config, "n_groups", "mamba_n_groups", "mamba_ngroups") or 1
        return float(hidden * (3 * inner + 2 * groups * state + heads))
    inner = count(config, "mamba_expand", "expand") * hidden
    if inner and state:  # Mamba-1
        rank = count(config, "mamba_dt_rank", "time_step_rank") or -(-hidden // 16)
        return float(3 * hidden * inner + inner * (2 * rank + 3 * state))
    return _attention(config, facts, hidden)  # a linear attention: much the same products


# --- feed-forward


def _products(config: Mapping[str, Any]) -> int:
    kind = str(config.get("model_type") or "")
    if kind in _PLAIN_KINDS:
        return 2
    names = ("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function")
    act = next((config[name] for name in names if isinstance(config.get(name), str)), "silu")
    return 2 if act in _PLAIN_ACTS and not kind.startswith(_GATED_KINDS) else 3


def _dense_width(config: Mapping[str, Any], hidden: int) -> int:
    names = ("intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    return count(config, *names) or (count(config, "expansion_ratio") or 4) * hidden


def _experts(config: Mapping[str, Any], hidden: int) -> tuple[int, int, int]:
    """Parameters of one expert, how many there are, how many a token meets."""
    experts = count(
        config, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"
    )
    each = count(config, "num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")
    if experts <= 1 or not each:
        return 0, 0, 0
    return _products(config) * hidden * _expert_width(config, hidden), experts, min(each, experts)


def _expert_width(config: Mapping[str, Any], hidden: int) -> int:
    names = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size")
    return count(config, *names) or _dense_width(config, hidden)


def _shared_width(config: Mapping[str, Any]) -> int:
    names = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
             "shared_intermediate_size")  # fmt: skip
    found = count(config, *names)
    if found:
        return found * max(count(config, "n_shared_experts"), 1)
    shared = count(config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    if not shared and str(config.get("model_type")).startswith("llama4"):
        shared = 1
    return shared * _expert_width(config, 0)


def _feed_forward_layers(
    config: Mapping[str, Any], layers: int, has_experts: bool
) -> tuple[int, int]:
    """Layers with a dense network, and those with experts."""
    if config.get("model_type") in _ONLY_STATE:
        return 0, 0
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return pattern.count("-"), pattern.count("E") if has_experts else 0
    names = config.get("layers_block_type") or config.get("layer_types")
    if isinstance(names, list):
        moe, dense = (sum(part in str(name) for name in names) for part in ("moe", "mlp"))
        if moe or dense:
            return dense, moe if has_experts else 0
    moe = sum(_is_moe(config, layer) for layer in range(layers)) if has_experts else 0
    return layers - moe, moe


def _is_moe(config: Mapping[str, Any], layer: int) -> bool:
    """As the classes of Qwen, DeepSeek, Llama 4, Jamba, MiMo and ERNIE decide it."""
    only_dense, only_moe = config.get("mlp_only_layers"), config.get("moe_layers")
    if isinstance(only_dense, list) and layer in only_dense:
        return False
    if isinstance(only_moe, list) and only_moe:
        return layer in only_moe
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list):
        return layer < len(frequency) and bool(frequency[layer])
    first = count(config, "first_k_dense_replace", "moe_layer_start_index")
    if period := count(config, "expert_layer_period"):
        mine = layer % period == count(config, "expert_layer_offset")
    elif step := count(config, "moe_layer_freq"):
        mine = layer % step == 0
    else:
        names = ("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
        mine = (layer + 1) % max(count(config, *names), 1) == 0
    return mine and layer >= first
