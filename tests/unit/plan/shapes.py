"""Configs of published models, abridged, and costs and traces that are easy to reckon with."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

from baton.plan.costs import HandoffCost, KvShape, StepCosts
from baton.plan.simulator import EngineLimits, Fleet, FleetSettings, Outcome, Pool, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096,
    "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 40960,
}  # fmt: skip
LLAMA_70B: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 131072,
}  # fmt: skip
QWEN3_30B_A3B: dict[str, Any] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 151936, "hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": [],
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "vocab_size": 129280, "hidden_act": "silu", "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
GEMMA3_270M: dict[str, Any] = {
    "model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048,
    "num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
    "vocab_size": 262144, "sliding_window": 512, "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "max_position_embeddings": 32768,
}  # fmt: skip


def costs(
    *, token_s: float = 1e-3, step_s: float = 0.0, sequence_s: float = 0.0, pair_s: float = 0.0,
    kv_byte_s: float = 0.0, capacity: float = math.inf,
) -> StepCosts:  # fmt: skip
    """One byte of KV a token; a step costs `step_s` when somebody writes, and `token_s` a token."""
    return StepCosts(
        base=lambda tokens, sequences: (
            token_s * tokens + (step_s + sequence_s * sequences if sequences else 0.0)
        ),
        pair_s=pair_s,
        kv_byte_s=kv_byte_s,
        kv=KvShape(1.0),
        kv_capacity_bytes=capacity,
    )


def poisson(
    rate: float, count: int, seed: int, prompt: Callable[[random.Random], int],
    output: Callable[[random.Random], int] = lambda _: 1,
) -> list[Request]:  # fmt: skip
    chance = random.Random(seed)
    now, trace = 0.0, []
    for _ in range(count):
        now += chance.expovariate(rate)
        trace.append(Request(now, prompt(chance), output(chance)))
    return trace


def one_by_one(trace: Sequence[Request], engines: int, token_s: float = 1e-3) -> Outcome:
    """A queue before servers: each engine takes one request at a time."""
    limits = EngineLimits(1 << 30, 1)
    pool = Pool("both", costs(token_s=token_s), tuple(range(engines)), limits)
    return Fleet([pool], FleetSettings(max_open_per_engine=1)).play(trace)


def pair(
    trace: Sequence[Request], *, prefill: int = 1, decode: int = 1, bytes_per_s: float = math.inf,
    fixed_s: float = 0.0, each: StepCosts | None = None, settings: FleetSettings | None = None,
    limits: EngineLimits | None = None,
) -> Outcome:  # fmt: skip
    """P/D, each engine on a node of its own."""
    each = each or costs(token_s=1e-4, step_s=0.01)
    limits = limits or EngineLimits()
    network = HandoffCost(fixed_s, bytes_per_s)
    pools = [
        Pool("prefill", each, tuple(range(prefill)), limits, nic_bytes_per_s=bytes_per_s,
             network=network),
        Pool("decode", each, tuple(range(prefill, prefill + decode)), limits,
             nic_bytes_per_s=bytes_per_s, network=network),
    ]  # fmt: skip
    return Fleet(pools, settings or FleetSettings()).play(trace)
