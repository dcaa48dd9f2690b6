"""What a machine has: cores, memory, GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

GIB = 1024**3


@dataclass(frozen=True)
class Machine:
    """A machine that engines would run on. Sizes in bytes."""

    cores: int = 1
    memory_bytes: int = 0
    gpus: int = 0
    gpu_memory_bytes: int = 0
    gpu_name: str = ""
    driver: str = ""

    @classmethod
    def here(cls) -> Machine:
        """The machine that this process runs on, as far as its container lets it use it."""
        gpus = _gpus()
        return cls(
            cores=_cores(),
            memory_bytes=_memory_bytes(),
            gpus=len(gpus),
            gpu_memory_bytes=min((size for _, size, _ in gpus), default=0),
            gpu_name=gpus[0][0] if gpus else "",
            driver=gpus[0][2] if gpus else "",
        )


def in_gib(size: float) -> str:
    """Bytes as `1.5 GiB`, or `12 MiB` when that says more."""
    if size < GIB / 10:
        return f"{size / 1024**2:.0f} MiB"
    return f"{size / GIB:.1f} GiB"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_bytes() -> int:
    """The machine's memory, or the limit of the cgroup around us if that is less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            sizes.append(int(text))
    return min(sizes)


def _gpus() -> list[tuple[str, int, str]]:
    """Name, memory and driver of each NVIDIA GPU; empty when there is no driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        answer = subprocess.run(
            [tool, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    found = []
    for line in answer.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 3 and parts[1].isdigit():  # noqa: PLR2004 - the three of the query
            found.append((parts[0], int(parts[1]) * 1024**2, parts[2]))
    return found
