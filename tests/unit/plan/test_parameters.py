"""Parameters, bytes and KV of published models, by their configs alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.errors import ModelNotPlanned
from baton.plan.model import shape_from_config
from baton.plan.roofline import kv_shape
from tests.unit.plan.shapes import LLAMA_70B, QWEN3_8B

# Abridged configs, written from memory, with billions of parameters, all and those that a token
# meets, embeddings counted in both. Most are what was counted, seen to agree with the size that the
# model is known for: they keep the count from changing unseen, and are no second source.
PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_stay_at_the_size_that_models_are_known_for(name: str) -> None:
    """Gated or not, tied or not, experts in some layers, states, layers of one kind only."""
    billions, active = PUBLISHED[name]["billions"]
    shape = shape_from_config(PUBLISHED[name]["config"], name)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    met = shape.active_parameters + shape.embedding_parameters
    assert met / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("name", "per_token", "windows", "states"),
    [
        ("llama31-405b", 126 * 2 * 8 * 128 * 2, 0, 0),
        ("falcon-7b", 32 * 2 * 1 * 64 * 2, 0, 0),  # multi-query: one head
        ("deepseek-v2-lite", 27 * (512 + 64) * 2, 0, 0),
        ("gemma3-27b", 10 * 2 * 16 * 128 * 2, 52 * 2 * 16 * 128 * 2 * 1024, 0),
        ("gpt-oss-120b", 18 * 2 * 8 * 64 * 2, 18 * 2 * 8 * 64 * 2 * 128, 0),
        ("llama4-scout", 12 * 2 * 8 * 128 * 2, 36 * 2 * 8 * 128 * 2 * 8192, 0),
        ("jamba-mini", 4 * 2 * 8 * 128 * 2, 0, 28 * 8192 * (3 + 16) * 2),
        ("nemotron-h-8b", 4 * 2 * 8 * 128 * 2, 0,
         24 * ((8192 + 2 * 8 * 128) * 3 * 2 + 8192 * 128 * 4)),
        ("qwen3-next-80b", 12 * 2 * 2 * 256 * 2, 0, 36 * ((4096 + 4096) * 3 + 32 * 128 * 128) * 2),
        ("mamba2-2.7b", 0, 0, 64 * ((5120 + 2 * 128) * 3 + 5120 * 128) * 2),
    ],
)  # fmt: skip
def test_kv_is_what_each_architecture_keeps(
    name: str, per_token: int, windows: int, states: int
) -> None:
    """Bytes of a long sequence: a line, the windows' end state, and states of fixed size."""
    shape = kv_shape(shape_from_config(PUBLISHED[name]["config"], name))
    assert shape.per_token == per_token
    assert shape.of(100_000) == per_token * 100_000 + windows + states


@pytest.mark.parametrize(
    ("quantisation", "gigabytes"),
    [
        # Checkpoints of about this size: AWQ and GPTQ with groups of 128, FP8. NVFP4: as counted.
        ({"quant_method": "awq", "bits": 4}, 39.8), ({"quant_method": "gptq", "bits": 4}, 39.8),
        ({"quant_method": "compressed-tensors", "config_groups": {
            "group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, 72.7),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "type": "float"}}}}, 42.7),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 42.7),
    ],
)  # fmt: skip
def test_quantised_weights_have_about_the_size_of_their_files(
    quantisation: dict[str, Any], gigabytes: float
) -> None:
    """Llama 3 70B, within three per cent."""
    shape = shape_from_config({**LLAMA_70B, "quantization_config": quantisation}, "m")
    assert shape.weights_bytes / 1e9 == pytest.approx(gigabytes, rel=0.03)


def test_float32_is_served_as_bfloat16() -> None:
    """As vLLM does by itself: weights, KV, and files that are twice as large."""
    config = {**QWEN3_8B, "torch_dtype": "float32"}
    half, whole = (
        shape_from_config(QWEN3_8B, "m", 16 * 10**9),
        shape_from_config(config, "m", 32 * 10**9),
    )
    assert whole.weights_bytes == half.weights_bytes
    assert kv_shape(whole) == kv_shape(half)
    assert shape_from_config(config, "m").weights_bytes == pytest.approx(16.4e9, rel=0.01)


def test_an_unread_quantisation_goes_by_the_size_of_the_files() -> None:
    """A step reads no more than the files hold."""
    config = {**QWEN3_8B, "quantization_config": {"quant_method": "something-new"}}
    assert shape_from_config(config, "m", 6 * 10**9).layer_bytes_read(1) < 6e9


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768,
         "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 30522},
        {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 768,
         "num_heads": 12, "num_layers": 12, "vocab_size": 32128},
        {**QWEN3_8B, "is_encoder_decoder": True},
        {**QWEN3_8B, "num_hidden_layers": 10**12},
        {**QWEN3_8B, "num_hidden_layers": 10**12, "attn_layer_period": 8, "attn_layer_offset": 4},
        {**QWEN3_8B, "hidden_size": -4096}, {**QWEN3_8B, "num_attention_heads": "32"}, {},
        {"text_config": {}}, {"text_config": None, "architectures": 5},
    ],
)  # fmt: skip
def test_what_is_no_decoder_is_refused_and_not_planned(config: dict[str, Any]) -> None:
    """Encoders, translators, absurd and wrong values: no plan, and a cure."""
    with pytest.raises(ModelNotPlanned) as caught:
        shape_from_config(config, "m")
    assert caught.value.cure
    assert caught.value.exit_status == 2


def test_wrong_values_beside_the_shape_do_not_matter() -> None:
    """A config is another program's: what cannot be read is as if it were not there."""
    odd = {**QWEN3_8B, "hidden_act": ["x"], "layer_types": [], "quantization_config": "fp8",
           "rope_scaling": [1], "torch_dtype": 5, "max_position_embeddings": "lots"}  # fmt: skip
    assert shape_from_config(odd, "m").parameters == shape_from_config(QWEN3_8B, "m").parameters
