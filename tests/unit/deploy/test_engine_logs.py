"""The one line that matters, found in logs as vLLM and Ray write them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from baton.deploy.engine_logs import root_cause, search_logs

if TYPE_CHECKING:
    from pathlib import Path

ENGINE_CORE = """\
(EngineCore pid=12) INFO 11-29 [core.py:1] Initializing
(EngineCore pid=12) ERROR 11-29 [core.py:1376] Traceback (most recent call last):
(EngineCore pid=12) ERROR 11-29 [core.py:1376]   File "x.py", line 3, in f
(EngineCore pid=12) ERROR 11-29 [core.py:1376] ValueError: No available memory for the cache blocks.
Traceback (most recent call last):
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""

HANDLED = """\
Traceback (most recent call last):
ValueError: Failed to look up actor with name 'directory:x'.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
ValueError: Cannot schedule DirectoryActor with the placement group
"""


def test_the_reason_is_preferred_to_the_reports_of_it() -> None:
    """vLLM's last line only says that something below has failed."""
    found = root_cause(ENGINE_CORE.splitlines())
    assert found == "ValueError: No available memory for the cache blocks."


def test_an_exception_that_was_being_handled_is_not_the_reason() -> None:
    """A look-up that may fail did; what came after it was not expected."""
    found = root_cause(HANDLED.splitlines())
    assert found == "ValueError: Cannot schedule DirectoryActor with the placement group"


def test_a_report_is_better_than_nothing() -> None:
    """When the reason was never written, the report is shown."""
    text = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    assert root_cause([text]) == "EngineDeadError: EngineCore encountered an issue."


def test_a_killed_process_is_named() -> None:
    """The kernel's or a supervisor's words carry no exception."""
    line = "worker 7 was killed: out of memory"
    assert root_cause(["all well", line]) == line


def test_colours_and_ordinary_lines_do_not_mislead() -> None:
    """`INFO: x` and `Note: y` are no exceptions; escape codes are no part of one."""
    lines = ["INFO: starting", "Note: this", "\x1b[36m(ray)\x1b[0m KeyError: 'weights'"]
    assert root_cause(lines) == "KeyError: 'weights'"
    assert root_cause(lines[:2]) is None


def test_logs_from_before_this_start_are_left_out(tmp_path: Path) -> None:
    """Yesterday's failure must not explain today's."""
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    old, new = logs / "worker-1.err", logs / "worker-2.out"
    old.write_text("ValueError: yesterday\n", encoding="utf-8")
    new.write_text("ValueError: today\n", encoding="utf-8")
    os.utime(old, (100, 100))
    os.utime(new, (300, 300))
    found = search_logs(tmp_path, newer_than_s=200)
    assert found is not None
    assert (found.line, found.file) == ("ValueError: today", new)
    assert search_logs(tmp_path, newer_than_s=400) is None


def test_a_reason_in_a_later_file_beats_a_report_in_an_earlier_one(tmp_path: Path) -> None:
    """The replica's log may be written before the engine core's."""
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    first, second = logs / "worker-1.err", logs / "worker-2.out"
    first.write_text("RuntimeError: Engine core initialization failed.\n", encoding="utf-8")
    second.write_text("OSError: no config.json in /models/x\n", encoding="utf-8")
    os.utime(first, (300, 300))
    os.utime(second, (301, 301))
    found = search_logs(tmp_path, newer_than_s=0)
    assert found is not None
    assert found.line == "OSError: no config.json in /models/x"
