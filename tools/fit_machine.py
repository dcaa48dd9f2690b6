"""Whether this machine can run the pinned wheels of `requirements/`: asked before any is fetched.

Nothing but Python's own library, and readable by any Python from 3.8 on: a wrong one is among what
is refused here (`setup_env`).
"""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import sys
from pathlib import Path

NEEDS_GLIBC = (2, 28)  # torch's and NIXL's wheels are manylinux_2_28
NEEDS_DISK_BYTES = 4 * 1024**3  # 2.7 GB installed, 0.2 GB the largest download, room to breathe

# Shared libraries that wheels take from the system, and Debian's name for what brings them.
SYSTEM_LIBRARIES = {
    "libnuma.so.1": "libnuma1",  # vLLM's CPU kernels
    "libssl.so.3": "libssl3",  # NIXL
    "libstdc++.so.6": "libstdc++6",
}


class SetupError(Exception):
    """One line that says what is wrong, and a cure."""

    def __init__(self, fact: str, cure: str) -> None:
        super().__init__(fact)
        self.cure = cure


def check_machine(root: Path) -> None:
    """Refuse what the pinned wheels cannot run on, before anything is downloaded.

    Args:
        root: Where the environment will be.

    Raises:
        SetupError: The machine is unfit.
    """
    have = "{}.{}".format(*sys.version_info)
    if sys.version_info[:2] != (3, 11) or platform.python_implementation() != "CPython":
        raise SetupError(
            f"this is {platform.python_implementation()} {have} ({sys.executable}); "
            "the pinned set is for CPython 3.11",
            "install Python 3.11 and run: make env PYTHON=/path/to/python3.11",
        )
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise SetupError(
            f"this is {platform.system()} on {platform.machine()}; "
            "the pinned set is for Linux on x86_64",
            "use an x86-64 Linux machine, or a virtual machine or container of that kind",
        )
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2]) if version else (0, 0)
    if name != "glibc" or numbers < NEEDS_GLIBC:
        raise SetupError(
            f"this system's C library is {name or 'not glibc'} {version}; "
            "torch needs glibc 2.28 or newer",
            "use Debian 12, Ubuntu 22.04, RHEL 9 or newer",
        )
    flags = _cpu_flags()
    if flags and "avx2" not in flags:
        raise SetupError(
            "this processor has no AVX2, which vLLM's CPU build needs",
            "use a machine whose processor has AVX2 (in a virtual machine, pass it through)",
        )
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        raise SetupError(
            f"{sys.executable} comes without ensurepip, so it cannot make an environment",
            "on Debian and Ubuntu: apt-get install python3.11-venv",
        ) from None
    missing = [package for name, package in SYSTEM_LIBRARIES.items() if not _loads(name)]
    if missing:
        raise SetupError(
            f"shared libraries are missing that vLLM or NIXL need (of {', '.join(missing)})",
            f"on Debian and Ubuntu: apt-get install {' '.join(missing)}",
        )
    free = shutil.disk_usage(root).free
    if free < NEEDS_DISK_BYTES:
        raise SetupError(
            f"{free / 1e9:.1f} GB are free on the disk of {root}; the environment needs "
            f"{NEEDS_DISK_BYTES / 1e9:.1f} GB",
            "free some space, or clone to a larger disk",
        )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(found.group(1).split()) if found else set()
