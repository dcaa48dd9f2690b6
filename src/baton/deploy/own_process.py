"""A process of ours that ends with us, whatever ends us."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from baton.errors import DeployFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_LISTENS = re.compile(r"listens on (http://\S+)")
_PR_SET_PDEATHSIG = 1
_START_S = 60.0
_STOP_S = 10.0
_LOOK_S = 0.05


class OwnProcess:
    """A `baton` command that serves HTTP and says on stderr where.

    It runs in a session of its own, so that Ctrl-C in the terminal reaches only us, and Linux kills
    it when we die (prctl PR_SET_PDEATHSIG).

    Args:
        command: The command line.
        log: Where its output goes; a process that is started again adds to it.
        environment: Beside ours.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._from = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  (it takes no lock)
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def listens(self) -> str:
        """Where it serves, once it does.

        Raises:
            DeployFailed: It ended, or said nothing in time.
        """
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if (found := _LISTENS.search(self._said())) is not None:
                return found.group(1)
            if not self.alive:
                break
            await asyncio.sleep(_LOOK_S)
        lines = self._said().strip().splitlines()
        raise DeployFailed(
            f"a process did not start: {lines[-1] if lines else 'it said nothing'}",
            place=str(self.log),
        )

    def _said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._from)
            return log.read().decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """A signal to its whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.send(signal.SIGKILL)
        await self.gone()

    async def end(self) -> None:
        """SIGTERM; returns when it is gone, or when its time for that has passed."""
        self.send(signal.SIGTERM)
        with contextlib.suppress(DeployFailed):
            await self.gone()

    async def gone(self) -> None:
        """Wait for its end. Raises DeployFailed when it does not come."""
        for _ in range(int(_STOP_S / _LOOK_S)):
            if not self.alive:
                return
            await asyncio.sleep(_LOOK_S)
        raise DeployFailed(f"process {self.pid} does not end", place=str(self.log))

    def end_now(self) -> None:
        """SIGKILL and wait, without an event loop: the last thing that is done."""
        self.send(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
