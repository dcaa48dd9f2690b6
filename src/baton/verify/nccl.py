"""Reads what nccl-tests' `all_reduce_perf` prints: the bus bandwidth that NCCL reaches here.

Tensor-parallel engines talk NCCL among their own workers, on the same devices as KV. It is no part
of a pair's verdict; a node whose NCCL crawls has a fabric that is worth a look.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import NamedTuple

from baton.errors import EnvironmentUnfit

PROGRAM = "all_reduce_perf"
TIMEOUT_S = 120.0
# size count type redop root, then time algbw busbw #wrong twice: out of place and in place
# (github.com/NVIDIA/nccl-tests, src/common.cu).
_ROW = re.compile(
    r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+"
    r"\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s+(\S+)"
    r"\s+[\d.]+\s+[\d.]+\s+([\d.]+)\s+(\S+)"
)
_AVERAGE = re.compile(r"^#\s*Avg bus bandwidth\s*:\s*([\d.]+)", re.MULTILINE)


class AllReduce(NamedTuple):
    """What it measured, in GB/s of bus bandwidth. `wrong` counts results that were not right."""

    largest_bytes: int
    largest_gb_per_s: float
    average_gb_per_s: float | None
    wrong: int


def read_all_reduce(text: str) -> AllReduce | None:
    """The figures in its output; None when it has no line of results."""
    rows = [match for line in text.splitlines() if (match := _ROW.match(line)) is not None]
    if not rows:
        return None
    last = max(rows, key=lambda row: int(row.group(1)))
    average = _AVERAGE.search(text)
    return AllReduce(
        int(last.group(1)),
        max(float(last.group(2)), float(last.group(4))),
        None if average is None else float(average.group(1)),
        sum(int(n) for row in rows for n in (row.group(3), row.group(5)) if n.isdigit()),
    )


def run_all_reduce(gpus: int) -> AllReduce:
    """Run it on this machine's GPUs.

    Raises:
        EnvironmentUnfit: It is not here, or failed.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise EnvironmentUnfit(
            f"{PROGRAM} is not on this machine",
            cure="run it in an image that has nccl-tests, or leave --nccl out",
        )
    command = [program, "-b", "1M", "-e", "256M", "-f", "4", "-g", str(gpus)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise EnvironmentUnfit(f"{PROGRAM} did not end within {TIMEOUT_S:g} s") from exc
    found = read_all_reduce(done.stdout)
    if found is None:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise EnvironmentUnfit(
            f"{PROGRAM} measured nothing: {said[-1] if said else 'it said nothing'}",
            cure="see that this machine has GPUs and their driver",
        )
    return found
