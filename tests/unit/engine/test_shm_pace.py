"""Waiting on vLLM's shared memory sleeps on CPU-only engines."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from baton.engine import late_patches, shm_pace


def plain_yield() -> None:
    """Stands for vLLM's own."""


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for vLLM's module."""
    module = ModuleType("shm_broadcast")
    module.sched_yield = plain_yield  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, shm_pace._MODULE, module)
    monkeypatch.setattr(shm_pace, "cpu_only", lambda: True)
    monkeypatch.setattr(late_patches, "module_exists", lambda _: True)
    monkeypatch.delenv(shm_pace.SWITCH, raising=False)
    return module


def test_a_look_is_followed_by_a_sleep(ring: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of our length, or of the one that was asked for."""
    slept: list[float] = []
    monkeypatch.setattr(shm_pace.time, "sleep", slept.append)
    assert shm_pace.pace_shared_memory()
    ring.sched_yield()
    monkeypatch.setenv(shm_pace.SWITCH, "200")
    assert shm_pace.pace_shared_memory()
    ring.sched_yield()
    assert slept == [50e-6, 200e-6]


def test_zero_in_the_environment_leaves_vllm_alone(
    ring: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way back, for whoever measures otherwise."""
    monkeypatch.setenv(shm_pace.SWITCH, "0")
    assert not shm_pace.pace_shared_memory()
    assert ring.sched_yield is plain_yield


def test_beside_a_gpu_build_nothing_is_changed(
    ring: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a core more or less does not matter, and a microsecond may."""
    monkeypatch.setattr(shm_pace, "cpu_only", lambda: False)
    assert not shm_pace.pace_shared_memory()
    assert ring.sched_yield is plain_yield


def test_a_vllm_that_waits_in_another_way_is_left_alone(
    ring: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning: its name in the module is gone."""
    del ring.sched_yield
    shm_pace.pace_shared_memory()
    assert "cannot be paced" in caplog.text
    assert not hasattr(ring, "sched_yield")


def test_a_vllm_without_the_module_is_left_alone(
    ring: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning, and nothing is said to be arranged."""
    monkeypatch.setattr(late_patches, "module_exists", lambda _: False)
    assert not shm_pace.pace_shared_memory()
    assert "cannot be paced" in caplog.text
    assert ring.sched_yield is plain_yield
