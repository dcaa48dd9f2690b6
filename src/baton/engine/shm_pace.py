"""Keeps vLLM's processes from starving each other while they wait on shared memory.

vLLM 0.29's EngineCore and its worker talk through a ring buffer in shared memory. Whoever waits
there spins on `sched_yield` until a second has passed since the last message (`SpinCondition`,
vllm/distributed/device_communicators/shm_broadcast.py). On a GPU host that costs a core of dozens.
Where two engines share two cores it costs the model its core; and Linux 6.6 and newer (EEVDF) takes
every yield for a slice that was used up, so that a process which has spun for a while is passed
over for seconds as soon as others are runnable: steps stood still on an all but idle machine, and
prefill's KV stayed held while decode's release waited for its turn. `os.sched_yield`
also keeps the GIL, which NIXL's handshake thread needs.

So on CPU-only vLLM the waiter sleeps for 50 µs instead. `bench/shm_pace.py` shows both sides of it.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from baton.engine.late_patches import NotKnown, change_of, change_when_imported
from baton.engine.nixl_pace import cpu_only

log = logging.getLogger("baton.engine.shm_pace")

# Microseconds. Two messages make a step, and a step takes milliseconds on a CPU.
PAUSE_US = 50
SWITCH = "BATON_SHM_PAUSE_US"
_MODULE = "vllm.distributed.device_communicators.shm_broadcast"


def pace_shared_memory() -> bool:
    """Let vLLM's shared-memory waiters sleep between two looks; True when that was arranged.

    Takes effect when vLLM imports the module: processes that never wait there do not pay for it.

    Does nothing beside a GPU build of vLLM, or with `BATON_SHM_PAUSE_US=0`. Safe to call again.
    """
    pause_us = int(os.environ.get(SWITCH, PAUSE_US))
    if pause_us <= 0 or not cpu_only():
        return False
    return change_when_imported({_MODULE: lambda ring: _pace(ring, pause_us / 1e6)}, _cannot)


def _cannot(module: str, why: str) -> None:
    log.warning("waiting on shared memory cannot be paced", extra={"reason": f"{module}: {why}"})


@change_of(_MODULE, _cannot)
def _pace(ring: Any, pause_s: float) -> None:
    if not hasattr(ring, "sched_yield"):
        raise NotKnown("it waits in another way")

    def pause() -> None:
        time.sleep(pause_s)

    ring.sched_yield = pause
