"""`--on cpu`: a GPU file on this machine, with every change named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from baton.errors import ConfigRefused
from baton.spec.adapt import adapt
from baton.spec.check import check
from baton.spec.load import load_text
from baton.spec.rules import find_rule
from tests.unit.spec.files import BASE, LAPTOP, both, spoiled

if TYPE_CHECKING:
    from pathlib import Path

    from baton.spec.checked import CheckedFile
    from baton.spec.faults import Change


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "small-model"
    folder.mkdir()
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"x" * 1024)
    return folder


def adapted(text: str, model: Path | None = None) -> tuple[CheckedFile, list[Change]]:
    checked = check(load_text(text, "app.yaml", {}), on="cpu")
    return adapt(checked, on="cpu", machine=LAPTOP, replacement_model=model)


def test_the_good_base_becomes_a_cpu_file(model: Path) -> None:
    """CPU bundles, host KV, UCX, a model that is here; the model_id stays."""
    file, _ = adapted(BASE, model)
    app = file.applications[0]
    for role in ("prefill", "decode"):
        spec = app.roles[role]
        config = app.args[f"{role}_config"]
        assert spec.on_cpu
        assert config["placement_group_config"] == {"bundles": [{"CPU": 1}]}
        assert spec.kv_transfer_config["kv_buffer_device"] == "cpu"
        assert spec.kv_transfer_config["kv_connector_extra_config"]["backends"] == ["UCX"]
        assert "gpu_memory_utilization" not in config["engine_kwargs"]
        assert spec.env_vars["VLLM_CPU_KVCACHE_SPACE"] == "1"
        assert spec.model_id == "qwen3.5-9b"
        assert spec.model_source == str(model)
        assert spec.max_model_len == 2048
    assert app.answering_model == "small-model"
    assert app.baton.transport.require == "any"


def test_every_change_is_a_rule_that_can_be_explained(model: Path) -> None:
    """With before, after and place."""
    _, changes = adapted(BASE, model)
    assert len(changes) > 10
    for change in changes:
        assert find_rule(change.rule_id) is not None
        assert change.place.line > 0
        assert change.before != change.after


def test_what_is_deployed_is_the_adapted_file(model: Path) -> None:
    """`to_serve_config` and the typed values agree."""
    file, _ = adapted(BASE, model)
    assert file.to_serve_config()["applications"][0]["args"] == file.applications[0].args


def test_a_model_that_is_here_and_fits_is_kept(model: Path) -> None:
    """The demo model is only for when there is no other way."""
    file, changes = adapted(
        BASE.replace("Qwen/Qwen3.5-9B", str(model)).replace("4096", "2048"), model
    )
    assert file.applications[0].answering_model is None
    assert "BTN-230" not in {change.rule_id for change in changes}


def test_what_the_user_set_for_cpu_is_kept(model: Path) -> None:
    """A KV space that the file names is not overwritten."""

    def spoil(config: Any) -> None:
        config["runtime_env"] = {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "3", "NCCL_DEBUG": "INFO"}}

    file, _ = adapted(spoiled(both(spoil)), model)
    env_vars = file.applications[0].roles["decode"].env_vars
    assert env_vars["VLLM_CPU_KVCACHE_SPACE"] == "3"
    assert "NCCL_DEBUG" not in env_vars


def test_a_cpu_file_is_left_alone(model: Path) -> None:
    """A second adaptation finds nothing to do."""
    file, _ = adapted(BASE, model)
    _, again = adapt(file, on="cpu", machine=LAPTOP, replacement_model=model)
    assert again == []


def test_gpus_and_accelerators_are_removed(model: Path) -> None:
    """Ray would wait for them without end."""

    def spoil(config: Any) -> None:
        config["accelerator_type"] = "H100"
        config["placement_group_config"] = {"bundle_per_worker": {"GPU": 1}}
        config["engine_kwargs"]["tensor_parallel_size"] = 2

    file, changes = adapted(spoiled(both(spoil)), model)
    config = file.applications[0].args["decode_config"]
    assert "accelerator_type" not in config
    assert config["placement_group_config"] == {"bundles": [{"CPU": 1}, {"CPU": 1}]}
    assert {"BTN-220", "BTN-221"} <= {change.rule_id for change in changes}


def test_tensor_parallelism_is_reduced_when_the_cores_are_far_too_few(model: Path) -> None:
    """Eight workers on two cores only wait for each other."""

    def spoil(config: Any) -> None:
        config["engine_kwargs"]["tensor_parallel_size"] = 4

    file, changes = adapted(spoiled(both(spoil)), model)
    assert file.applications[0].roles["prefill"].tensor_parallel_size == 1
    assert "BTN-228" in {change.rule_id for change in changes}


def test_an_adapted_file_that_cannot_run_here_is_refused(model: Path) -> None:
    """More memory than the machine has stays more memory than the machine has."""

    def spoil(config: Any) -> None:
        config["runtime_env"] = {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "30"}}

    with pytest.raises(ConfigRefused, match="GiB"):
        adapted(spoiled(both(spoil)), model)


def test_only_cpu_is_a_target() -> None:
    """A slip of the caller, not of the file."""
    with pytest.raises(ValueError, match="cpu"):
        adapt(check(load_text(BASE, "app.yaml", {})), on="tpu")
