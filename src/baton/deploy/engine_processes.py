"""An engine's processes: the one that answers HTTP, its EngineCore, and the workers below it."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import psutil

from baton.errors import NotRunning

if TYPE_CHECKING:
    from collections.abc import Sequence

CORE = "EngineCore"
"""Stands in the title of vLLM's core process (0.29, v1/engine/core.py `set_process_title`)."""
_GONE_S = 10.0


def tree(pid: int) -> list[psutil.Process]:
    """A process and all below it, the deepest last; empty when it is gone."""
    with contextlib.suppress(psutil.Error):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


def core_of(pid: int) -> psutil.Process:
    """The EngineCore of the engine whose HTTP process this is.

    Raises:
        NotRunning: There is none.
    """
    for process in tree(pid)[1:]:
        with contextlib.suppress(psutil.Error):
            if CORE in " ".join([process.name(), *process.cmdline()]):
                return process
    raise NotRunning(f"process {pid} has no EngineCore", cure="is it an engine, and alive?")


def kill(pid: int, *, core_only: bool) -> None:
    """SIGKILL for an engine, or for its EngineCore alone; returns when that is gone.

    Raises:
        NotRunning: It is not there.
    """
    victims = [core_of(pid)] if core_only else tree(pid)
    if not victims:
        raise NotRunning(f"there is no process {pid}")
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
    _wait_until_gone(victims)


def _wait_until_gone(victims: Sequence[psutil.Process]) -> None:
    # A zombie has ended; whose child it was is not our business.
    _, alive = psutil.wait_procs(victims, timeout=0.2)
    for victim in alive:
        with contextlib.suppress(psutil.Error):
            if victim.status() != psutil.STATUS_ZOMBIE:
                victim.wait(_GONE_S)


def freeze(pid: int) -> None:
    """SIGSTOP for all of it: the kernel accepts connections, and nobody reads them."""
    for process in tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()


def thaw(pid: int) -> None:
    """SIGCONT for all of it."""
    for process in reversed(tree(pid)):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
