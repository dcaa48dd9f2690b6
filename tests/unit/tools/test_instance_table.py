"""The table of instance types is what the tool makes of moto's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from baton.deploy.eks.instances import find_instance, gpu_types, table_source
from baton.spec.budget import _GPU_GIB

TOOL = Path(__file__).parents[3] / "tools" / "generate_instance_table.py"


def test_the_committed_table_is_the_generated_one() -> None:
    """Nobody has edited a figure by hand."""
    pytest.importorskip("moto")
    spec = importlib.util.spec_from_file_location("generate_instance_table", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.TABLE.read_text(encoding="utf-8") == tool.table()


def test_the_figures_of_the_examples_are_ec2s() -> None:
    """As EC2's pages of g6 and p5 have them."""
    g6, p5 = find_instance("g6.8xlarge"), find_instance("p5.48xlarge")
    assert g6 is not None
    assert p5 is not None
    assert (g6.vcpus, g6.gpus, g6.gpu, g6.efa_interfaces) == (32, 1, "L4", 1)
    assert (p5.vcpus, p5.gpus, p5.gpu, p5.efa_interfaces) == (192, 8, "H100", 32)
    assert find_instance("g6.9xlarge") is None
    assert "2026" in table_source()


def test_gpus_of_the_table_are_known_to_the_memory_budget() -> None:
    """So that a file for a type can be budgeted before it runs."""
    kinds = {i.accelerator_type for name in gpu_types() if (i := find_instance(name)) is not None}
    assert {kind for kind in kinds if kind is not None} <= set(_GPU_GIB)


def test_no_figure_is_missing() -> None:
    """Each GPU type has GPUs, their memory, and room around them."""
    for name in gpu_types():
        instance = find_instance(name)
        assert instance is not None
        assert min(instance.gpus, instance.gpu_memory_mib, instance.vcpus) > 0, name
    text = (TOOL.parents[1] / "src/baton/deploy/eks/instances.json").read_text(encoding="utf-8")
    assert len(json.loads(text)["types"]) > 50
