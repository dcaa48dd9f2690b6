"""Skipping Ray's download step where there is nothing to download."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from baton.engine.callbacks import LocalModel

if TYPE_CHECKING:
    from pathlib import Path


def callback(model: str, mirror: Any = None) -> LocalModel:
    engine = SimpleNamespace(actual_hf_model_id=model, mirror_config=mirror)
    config = SimpleNamespace(get_engine_config=lambda: engine)
    return LocalModel(llm_config=config, ctx_kwargs={})


async def test_a_folder_of_this_node_needs_no_download(tmp_path: Path) -> None:
    """The step would only import vLLM once more."""
    one = callback(str(tmp_path))
    await one.on_before_node_init()
    assert one.ctx.run_init_node is False


@pytest.mark.parametrize(
    ("model", "mirror"), [("Qwen/Qwen3.5-9B", None), ("qwen", SimpleNamespace(bucket_uri="s3://b"))]
)
async def test_a_hub_model_and_a_bucket_keep_the_step(model: str, mirror: Any) -> None:
    """Private models come this way: HF_TOKEN and s3:// are Ray's business."""
    one = callback(model, mirror)
    await one.on_before_node_init()
    assert one.ctx.run_init_node is True


async def test_a_bucket_is_downloaded_even_if_a_folder_has_its_name(tmp_path: Path) -> None:
    """The mirror is where the weights come from; the folder is a coincidence."""
    one = callback(str(tmp_path), SimpleNamespace(bucket_uri="s3://b"))
    await one.on_before_node_init()
    assert one.ctx.run_init_node is True
