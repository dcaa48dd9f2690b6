"""An engine's processes do not outlive the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from baton.engine.orphans import end_with_parent

if TYPE_CHECKING:
    from pathlib import Path

PARENT = """
import multiprocessing, sys, time
def child():
    from baton.engine.orphans import end_with_parent
    word = "tied" if end_with_parent() else "free"
    print(word, multiprocessing.current_process().pid, flush=True)
    time.sleep(60)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    context.Process(target=child, name=sys.argv[1]).start()
    time.sleep(60)
"""


def start(name: str, folder: Path) -> tuple[subprocess.Popen[str], str, int]:
    script = folder / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    parent = subprocess.Popen(
        [sys.executable, str(script), name], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    assert parent.stdout is not None
    word, pid = parent.stdout.readline().split()
    return parent, word, int(pid)


@pytest.mark.parametrize("name", ["EngineCore_DP0", "VllmWorker-0"])
def test_an_engine_process_dies_with_a_parent_that_was_killed(name: str, tmp_path: Path) -> None:
    """SIGKILL leaves the parent no time to end its children."""
    parent, word, pid = start(name, tmp_path)
    child = psutil.Process(pid)
    try:
        assert word == "tied"
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=10)
        child.wait(timeout=20)
        assert not child.is_running()
    finally:
        if child.is_running():
            child.kill()
        assert parent.stdout is not None
        parent.stdout.close()


def test_other_processes_are_left_as_they_are(tmp_path: Path) -> None:
    """A user's own multiprocessing children are none of our business."""
    parent, word, pid = start("SomethingElse", tmp_path)
    child = psutil.Process(pid)
    try:
        assert word == "free"
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=10)
        time.sleep(0.3)
        assert child.is_running()
    finally:
        child.kill()
        assert parent.stdout is not None
        parent.stdout.close()


def test_the_first_process_of_all_is_not_tied() -> None:
    """The API server has no parent that is an engine's."""
    assert end_with_parent() is False
