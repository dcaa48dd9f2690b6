"""Lets vLLM's CPU attention use AMX where the processor has it.

Linux hands out AMX tile registers only to a process that asked for them
(`arch_prctl(ARCH_REQ_XCOMP_PERM)`, kernel documentation `arch/x86/xstate.rst`); the first tile
instruction of a process that did not ask is SIGILL. vLLM 0.29 picks its AMX kernel from the
processor's flags alone (`v1/attention/backends/cpu_attn.py`, `_get_attn_isa`) and relies on oneDNN
having asked before. That holds for an engine that prefills: its large bfloat16 products go through
oneDNN first. A decode engine's first step is one token behind KV that came over the wire: no large
product, nobody has asked, and the worker dies without a word. So every vLLM process asks at start,
through vLLM's plugin entry point.
"""

from __future__ import annotations

import ctypes
import logging
import platform
from pathlib import Path

log = logging.getLogger("baton.engine.amx")

_SYS_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def allow_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Ask the kernel for AMX tiles; True when this process may use them.

    Does nothing on a machine without AMX. Safe to call again.
    """
    if platform.machine() != "x86_64" or not _has_amx(cpuinfo):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.syscall(_SYS_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    if refused:
        log.warning("the kernel refused AMX tiles", extra={"errno": ctypes.get_errno()})
    return not refused


def _has_amx(cpuinfo: Path) -> bool:
    try:
        with cpuinfo.open(encoding="utf-8") as file:
            return any(line.startswith("flags") and " amx_tile" in line for line in file)
    except OSError:
        return False
