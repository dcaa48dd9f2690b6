"""KV per token and state of well-known models, computed by hand from their published configs.

Attention keeps K and V: 2 x KV heads x head size x bytes x layers. MLA keeps one vector a layer:
(kv_lora_rank + qk_rope_head_dim) x bytes. A window keeps its own tokens, a Mamba layer the last
inputs of its convolution and its state.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.spec.budget import budget_of, lines_of
from baton.spec.check import examine
from baton.spec.load import load_text
from baton.spec.machine import GIB, Machine
from baton.spec.model_facts import facts_from_config, read_facts
from baton.spec.view import AppView
from tests.unit.spec.files import BASE, rules_of
from tests.unit.spec.mutations import load

# meta-llama/Llama-3.1-8B-Instruct
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3",
                     "original_max_position_embeddings": 8192},
}  # fmt: skip
# Qwen/Qwen3-8B
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960,
    "max_window_layers": 36, "sliding_window": None, "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}  # fmt: skip
# deepseek-ai/DeepSeek-V3
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "num_hidden_layers": 61, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536,
    "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
}  # fmt: skip
# google/gemma-3-27b-it: the pattern and the length are defaults of the class
GEMMA_27B = {
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "head_dim": 128,
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
        "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
}  # fmt: skip
# google/gemma-3-4b-it: heads and head size are defaults as well
GEMMA_4B = {
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
        "sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
}  # fmt: skip
# ai21labs/Jamba-v0.1: attention in layers 4, 12, 20 and 28
JAMBA = {
    "model_type": "jamba", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_conv": 4,
    "mamba_d_state": 16, "mamba_expand": 2, "max_position_embeddings": 262144,
    "sliding_window": None, "torch_dtype": "bfloat16",
}  # fmt: skip
# nvidia/Nemotron-H-8B: 24 Mamba-2, 4 attention, 24 feed-forward
NEMOTRON_H = {
    "model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32,
    "num_hidden_layers": 52, "num_key_value_heads": 8, "head_dim": 128, "conv_kernel": 4,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "by_hand", "longest"),
    [
        (LLAMA, 2 * 8 * 128 * 2 * 32, 131_072),
        (QWEN3, 2 * 8 * 128 * 2 * 36, 40_960),
        (DEEPSEEK, (512 + 64) * 2 * 61, 163_840),
        (GEMMA_27B, 2 * 16 * 128 * 2 * 62, 131_072),
        (GEMMA_4B, 2 * 4 * 256 * 2 * 34, 131_072),
        (JAMBA, 2 * 8 * 128 * 2 * 4, 262_144),
        (NEMOTRON_H, 2 * 8 * 128 * 2 * 4, 8_192),
    ],
    ids=["llama", "qwen3", "deepseek", "gemma-27b", "gemma-4b", "jamba", "nemotron-h"],
)
def test_kv_per_token_is_that_of_the_formula(
    config: dict[str, Any], by_hand: int, longest: int
) -> None:
    """While no window is full."""
    facts = facts_from_config(config, "x")
    assert facts.kv_bytes_per_token() == by_hand
    assert facts.max_position_embeddings == longest


def test_five_of_six_gemma_layers_keep_their_window_only() -> None:
    """62 layers: 10 see everything, 52 see 1,024 tokens."""
    facts = facts_from_config(GEMMA_27B, "x")
    layer = 2 * 16 * 128 * 2
    assert facts.kv_bytes(8192) == 10 * 8192 * layer + 52 * 1024 * layer
    assert facts.is_hybrid


def test_jambas_mamba_layers_keep_a_state() -> None:
    """8,192 channels: three inputs of the convolution, sixteen numbers of state each."""
    facts = facts_from_config(JAMBA, "x")
    state = 8192 * 3 * 2 + 8192 * 16 * 2
    assert (facts.mamba_layers, facts.full_layers) == (28, 4)
    assert facts.kv_bytes(1000) == 1000 * 2 * 8 * 128 * 2 * 4 + 28 * state


def test_nemotrons_state_is_kept_in_32_bits_and_its_mlp_layers_keep_nothing() -> None:
    """128 heads of 64 with a state of 128, and 8 groups of 128 beside them in the convolution."""
    facts = facts_from_config(NEMOTRON_H, "x")
    state = (128 * 64 + 2 * 8 * 128) * 3 * 2 + 128 * 64 * 128 * 4
    assert (facts.mamba_layers, facts.full_layers) == (24, 4)
    assert facts.kv_bytes(0) == 24 * state


@pytest.mark.parametrize(
    ("more", "sliding", "states", "full"),
    [
        ({"sliding_window": 4096}, 32, 0, 0),  # Mistral-7B-v0.1
        ({"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28}, 4, 0, 28),
        ({"model_type": "gemma2", "sliding_window": 4096}, 16, 0, 16),
        ({"model_type": "cohere2", "sliding_window": 4096}, 24, 0, 8),
        ({"model_type": "falcon_h1"}, 0, 32, 32),
        ({"model_type": "mamba2"}, 0, 32, 0),
        ({"model_type": "bamba", "attn_layer_indices": [9, 18, 27]}, 0, 29, 3),
        ({"layers_block_type": ["mamba", "hybrid"] * 16}, 0, 32, 16),  # Zamba2
        ({"layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8}, 0, 24, 8),
        ({"layer_types": ["conv"] * 20 + ["full_attention"] * 12}, 0, 20, 12),  # LFM2
    ],
)
def test_layers_are_told_apart(more: dict[str, Any], sliding: int, states: int, full: int) -> None:
    """By the keys that each family uses."""
    facts = facts_from_config({**LLAMA, **more}, "x")
    found = (facts.sliding_layers, facts.mamba_layers, facts.full_layers)
    assert found == (sliding, states, full)


def folder(tmp_path: Path, config: dict[str, Any], total: int) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(tmp_path)


def test_the_budget_of_llama_on_an_80_gib_gpu(tmp_path: Path) -> None:
    """16,060,522,496 bytes of weights; 0.9 of 80 GiB for both; 32 sequences at once."""
    facts = read_facts(Path(folder(tmp_path, LLAMA, 16_060_522_496)))
    assert facts is not None
    args = load(BASE)["applications"][0]["args"]
    args["decode_config"]["engine_kwargs"]["max_num_seqs"] = 32
    machine = Machine(64, 512 * GIB, 8, 80 * GIB)
    app = AppView({}, (), args, (), machine)
    found = budget_of(app.decode, facts, app)
    assert found.weights_bytes == 16_060_522_496
    room = int(80 * GIB * 0.9) - 16_060_522_496
    assert found.kv_room_bytes == room
    assert found.largest_context == room // 32 // 131_072
    assert any(f"{room // 32 // 131_072:,} tokens with 32 at once" in x for x in lines_of(found))


def test_quantized_weights_count_as_they_are_stored(tmp_path: Path) -> None:
    """The index counts bytes, whatever their type; KV stays in the model's type."""
    facts = read_facts(Path(folder(tmp_path, DEEPSEEK, 688_586_727_753)))
    assert facts is not None
    assert facts.weights_bytes == 688_586_727_753
    assert facts.kv_bytes_per_token() == 70_272


@pytest.mark.parametrize(("size", "refused"), [(8, False), (16, False), (3, True), (12, True)])
def test_tp_and_kv_heads_must_divide_one_another(tmp_path: Path, size: int, refused: bool) -> None:
    """32 attention heads and 8 KV heads: 16 replicates each head twice, 12 divides nothing."""
    text = BASE.replace("Qwen/Qwen3.5-9B", folder(tmp_path, LLAMA, 1)).replace(
        "enforce_eager: true", f"tensor_parallel_size: {size}"
    )
    found = examine(load_text(text, "app.yaml", {}))
    assert set(rules_of(found)) == ({"BTN-201"} if refused else set())
