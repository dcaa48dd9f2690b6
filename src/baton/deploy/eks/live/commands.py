"""Commands that change something: argv, what is fed to it, and who runs it.

kubectl and helm never see the person's own kubeconfig: the shell sets KUBECONFIG to a file beside
the rendered ones, so that a stray context cannot send a deletion to another cluster.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KUBECONFIG = "kubeconfig"
READING_S = 120.0
"""The longest that a command which only reads may take."""
MISSING = 127
TIMED_OUT = 124


@dataclass(frozen=True)
class Command:
    """One command. `secret` is fed to it and never shown."""

    argv: tuple[str, ...]
    secret: str | None = None
    shown_input: str = ""
    """What stands before the command in a runbook, such as `printenv KEY |`."""

    @property
    def text(self) -> str:
        """As it would be typed."""
        return self.shown_input + shlex.join(self.argv)


def command(line: str, *more: str) -> Command:
    """A command from a line without anything that needs quoting, and further words."""
    return Command((*line.split(), *more))


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def reason(self) -> str:
        """The line of its output that says what was wrong."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        telling = [x for x in lines if "error" in x.lower() or "cannot" in x.lower()]
        return (telling or lines or [f"exit status {self.code}"])[-1][:400]


class Runner(Protocol):
    """Who runs commands."""

    def read(self, argv: tuple[str, ...], limit_s: float = READING_S) -> Done:
        """Runs a command that only reads, for `limit_s` at most."""
        ...

    def change(self, command: Command, watch: Callable[[], None]) -> Done:
        """Runs a command that changes something; `watch` is called every few seconds.

        What `watch` raises ends the command.
        """
        ...


class Shell:
    """The real commands, in the folder of the rendered files."""

    def __init__(self, folder: Path, *, every_s: float = 10.0) -> None:
        self.folder = folder
        self.every_s = every_s
        self.env = {**os.environ, "KUBECONFIG": str(folder / KUBECONFIG)}

    def read(self, argv: tuple[str, ...], limit_s: float = READING_S) -> Done:
        """Runs a command that only reads. A program that is not there answers 127."""
        try:
            ended = subprocess.run(
                argv, cwd=self.folder, env=self.env, capture_output=True, text=True,
                check=False, timeout=limit_s, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            return Done(MISSING, err=f"{argv[0]}: not found")
        except subprocess.TimeoutExpired:
            return Done(TIMED_OUT, err=f"{argv[0]} did not answer within {limit_s:g} s")
        return Done(ended.returncode, ended.stdout, ended.stderr)

    def change(self, command: Command, watch: Callable[[], None]) -> Done:
        """Runs it to its end and keeps its output.

        Ctrl-C reaches the command as well, as it would in a shell. What eksctl has handed to
        CloudFormation goes on there: the next run finds it `creating`.
        """
        with tempfile.TemporaryFile() as out:
            try:
                process = subprocess.Popen(
                    command.argv, cwd=self.folder, env=self.env, stdout=out,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL if command.secret is None else subprocess.PIPE,
                )  # fmt: skip
            except FileNotFoundError:
                return Done(MISSING, err=f"{command.argv[0]}: not found")
            try:
                if command.secret is not None and process.stdin is not None:
                    process.stdin.write(command.secret.encode())
                    process.stdin.close()
                looked = time.monotonic()
                while process.poll() is None:
                    time.sleep(0.05)
                    if time.monotonic() - looked >= self.every_s:
                        watch()
                        looked = time.monotonic()
            except BaseException:
                _end(process)
                raise
            out.seek(0)
            text = out.read().decode("utf-8", "replace")
        return Done(process.returncode, text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends our own child, gently first."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
