"""A CPU engine's only worker runs in its EngineCore."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from baton.engine import late_patches, one_process


class MultiprocExecutor:
    """Stands for vLLM's, with a process for each worker."""


class UniProcExecutor:
    """Stands for vLLM's, with its worker in EngineCore."""


class RayDistributedExecutor:
    """Stands for another."""


@pytest.fixture
def executors(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for vLLM's modules, on an unbound CPU engine."""

    class Executor:
        @staticmethod
        def get_class(vllm_config: Any) -> type:
            return vllm_config.executor  # type: ignore[no-any-return]

    module = ModuleType("abstract")
    module.Executor = Executor  # type: ignore[attr-defined]
    of_one = ModuleType("uniproc_executor")
    of_one.UniProcExecutor = UniProcExecutor  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, one_process._MODULE, module)
    monkeypatch.setitem(sys.modules, "vllm.v1.executor.uniproc_executor", of_one)
    monkeypatch.setattr(one_process, "cpu_only", lambda: True)
    monkeypatch.setattr(late_patches, "module_exists", lambda _: True)
    monkeypatch.delenv(one_process.SWITCH, raising=False)
    monkeypatch.setenv(one_process.BINDING, "nobind")
    return module


def config(executor: type = MultiprocExecutor, world_size: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        executor=executor, parallel_config=SimpleNamespace(world_size=world_size)
    )


def test_the_only_worker_gets_no_process_of_its_own(executors: ModuleType) -> None:
    """However often the plugin is loaded."""
    assert one_process.keep_worker_in_core()
    assert one_process.keep_worker_in_core()
    assert executors.Executor.get_class(config()) is UniProcExecutor


def test_several_workers_keep_their_processes(executors: ModuleType) -> None:
    """Tensor parallelism needs them."""
    one_process.keep_worker_in_core()
    assert executors.Executor.get_class(config(world_size=2)) is MultiprocExecutor


@pytest.mark.parametrize("binding", ["auto", "0-1", None])
def test_bound_threads_keep_their_process(
    executors: ModuleType, monkeypatch: pytest.MonkeyPatch, binding: str | None
) -> None:
    """OpenMP must read where to run before the process starts."""
    if binding is None:
        monkeypatch.delenv(one_process.BINDING)
    else:
        monkeypatch.setenv(one_process.BINDING, binding)
    one_process.keep_worker_in_core()
    assert executors.Executor.get_class(config()) is MultiprocExecutor


def test_another_executor_is_left_as_it_is(executors: ModuleType) -> None:
    """Whoever asks for Ray's gets Ray's."""
    one_process.keep_worker_in_core()
    chosen = executors.Executor.get_class(config(RayDistributedExecutor))
    assert chosen is RayDistributedExecutor


def test_a_switch_and_a_gpu_build_leave_vllm_alone(
    executors: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has its process then."""
    monkeypatch.setenv(one_process.SWITCH, "1")
    assert not one_process.keep_worker_in_core()
    monkeypatch.delenv(one_process.SWITCH)
    monkeypatch.setattr(one_process, "cpu_only", lambda: False)
    assert not one_process.keep_worker_in_core()
    assert executors.Executor.get_class(config()) is MultiprocExecutor


def test_a_vllm_without_the_place_is_left_alone(
    executors: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning that says which place is missing."""
    del executors.Executor.get_class
    one_process.keep_worker_in_core()
    assert "keeps its own process" in caplog.text
    caplog.clear()
    monkeypatch.setattr(late_patches, "module_exists", lambda _: False)
    assert not one_process.keep_worker_in_core()
    assert "keeps its own process" in caplog.text
