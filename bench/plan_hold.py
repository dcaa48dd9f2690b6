"""Keeps the memory of processes in place, on a virtual machine whose host takes idle pages away.

Some hosts unmap what a guest has not touched lately; the next access of each page goes through the
hypervisor. The guest sees no fault, only time: reading one byte of each page of a mapped library
of 434 MB took 7 ms, and 229 ms after two seconds (bench/results/plan_real_pages.json; `--show FILE`
measures it). An engine that had a pause then pays for its whole working set, by the hour more or
less of it, and no figure of a load repeats.

So one byte of each resident page is read again and again, at idle priority: whoever wants the
processor gets it. Pages that several processes share are read once.

    python bench/plan_hold.py PID [PID ...]
    python bench/plan_hold.py --show .venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PAGE = os.sysconf("SC_PAGE_SIZE")
AT_ONCE = 64
"""Pages a call: the kernel does not always stop in one for somebody more urgent."""
ANEW_S = 20.0
"""How often processes are looked at for new pages."""
REST_S = 0.02
TIMES = 3
"""That a file is read after each pause."""
TAKEN = 4.0
"""So many times as long to read after a pause: pages were away. Noise is less."""
PRESENT, FRAME = 1 << 63, (1 << 55) - 1


class _Place(ctypes.Structure):
    """`struct iovec`."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def resident(pid: int, seen: set[int]) -> list[int]:
    """Addresses of pages that are in memory, without those that were seen by their frame."""
    found = []
    with (
        open(f"/proc/{pid}/maps", encoding="utf-8") as maps,  # noqa: PTH123 - not a file
        open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap,  # noqa: PTH123
    ):
        for line in maps:
            span, allowed, *_ = line.split()
            begin, end = (int(part, 16) for part in span.split("-"))
            if "r" not in allowed or "[v" in line:
                continue
            pagemap.seek(begin // PAGE * 8)
            raw = pagemap.read((end - begin) // PAGE * 8)
            for number, (entry,) in enumerate(struct.iter_unpack("<Q", raw)):
                frame = entry & FRAME  # 0 for all without privileges
                if not entry & PRESENT or frame in seen:
                    continue
                if frame:
                    seen.add(frame)
                found.append(begin + number * PAGE)
    return found


def hold(pids: Sequence[int]) -> None:
    """Until none of them is left."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    into = ctypes.create_string_buffer(AT_ONCE)
    local = _Place(ctypes.addressof(into), AT_ONCE)
    while True:
        seen: set[int] = set()
        places = []
        for pid in [each for one in pids for each in family(one)]:
            with contextlib.suppress(OSError):
                pages = resident(pid, seen)
                if pages:  # one that has ended and was not waited for has none
                    places.append((pid, (_Place * len(pages))(*((page, 1) for page in pages))))
        if not places:
            return
        until = time.monotonic() + ANEW_S
        while time.monotonic() < until:
            for pid, pages in places:
                for first in range(0, len(pages), AT_ONCE):
                    count = min(AT_ONCE, len(pages) - first)
                    there = ctypes.byref(pages, first * ctypes.sizeof(_Place))
                    local.size = count
                    read(pid, ctypes.byref(local), 1, there, count, 0)
            time.sleep(REST_S)


@contextlib.contextmanager
def held(pids: Sequence[int]) -> Iterator[None]:
    """A process beside this one does it."""
    with subprocess.Popen([sys.executable, __file__, *map(str, pids)]) as holder:
        try:
            yield
        finally:
            holder.kill()


def largest_file(pid: int) -> Path:
    """Of those that a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    files = {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if "/" in line}
    return max((one for one in files if one.is_file()), key=lambda one: one.stat().st_size)


def show(path: Path, pauses_s: Sequence[float] = (0.0, 0.1, 0.5, 2.0)) -> dict[str, float]:
    """Milliseconds to read a byte of each page of a mapped file, after pauses.

    The least of a few times: a process that had to wait once has lost no pages.
    """
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
    ):
        found = {"file_mb": len(view) / 1e6}
        bytes(view[::PAGE])
        for pause_s in pauses_s:
            least = min(_read_after(view, pause_s) for _ in range(TIMES))
            found[f"after_{pause_s:g}_s_ms"] = round(1e3 * least, 1)
    return found


def _read_after(view: memoryview, pause_s: float) -> float:
    bytes(view[::PAGE])
    time.sleep(pause_s)
    begun = time.perf_counter()
    bytes(view[::PAGE])
    return time.perf_counter() - begun


def takes_pages_away(shown: dict[str, float]) -> bool:
    """Whether what `show` found says that the host does."""
    return shown["after_2_s_ms"] > TAKEN * shown["after_0_s_ms"]


def main() -> None:
    """Hold, or show why."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pids", type=int, nargs="*")
    parser.add_argument("--show", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.show:
        print(json.dumps(show(given.show)))
    else:
        hold(given.pids)


if __name__ == "__main__":
    main()
