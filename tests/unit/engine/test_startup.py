"""What an engine notes about its own start."""

from __future__ import annotations

import logging
import multiprocessing
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from baton.engine import startup
from baton.engine.startup import PHASES, WorkerClock, between, engine_start, weight_bytes

if TYPE_CHECKING:
    from pathlib import Path

LOADER = "vllm.model_executor.model_loader.default_loader"


def test_phases_follow_each_other_and_add_up_to_the_whole() -> None:
    """Nothing of the time between the first and the last moment is left out or counted twice."""
    phases = between([10.0, 12.5, 15.0, 16.0, 19.0, 19.5, 21.0, 22.0])
    assert list(phases) == list(PHASES)
    assert sum(phases.values()) == pytest.approx(12.0)


def test_a_moment_that_nobody_noted_leaves_its_time_to_the_phase_behind_it() -> None:
    """vLLM's log level may hide the lines that frame the weights."""
    phases = between([10.0, 12.0, 14.0, 15.0, None, None, 20.0, 21.0])
    assert "model and weights" not in phases
    assert phases["KV cache and NIXL"] == pytest.approx(5.0)
    assert sum(phases.values()) == pytest.approx(11.0)


def test_a_moment_out_of_order_counts_nothing_twice() -> None:
    """The phases still add up to the whole."""
    phases = between([10.0, 12.0, 10.0, 15.0, 16.0, 17.0, 20.0, 21.0])
    assert phases["config and tokenizer"] == 0.0
    assert sum(phases.values()) == pytest.approx(11.0)


def test_a_worker_inside_enginecore_is_timed_as_enginecore(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with one GPU: the parent is the replica, whose start is another phase."""
    own = psutil.Process()
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "EngineCore_DP0")
    notes = startup.worker_notes()
    assert notes["core_at"] == own.create_time()
    assert "worker_at" not in notes
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "VllmWorker-0")
    notes = startup.worker_notes()
    assert notes["core_at"] == psutil.Process(own.ppid()).create_time()
    assert notes["worker_at"] == own.create_time()


def test_the_clock_reads_what_vllm_says_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds are vLLM's own, bytes the kernel's; other lines change nothing."""
    clock = WorkerClock()
    read = iter([100, 100 + 2**20])
    monkeypatch.setattr(startup, "bytes_from_storage", lambda: next(read))
    log = logging.getLogger(LOADER)
    log.addHandler(clock)
    log.setLevel(logging.INFO)
    try:
        log.info("Something else took %.2f seconds", 9.0)
        log.info("Starting to load model %s...", "tiny")
        log.info("Loading weights took %.2f seconds", 0.331)
    finally:
        log.removeHandler(clock)
        log.setLevel(logging.NOTSET)
    assert clock.notes["weights_s"] == pytest.approx(0.331)
    assert clock.notes["read_after"] - clock.notes["read_before"] == 2**20
    assert clock.notes["loads_at"] <= clock.notes["loaded_at"]


def test_an_engine_says_how_much_of_its_weights_came_from_disk(tmp_path: Path) -> None:
    """The worker that was done last counts; the size is that of the weight files."""
    (tmp_path / "model.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    began_at = psutil.Process().create_time()
    marks = {name: began_at + after for name, after in
             (("constructed_at", 1.0), ("engine_at", 8.0), ("ready_at", 9.0))}  # fmt: skip
    notes = {
        "core_at": began_at + 2.0, "worker_at": began_at + 3.0, "loads_at": began_at + 4.0,
        "loaded_at": began_at + 6.0, "weights_s": 1.5, "read_before": 10.0, "read_after": 510.0,
    }  # fmt: skip
    earlier = notes | {"loaded_at": began_at + 5.0, "weights_s": 0.5}
    start = engine_start(marks, [earlier, notes], model=str(tmp_path))
    assert (start.weights_bytes, start.weights_from_disk_bytes, start.weights_s) == (1000, 500, 1.5)
    assert start.phases_s["model and weights"] == pytest.approx(2.0)
    assert sum(start.phases_s.values()) == pytest.approx(9.0)
    assert start.phases_s["EngineCore's imports"] == pytest.approx(1.0)
    del notes["worker_at"]  # it runs in EngineCore
    phases = engine_start(marks, [notes], model=str(tmp_path)).phases_s
    assert phases["EngineCore's imports"] == pytest.approx(2.0)
    assert phases["worker's imports"] == 0.0
    assert sum(phases.values()) == pytest.approx(9.0)


def test_workers_that_note_nothing_leave_the_rest(tmp_path: Path) -> None:
    """A start in an environment where the plugin is not installed is timed as far as it goes."""
    began_at = psutil.Process().create_time()
    marks = {"constructed_at": began_at + 1, "engine_at": began_at + 8, "ready_at": began_at + 9}
    start = engine_start(marks, [], model=str(tmp_path / "no-such"))
    assert start.phases_s == {
        "process and imports": 1.0, "KV cache and NIXL": 7.0, "HTTP app": 1.0
    }  # fmt: skip
    assert (start.weights_bytes, start.weights_from_disk_bytes, start.weights_s) == (0, None, None)


def test_weights_that_lie_elsewhere_have_no_size(tmp_path: Path) -> None:
    """A model id of a hub is no folder."""
    assert weight_bytes("org/model") == 0
    assert weight_bytes(str(tmp_path)) == 0


def test_a_process_is_clocked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM loads plugins in each process, and may do so twice."""
    clock = WorkerClock()
    monkeypatch.setattr(startup, "CLOCK", clock)
    try:
        assert startup.clock_worker()
        first = clock.notes["plugins_at"]
        assert not startup.clock_worker()
        assert clock.notes["plugins_at"] == first <= time.time()
        assert logging.getLogger(LOADER).handlers.count(clock) == 1
    finally:
        for name in startup._LOGGERS:
            logging.getLogger(name).removeHandler(clock)
