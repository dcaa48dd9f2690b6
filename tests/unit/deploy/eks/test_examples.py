"""The examples fit their machines, and their READMEs say what the budget says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from baton.spec.budget import budgets_of
from baton.spec.check import examine
from baton.spec.load import load_text
from baton.spec.machine import GIB
from baton.spec.model_facts import facts_from_config
from tests.unit.deploy.eks.rendered import EXAMPLES, G6, P5, app_text, layout

if TYPE_CHECKING:
    from baton.spec.budget import RoleBudget
    from baton.spec.model_facts import ModelFacts

# Qwen/Qwen3.5-9B: three linear attention layers, one full, eight times.
QWEN = facts_from_config(
    {
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "qwen3_5_text", "num_hidden_layers": 32, "hidden_size": 4096,
            "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "max_position_embeddings": 262_144,
            "mamba_ssm_dtype": "float32",
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
        },
    },
    "Qwen/Qwen3.5-9B",
    18 * GIB,
)  # fmt: skip
# meta-llama/Llama-3.3-70B-Instruct.
LLAMA = facts_from_config(
    {
        "model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 80,
        "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
    },
    "meta-llama/Llama-3.3-70B-Instruct",
    132 * GIB,
)  # fmt: skip


def budgets(name: str, facts: ModelFacts) -> list[RoleBudget]:
    report = examine(load_text(app_text(name), "app.yaml", {}), look_for_model=False)
    assert report.checked is not None
    found = budgets_of(replace(report.checked.applications[0], facts=facts), None)
    assert found is not None
    return found


@pytest.mark.parametrize(("name", "facts"), [(G6, QWEN), (P5, LLAMA)])
def test_weights_and_full_sequences_fit_the_gpu(name: str, facts: ModelFacts) -> None:
    """The context that is asked for, as often at once as `max_num_seqs` says, or once at least."""
    for budget in budgets(name, facts):
        assert budget.kv_room_bytes is not None
        assert budget.kv_bytes_of_context is not None
        assert budget.kv_bytes_of_context <= budget.kv_room_bytes
        if name == G6:
            assert budget.kv_bytes_of_context * budget.concurrency <= budget.kv_room_bytes


def test_the_readme_of_the_g6_example_says_what_the_budget_says() -> None:
    """Every figure of its table."""
    text = (EXAMPLES / G6 / "README.md").read_text(encoding="utf-8")
    (budget, _) = budgets(G6, QWEN)
    assert budget.room_bytes is not None
    assert budget.kv_room_bytes is not None
    assert budget.kv_bytes_of_context is not None
    assert budget.largest_context is not None
    of_context = budget.kv_bytes_of_context
    figures = {
        "room: 0.90 of 22 GiB": f"{budget.room_bytes / GIB:.1f} GiB",
        "weights": f"{budget.weights_bytes / GIB:.1f} GiB",
        "left for KV": f"{budget.kv_room_bytes / GIB:.1f} GiB",
        "KV of a token": f"{budget.kv_bytes_per_token // 1024} KiB",
        "KV and states of a sequence of 8,192 tokens": f"{of_context / GIB:.1f} GiB",
        "such sequences at once": f"{budget.kv_room_bytes // of_context}",
        "largest `max_model_len` with four at once": f"{budget.largest_context:,}",
    }
    for what, figure in figures.items():
        assert f"| {what} | {figure} |" in text


def test_the_g6_example_has_what_a_hybrid_model_needs() -> None:
    """DS in both roles, written down and not only supplied; one length and one type of numbers."""
    assert QWEN.has_mamba
    roles = layout(G6).app.roles
    assert {role.env_vars["VLLM_SSM_CONV_STATE_LAYOUT"] for role in roles.values()} == {"DS"}
    assert {role.max_model_len for role in roles.values()} == {8192}
    report = examine(load_text(app_text(G6), "app.yaml", {}), look_for_model=False)
    assert report.faults == ()
