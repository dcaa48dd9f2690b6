"""How long the parts of an engine's start take, noted where they happen.

Two or three processes come up one after the other: the replica, vLLM's EngineCore, its worker. Each
notes moments on the wall clock, which they share; the worker hands its notes over with its evidence
and the replica turns them into phases, which its lease carries to `baton up --timings`.

Weights are timed by vLLM itself. Its log line is the one place where that time is told (0.29,
model_executor/model_loader/default_loader.py), so a handler reads the record; how many bytes came
from storage meanwhile is the kernel's own count (proc(5), /proc/pid/io, read_bytes). None of them
means that the page cache had them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from baton.spec.lease import EngineStart

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOADS = "Starting to load model"
_LOADED = "Loading weights took"
_LOGGERS = (
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.model_loader.default_loader",
)
_WORKER = "VllmWorker"
"""How vLLM 0.29 names worker processes (v1/executor/multiproc_executor.py)."""
PHASES = (
    "process and imports",
    "config and tokenizer",
    "EngineCore's imports",
    "worker's imports",
    "model and weights",
    "KV cache and NIXL",
    "HTTP app",
)
"""In the order of time. EngineCore is a process of its own, and so are several workers; where there
is one within EngineCore, its imports are EngineCore's."""


class WorkerClock(logging.Handler):
    """What one worker process notes about its own start."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self.notes: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Note the moment of the two lines that frame the weights."""
        text = str(record.msg)
        if text.startswith(_LOADS):
            self.notes["loads_at"] = time.time()
            self._note_read("read_before")
        elif text.startswith(_LOADED):
            self.notes["loaded_at"] = time.time()
            if isinstance(record.args, tuple) and record.args:
                self.notes["weights_s"] = float(str(record.args[0]))
            self._note_read("read_after")

    def _note_read(self, name: str) -> None:
        read = bytes_from_storage()
        if read is not None:
            self.notes[name] = float(read)


CLOCK = WorkerClock()


def clock_worker() -> bool:
    """Let this process note its start; called by vLLM as a plugin, in each of its processes."""
    if "plugins_at" in CLOCK.notes:
        return False
    CLOCK.notes["plugins_at"] = time.time()
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(CLOCK)
    return True


def worker_notes() -> dict[str, float]:
    """What this worker has noted, with when it and its EngineCore were started."""
    own = psutil.Process()
    # An engine's only worker is no process of its own (0.29, UniProcExecutor; on CPUs
    # `one_process`): this is EngineCore, and its parent the replica.
    if not multiprocessing.current_process().name.startswith(_WORKER):
        return CLOCK.notes | {"core_at": own.create_time()}
    core = psutil.Process(own.ppid())
    return CLOCK.notes | {"worker_at": own.create_time(), "core_at": core.create_time()}


def bytes_from_storage() -> int | None:
    """How many bytes this process has had read from a disk; None where that is not told."""
    try:
        text = Path("/proc/self/io").read_text(encoding="ascii")
    except OSError:
        return None
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["read_bytes"]) if "read_bytes" in counts else None


def weight_bytes(model: str) -> int:
    """Bytes of the weight files in a model's folder; 0 when it is not a folder here."""
    folder = Path(model)
    if not folder.is_dir():
        return 0
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def engine_start(
    marks: Mapping[str, float], workers: Sequence[Mapping[str, Any]], *, model: str
) -> EngineStart:
    """The phases of a start, from what replica and workers noted.

    Args:
        marks: of the replica: `constructed_at`, `engine_at`, `ready_at`, seconds since the epoch.
        workers: each worker's notes; the last to be done counts.
        model: its folder, if it is one.
    """
    began_at = psutil.Process(os.getpid()).create_time()
    last: Mapping[str, Any] = max(
        workers, key=lambda notes: float(notes.get("loaded_at", 0.0)), default={}
    )
    moments = (
        began_at,
        marks["constructed_at"],
        last.get("core_at"),
        last.get("worker_at", last.get("loads_at")),
        last.get("loads_at"),
        last.get("loaded_at"),
        marks["engine_at"],
        marks["ready_at"],
    )
    return EngineStart(
        began_at=began_at,
        phases_s=between(moments),
        weights_s=last.get("weights_s"),
        weights_bytes=weight_bytes(model),
        weights_from_disk_bytes=_difference(last.get("read_after"), last.get("read_before")),
    )


def between(moments: Sequence[float | None]) -> dict[str, float]:
    """Seconds of each phase; what a missing moment ended is part of the phase behind it."""
    phases: dict[str, float] = {}
    since = moments[0]
    for name, until in zip(PHASES, moments[1:], strict=True):
        if until is None or since is None:
            continue
        phases[name] = round(max(0.0, until - since), 3)
        since = max(since, until)  # else what a moment out of order takes would count twice
    return phases


def _difference(after: float | None, before: float | None) -> int | None:
    return None if after is None or before is None else int(after - before)
