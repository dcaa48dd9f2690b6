"""Finds the one line that matters in what an engine wrote before it died.

An engine's last words are seldom the reason: vLLM's processes die one after the other, and each
reports the death of the one below it ("Engine core initialization failed. See root cause above").
The reason is the first exception line that is not such a report. An exception that was raised while
another one was handled replaces it: the first was expected, the second was not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# `pkg.SomeError: text`, behind whatever prefix a logger put in front.
_EXCEPTION = re.compile(r"(?:^|[\s\]])((?:[A-Za-z_][\w.]*\.)?[A-Z]\w*): (.+)$")
_ERROR_NAME = re.compile(r"(?:Error|Exception|Refused|Unfit|Taken|Failed|Exit)$")
_KILLED = re.compile(
    r"(?i)\b(out of memory|oom-?kill|killed by signal|SIGKILL|SIGSEGV|core dumped)\b"
)
# These report that something below has died; they are kept only when nothing better is found.
_FOLLOW_ON = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "Failed core proc",
    "EngineDeadError",
    "RayTaskError",
    "The actor died",
    "ActorDiedError",
    "Exception in worker",
    "cannot schedule new futures",
    "Executor failed",
)
_WHILE_HANDLING = "During handling of the above exception, another exception occurred"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LINE_MAX = 400


@dataclass(frozen=True)
class RootCause:
    """The line, and the file where the rest is."""

    line: str
    file: Path | None = None


def root_cause(lines: Iterable[str]) -> str | None:
    """The first exception line that is no mere report of another death; None when there is none."""
    follow_on: str | None = None
    candidate: str | None = None
    for raw in lines:
        line = _COLOUR.sub("", raw).rstrip()
        if _WHILE_HANDLING in line:
            candidate = None
            continue
        if _KILLED.search(line):
            return line.strip()[-LINE_MAX:]
        found = _EXCEPTION.search(line)
        if found is None or not _ERROR_NAME.search(found[1]) or found[2].startswith("Traceback"):
            continue
        text = f"{found[1].rsplit('.', 1)[-1]}: {found[2]}"[:LINE_MAX]
        if any(mark in text for mark in _FOLLOW_ON):
            follow_on = follow_on or text
        else:
            candidate = candidate or text
    return candidate or follow_on


def search_logs(folder: Path, *, newer_than_s: float) -> RootCause | None:
    """Look through a Ray session's worker and replica logs for the reason of a failed start.

    Args:
        folder: Ray's temporary folder (the one with `session_latest`).
        newer_than_s: files last written before this time (seconds since the epoch) are left out.
    """
    logs = folder / "session_latest" / "logs"
    candidates = [*logs.glob("worker-*.err"), *logs.glob("worker-*.out"), *logs.glob("serve/*.log")]
    fallback: RootCause | None = None
    for path in sorted(candidates, key=_written_at):
        if _written_at(path) < newer_than_s:
            continue
        with path.open(encoding="utf-8", errors="replace") as file:
            line = root_cause(file)
        if line is None:
            continue
        if not any(mark in line for mark in _FOLLOW_ON):
            return RootCause(line, path)
        fallback = fallback or RootCause(line, path)
    return fallback


def _written_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
