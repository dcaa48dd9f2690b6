"""What a pause in NIXL's progress thread costs and saves on this machine.

Two processes, each with a NIXL agent as vLLM makes it (UCX, four threads, progress thread). In
turn, for several rounds: NIXL's own pause of zero, and ours. Measured: the share of a core that an
idle agent burns, and the time of a READ of host memory between the two processes, as a handoff on
CPU engines does it. Medians; the JSON on stdout goes to bench/results/nixl_pace.json.

    python bench/nixl_pace.py [ROUNDS] > bench/results/nixl_pace.json
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from nixl_cu13._api import nixl_agent, nixl_agent_config

from baton.engine import nixl_pace

SIZES = (1 << 20, 16 << 20)
IDLE_S = 2.0
READS = 20


def make_agent(name: str, pause_us: int, size: int) -> tuple[Any, Any, Any]:
    """An agent with one registered buffer."""
    if pause_us:
        bindings = sys.modules["nixl_cu13._api"].nixlBind
        nixl_pace._wrap(bindings, pause_us)
    agent = nixl_agent(name, nixl_agent_config(num_threads=4, capture_telemetry=True))
    buffer = torch.zeros(size, dtype=torch.uint8)
    agent.register_memory(agent.get_reg_descs([(buffer.data_ptr(), size, 0, "")], "DRAM"))
    return agent, buffer, agent.get_xfer_descs([(buffer.data_ptr(), size, 0)], "DRAM")


def serve(pause_us: int, size: int, pipe: Any) -> None:
    """The prefill side: owns memory and answers nothing by itself."""
    agent, buffer, descriptors = make_agent("owner", pause_us, size)
    pipe.send((agent.get_agent_metadata(), agent.get_serialized_descs(descriptors)))
    pipe.recv()
    del buffer


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read(pause_us: int, size: int, answer: Any) -> None:
    """The decode side: idle for a while, then reads."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    owner = multiprocessing.get_context("spawn").Process(target=serve, args=(pause_us, size, there))
    owner.start()
    metadata, remote = here.recv()
    agent, buffer, local = make_agent("reader", pause_us, size)
    name = agent.add_remote_agent(metadata)
    remote = agent.deserialize_descs(remote)
    times = []
    for _ in range(READS + 1):
        handle = agent.initialize_xfer("READ", local, remote, name, b"done")
        started_s = time.perf_counter()
        agent.transfer(handle)
        while agent.check_xfer_state(handle) == "PROC":
            time.sleep(0)
        times.append(time.perf_counter() - started_s)
        agent.release_xfer_handle(handle)
    before_cpu, before = cpu_s(), time.perf_counter()
    time.sleep(IDLE_S)
    share = (cpu_s() - before_cpu) / (time.perf_counter() - before)
    answer.send((share, statistics.median(times[1:])))
    here.send("end")
    owner.join(10)
    del buffer


def one(pause_us: int, size: int) -> tuple[float, float]:
    """One measurement in processes of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    reader = context.Process(target=read, args=(pause_us, size, there))
    reader.start()
    result: tuple[float, float] = here.recv()
    reader.join(20)
    return result


def main() -> None:
    """Alternate the two settings and print medians and ratios."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    out: dict[str, Any] = {"rounds": rounds, "nixl": version("nixl"), "sizes": {}}
    for size in SIZES:
        found: dict[int, list[tuple[float, float]]] = {0: [], nixl_pace.PAUSE_US: []}
        for _ in range(rounds):
            for pause_us, measured in found.items():
                measured.append(one(pause_us, size))
        medians = {
            str(pause_us): {
                "idle_core_share": round(statistics.median(m[0] for m in measured), 4),
                "read_ms": round(1e3 * statistics.median(m[1] for m in measured), 3),
            }
            for pause_us, measured in found.items()
        }
        ratios = [b[1] / a[1] for a, b in zip(*found.values(), strict=True)]
        medians["read_time_ratio"] = {
            "median": round(statistics.median(ratios), 3),
            "min": round(min(ratios), 3),
            "max": round(max(ratios), 3),
        }
        out["sizes"][str(size)] = medians
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
