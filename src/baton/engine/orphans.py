"""An engine's own processes end when the process that started them ends.

vLLM 0.29's EngineCore does not notice that its parent was killed: after a SIGKILL of a replica it
goes on, with its workers, its memory and its side-channel port, and nobody will ever ask it
anything. Linux can tell it (`prctl(PR_SET_PDEATHSIG)`, prctl(2)). Called in every vLLM process
through vLLM's plugin entry point; only those that `multiprocessing` started are meant.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys

log = logging.getLogger("baton.engine.orphans")

_PR_SET_PDEATHSIG = 1
# vLLM 0.29 names them EngineCore_DP0 (v1/engine/utils.py) and VllmWorker-0
# (v1/executor/multiproc_executor.py).
_NAMES = ("EngineCore", "VllmWorker")


def end_with_parent() -> bool:
    """Ask to be killed when the parent dies; True when this process is one of an engine's.

    A parent that died just before is noticed as well.
    """
    parent = multiprocessing.parent_process()
    ours = multiprocessing.current_process().name.startswith(_NAMES)
    if parent is None or not ours or not sys.platform.startswith("linux"):
        return False
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        log.warning("cannot be tied to the parent", extra={"errno": ctypes.get_errno()})
        return False
    if os.getppid() != parent.pid:
        os.kill(os.getpid(), signal.SIGKILL)
    return True
