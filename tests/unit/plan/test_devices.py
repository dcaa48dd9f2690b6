"""The table of devices: every figure has its source, and agrees with what the checker knows."""

from __future__ import annotations

import pytest

from baton.errors import DeviceUnknown
from baton.plan.devices import MIB, all_gpus, all_instances, find_hardware
from baton.spec.budget import _GPU_GIB


def test_every_figure_has_a_source_and_a_date() -> None:
    """A price as well, where there is one; where there is none it is unknown."""
    for gpu in all_gpus().values():
        assert gpu.source.text
        assert gpu.source.date
    for instance in all_instances().values():
        assert instance.gpu in all_gpus()
        assert instance.source.date
        assert (instance.usd_per_hour is None) == (instance.price_source is None)


def test_memory_is_what_the_checker_budgets_with() -> None:
    """Within the GiB that one of them rounds down."""
    for name, gpu in all_gpus().items():
        assert _GPU_GIB[name] == pytest.approx(gpu.memory_bytes / (1024 * MIB), abs=2)


@pytest.mark.parametrize(
    ("name", "gpu", "instances"),
    [("h100", "H100", 2), ("p5", "H100", 2), ("p5.48xlarge", "H100", 1), ("g6e", "L40S", 5)],
)
def test_hardware_is_found_by_gpu_family_or_instance(name: str, gpu: str, instances: int) -> None:
    """An instance type is then the only one that is bought."""
    found = find_hardware(name)
    assert (found.gpu.name, len(found.instances)) == (gpu, instances)


@pytest.mark.parametrize(("wrong", "meant"), [("H1000", "H100"), ("p5.48xlarg", "p5.48xlarge")])
def test_an_unknown_device_is_refused_with_the_nearest(wrong: str, meant: str) -> None:
    """And with the list."""
    with pytest.raises(DeviceUnknown) as caught:
        find_hardware(wrong)
    assert f"did you mean `{meant}`?" in caught.value.cure
    assert "B200" in caught.value.cure
