"""Runs the contract and integration tests in two lanes, side by side.

Tests on real engines wait for much of their time, for leases, gauges and imports on one core, and
so do the simulated drill, the console and others: one after the other they leave much of two cores
idle. The lanes are those of `--lane` (tests/conftest.py): all that start real engines are in one,
so that few of those run at once; everything else is in the other.

End-to-end tests are not run so. Four engines under a drill, or a cluster of Ray that starts, want
both cores for themselves: side by side they starve each other until gateways see engines as gone.

    python tools/test_lanes.py [PYTEST ARGUMENTS]

Each line of output begins with its lane's name. Ctrl-C and SIGTERM reach both lanes, and are
waited for: their fixtures end the engines and clusters that they started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/contract", "tests/integration")
LANES = {"engines": (FOLDERS,), "others": (FOLDERS,)}
SHOWN = "--durations=25"
NO_TESTS = 5
"""What pytest says where PYTEST ARGUMENTS leave a run without tests."""
PATIENCE_S = 90.0
"""How long fixtures may take to end what they started."""
_LOOK_S = 0.2


@dataclass
class Lane:
    """Runs of pytest, one after the other."""

    name: str
    waiting: list[tuple[str, ...]]
    root: Path
    running: subprocess.Popen[str] | None = None
    ended: list[tuple[str, float, int]] = field(default_factory=list)
    """Folders, seconds, exit status."""
    _began_s: float = 0.0
    _folders: str = ""
    _reader: threading.Thread | None = None

    def go_on(self, arguments: list[str]) -> bool:
        """Note a run that has ended, start the next; whether the lane has more to do."""
        if self.running is not None:
            status = self.running.poll()
            if status is None:
                return True
            if self._reader is not None:
                self._reader.join(PATIENCE_S)
            self.ended.append((self._folders, time.monotonic() - self._began_s, status))
            self.running = None
        if not self.waiting:
            return False
        folders = self.waiting.pop(0)
        self._folders, self._began_s = " ".join(folders), time.monotonic()
        self.running = subprocess.Popen(
            [sys.executable, "-m", "pytest", *folders, "--lane", self.name, SHOWN, *arguments],
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - it takes no lock
        )
        assert self.running.stdout is not None  # noqa: S101 - for mypy
        self._reader = threading.Thread(target=_relay, args=(self.name, self.running.stdout))
        self._reader.start()
        return True

    def stop(self, number: int) -> None:
        """Start nothing more, and send what runs a signal."""
        self.waiting.clear()
        if self.running is not None:
            with contextlib.suppress(ProcessLookupError):
                self.running.send_signal(number)


def _end_with_parent() -> None:
    """A SIGTERM when this process dies, however it dies (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _relay(name: str, output: IO[str]) -> None:
    for line in output:
        sys.stdout.write(f"{name:>9} | {line}")
        sys.stdout.flush()


def run(
    lanes: dict[str, tuple[tuple[str, ...], ...]], arguments: list[str], root: Path = ROOT
) -> int:
    """Run all lanes to their end; the first bad exit status, or 128 and the signal's number."""
    going = [Lane(name, list(parts), root) for name, parts in lanes.items()]
    came: list[int] = []

    def end(number: int, _: object) -> None:
        came.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    patience_ends_s = 0.0
    while sum(lane.go_on(arguments) for lane in going):  # of each, not until one says so
        time.sleep(_LOOK_S)
        if came and not patience_ends_s:
            patience_ends_s = time.monotonic() + PATIENCE_S
            for lane in going:
                # From a terminal Ctrl-C has reached them already; a second one would cut fixtures
                # short. From elsewhere only we have it: SIGTERM ends them in order, too.
                at_terminal = came[0] == signal.SIGINT and os.isatty(0)
                lane.stop(0 if at_terminal else signal.SIGTERM)
        if patience_ends_s and time.monotonic() > patience_ends_s:
            for lane in going:
                lane.stop(signal.SIGKILL)
    runs = [(lane.name, *one) for lane in going for one in lane.ended]
    for name, folders, seconds, status in runs:
        sys.stdout.write(f"{name:>9} | {folders}: {seconds:.0f} s, exit status {status}\n")
    return 128 + came[0] if came else verdict([status for *_, status in runs])


def verdict(statuses: list[int]) -> int:
    """The first that is bad; a run without tests is so only where no run had any."""
    if all(status == NO_TESTS for status in statuses):
        return NO_TESTS
    return next((abs(status) for status in statuses if status not in (0, NO_TESTS)), 0)


if __name__ == "__main__":
    sys.exit(run(LANES, sys.argv[1:]))
