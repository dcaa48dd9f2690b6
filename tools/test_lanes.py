"""Runs the contract and integration tests in three lanes, side by side.

Tests on real engines wait for much of their time, for leases, gauges and imports on one core, and
so does the simulated drill: one after the other they leave much of two cores idle. The lanes are
those of `--lane` (tests/conftest.py): all that start real engines are in one, so that few of those
run at once; the drill with simulated engines is in one; everything else is in the third.

End-to-end tests are not run so. Four engines under a drill, or a cluster of Ray that starts, want
both cores for themselves: side by side they starve each other until gateways see engines as gone.

    python tools/test_lanes.py [PYTEST ARGUMENTS]

Each line of output begins with its lane's name. Ctrl-C and SIGTERM reach all lanes, and are
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
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/contract", "tests/integration")
LANES = ("engines", "drill", "others")
SHOWN = "--durations=25"
NO_TESTS = 5
"""What pytest says where PYTEST ARGUMENTS leave a lane without tests."""
PATIENCE_S = 90.0
"""How long fixtures may take to end what they started."""
_LOOK_S = 0.2
_LAST_WORDS_S = 10.0


class Lane:
    """One run of pytest.

    Args:
        name: What `--lane` is told.
        arguments: Folders, and whatever else pytest is told.
        root: Where.
    """

    def __init__(self, name: str, arguments: Sequence[str], root: Path) -> None:
        self.name = name
        self.seconds: float | None = None
        self._began_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "--lane", name, SHOWN, *arguments],
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - it takes no lock
        )
        # A daemon: whatever a test left behind may hold the pipe open.
        self._reader = threading.Thread(
            target=_relay, args=(name, self._process.stdout), daemon=True
        )
        self._reader.start()

    def ended(self) -> int | None:
        """The exit status, once it has one."""
        status = self._process.poll()
        if status is not None and self.seconds is None:
            self._reader.join(_LAST_WORDS_S)
            self.seconds = time.monotonic() - self._began_s
        return status

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)


def _end_with_parent() -> None:
    """A SIGTERM when this process dies, however it dies (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _relay(name: str, output: IO[str]) -> None:
    for line in output:
        sys.stdout.write(f"{name:>9} | {line}")
        sys.stdout.flush()


def run(names: Sequence[str], arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run all lanes to their end; the first bad exit status, or 128 and the signal's number."""
    came: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: came.append(number))
    lanes = [Lane(name, arguments, root) for name in names]
    patience_ends_s = 0.0
    while None in [lane.ended() for lane in lanes]:
        time.sleep(_LOOK_S)
        if came and not patience_ends_s:
            patience_ends_s = time.monotonic() + PATIENCE_S
            # From a terminal Ctrl-C has reached them already, and a second one would cut fixtures
            # short. From elsewhere only we have it: SIGTERM ends them in order, too.
            if came[0] != signal.SIGINT or not os.isatty(0):
                for lane in lanes:
                    lane.send(signal.SIGTERM)
        if patience_ends_s and time.monotonic() > patience_ends_s:
            for lane in lanes:
                lane.send(signal.SIGKILL)
    statuses = [lane.ended() or 0 for lane in lanes]
    for lane, status in zip(lanes, statuses, strict=True):
        sys.stdout.write(f"{lane.name:>9} | {lane.seconds or 0:.0f} s, exit status {status}\n")
    return 128 + came[0] if came else verdict(statuses)


def verdict(statuses: list[int]) -> int:
    """The first that is bad; a lane without tests is so only where no lane had any."""
    if all(status == NO_TESTS for status in statuses):
        return NO_TESTS
    return next((abs(status) for status in statuses if status not in (0, NO_TESTS)), 0)


if __name__ == "__main__":
    sys.exit(run(LANES, [*FOLDERS, *sys.argv[1:]]))
