"""A model's shape from its config alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from baton.errors import ModelUnavailable
from baton.plan.model import load_model, shape_from_config
from baton.plan.roofline import kv_shape, kv_shards
from tests.unit.plan.shapes import DEEPSEEK_V3, GEMMA3_270M, LLAMA_70B, QWEN3_8B, QWEN3_30B_A3B

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [
        (QWEN3_8B, 8.19, 8.19), (LLAMA_70B, 70.6, 70.6), (QWEN3_30B_A3B, 30.5, 3.3),
        (DEEPSEEK_V3, 671, 37), (GEMMA3_270M, 0.268, 0.268),
    ],
)  # fmt: skip
def test_parameters_are_those_that_the_models_cards_name(
    config: dict[str, Any], billions: float, active: float
) -> None:
    """Dense, experts, and MLA: within two per cent, embeddings counted."""
    shape = shape_from_config(config, "model")
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.02)
    met = shape.active_parameters + shape.embedding_parameters
    assert met / 1e9 == pytest.approx(active, rel=0.02)


def test_kv_is_counted_with_heads_windows_and_mla() -> None:
    """Qwen3-8B has 147,456 bytes a token; MLA is whole on each worker; windows stop growing."""
    qwen = shape_from_config(QWEN3_8B, "m")
    assert kv_shape(qwen).per_token == 147_456
    assert kv_shards(qwen, 4) == 4
    deepseek = shape_from_config(DEEPSEEK_V3, "m")
    assert kv_shape(deepseek).per_token == 61 * (512 + 64) * 2
    assert kv_shards(deepseek, 8) == 1
    gemma = kv_shape(shape_from_config(GEMMA3_270M, "m"))
    each = 2 * 256 * 2
    assert gemma.per_token == 3 * each
    assert gemma.of(10_000) == 3 * each * 10_000 + 15 * each * 512


@pytest.mark.parametrize(
    ("quantisation", "gigabytes"),
    [
        (None, 16.4), ({"quant_method": "fp8"}, 9.4), ({"quant_method": "awq", "bits": 4}, 6.2),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, 9.4),
    ],
)  # fmt: skip
def test_quantised_weights_are_smaller_and_embeddings_are_not(
    quantisation: dict[str, Any] | None, gigabytes: float
) -> None:
    """By the method and bits that the config names."""
    config = {**QWEN3_8B, "quantization_config": quantisation}
    shape = shape_from_config(config, "m")
    assert shape.weights_bytes / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_few_tokens_meet_few_experts() -> None:
    """One token reads its own experts, a thousand nearly all."""
    shape = shape_from_config(QWEN3_30B_A3B, "m")
    whole = shape.layer_bytes_read(10**6)
    assert shape.layer_bytes_read(1) < 0.12 * whole
    assert shape.layer_bytes_read(1000) == pytest.approx(whole, rel=0.01)


def test_a_folder_and_a_bare_config_are_read_and_nothing_else(tmp_path: Path) -> None:
    """The same shape from both."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_8B))
    assert load_model(str(path)).parameters == load_model(str(tmp_path)).parameters


def test_what_is_no_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing folder, no JSON, another kind of config, a hub that cannot be reached."""
    path = tmp_path / "config.json"
    for text in ("{", "[]", '{"model_type": "bert"}'):
        path.write_text(text)
        with pytest.raises(ModelUnavailable):
            load_model(str(path))
    with pytest.raises(ModelUnavailable, match="there is no model"):
        load_model(str(tmp_path / "nothing"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelUnavailable, match="could not be read") as caught:
        load_model("someone/something")
    assert "config.json" in caught.value.cure
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelUnavailable, match="HF_HUB_OFFLINE is set"):
        load_model("someone/something")


def test_attention_costs_what_its_heads_are_wide() -> None:
    """MLA's heads have 192 for keys and 128 for values: not hidden size over heads."""
    qwen = shape_from_config(QWEN3_8B, "m")
    assert qwen.attention_flops_per_pair == 4 * 36 * 32 * 128
    deepseek = shape_from_config(DEEPSEEK_V3, "m")
    assert deepseek.attention_flops_per_pair == 2 * 61 * 128 * (192 + 128)
