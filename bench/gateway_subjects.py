"""Who is measured by bench/gateway.py: their processes, what they cost and how much they hold."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from gateway_load import ByHand, Target

from baton.deploy.own_process import OwnProcess
from baton.deploy.processes import free_port, members

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BENCH = Path(__file__).parent
PATHS = os.pathsep.join([str(BENCH.parent / "src"), str(BENCH)])
SETTINGS = """\
baton:
  disaggregate: {mode: always}
  admission: {max_inflight: 4096, max_queue: 4096}
"""
START_S = 60.0
_LISTENS = re.compile(r"listens on (http://\S+)")
_MARKED = re.compile(r"marker (\S+) folder (\S+)")


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Seconds of CPU time that these processes have had, user and system.

    From `/proc/PID/task/*/schedstat`, which counts nanoseconds where `stat` counts hundredths of a
    second. Threads that have ended are missing; the subjects' threads live as long as they do.
    """
    total = 0
    for process in processes:
        for task in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):
                total += int(task.read_text(encoding="ascii").split()[0])
    return total / 1e9


def machine_busy_s() -> float:
    """CPU seconds of all cores that were not idle, since the machine was started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def held_bytes(processes: Sequence[psutil.Process]) -> int:
    """Memory that would be free if they ended: pages that are theirs alone."""
    total = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().uss
    return total


@contextlib.contextmanager
def only_on(core: int | None) -> Iterator[None]:
    """What is started in this block runs on one core."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Subject:
    """One way to an answer.

    Args:
        name: In the report.
        target: Where requests go.
        process: The one that was started; None for calling the engines by hand.
        marker: Of a deployment's processes: mark and folder.
    """

    name: str
    target: Target
    process: OwnProcess | None = None
    marker: tuple[str, str] | None = None
    parts: dict[str, list[psutil.Process]] = field(default_factory=dict)

    @property
    def processes(self) -> list[psutil.Process]:
        """Those that a request goes through."""
        return [one for part in self.parts.values() for one in part]

    def find(self) -> None:
        """Look for the processes; they stay the same while requests run."""
        if self.marker is not None:
            self.parts = _deployed_parts(*self.marker)
        elif self.process is not None:
            first = psutil.Process(self.process.pid)
            self.parts = {self.name: [first, *first.children(recursive=True)]}

    def everybody(self) -> list[psutil.Process]:
        """All processes that are there because of it."""
        if self.process is None:
            return []
        first = psutil.Process(self.process.pid)
        found = {one.pid: one for one in (first, *first.children(recursive=True))}
        if self.marker is not None:
            found |= {one.pid: one for one in members(*self.marker)}
        return list(found.values())


def _deployed_parts(marker: str, folder: str) -> dict[str, list[psutil.Process]]:
    found: dict[str, list[psutil.Process]] = {"haproxy": [], "replica": []}
    for process in members(marker, folder):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("haproxy"):
                found["haproxy"].append(process)
            elif "ServeReplica" in " ".join(process.cmdline()):
                found["replica"].append(process)
    for part, processes in found.items():
        if not processes:
            raise SystemExit(f"error: no process of the deployed {part} was found")
    return found


@dataclass
class Engines:
    """The engine process and its two addresses."""

    process: OwnProcess
    prefill: str
    decode: str

    @property
    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid)]

    def set_step(self, milliseconds: float) -> None:
        fetch(f"{self.decode}/bench/step?ms={milliseconds}")

    def counts(self) -> dict[str, int]:
        import json  # noqa: PLC0415

        found: dict[str, int] = json.loads(fetch(f"{self.decode}/bench/counts"))
        return found


def fetch(url: str) -> bytes:
    """A small answer, by the standard library."""
    with urllib.request.urlopen(url, timeout=5) as got:
        return bytes(got.read())


def said(process: OwnProcess, pattern: re.Pattern[str], count: int, seconds: float) -> list[str]:
    """What a process writes when it is ready.

    Raises:
        SystemExit: It ended, or did not say so in time.
    """
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s and process.alive:
        found = pattern.findall(process.log.read_text(errors="replace"))
        if len(found) >= count:
            return found
        time.sleep(0.05)
    tail = process.log.read_text(errors="replace")[-1500:]
    raise SystemExit(f"error: {process.log.name} did not start:\n{tail}")


def start_engines(logs: Path, core: int | None) -> Engines:
    """Both engines, in one process."""
    with only_on(core):
        process = OwnProcess(
            [sys.executable, str(BENCH / "gateway_engine.py")], logs / "engines.log"
        )
    prefill, decode = said(process, _LISTENS, 2, START_S)
    return Engines(process, prefill, decode)


def by_hand(engines: Engines) -> Subject:
    """Nobody between the generator and the engines."""
    return Subject("direct", ByHand(engines.prefill, engines.decode))


def start_gateway(engines: Engines, logs: Path, core: int | None) -> Subject:
    """`baton gateway`, as a person starts it."""
    config = logs / "gateway.yaml"
    config.write_text(SETTINGS, encoding="utf-8")
    command = [sys.executable, "-m", "baton.cli", "gateway", "--port", "0", "--config", str(config)]
    command += ["--prefill", engines.prefill, "--decode", engines.decode]
    with only_on(core):
        process = OwnProcess(command, logs / "gateway.log", {"PYTHONPATH": PATHS})
    url = said(process, _LISTENS, 1, START_S)[0]
    _wait_for(f"{url}/ready", process)
    return Subject("baton", Target(url), process)


def start_router(program: str, engines: Engines, logs: Path, core: int | None) -> Subject:
    """`vllm-router`, with the command line of its own documentation."""
    port = free_port()
    command = [program, "--vllm-pd-disaggregation", "--kv-connector", "nixl"]
    command += ["--prefill", engines.prefill, "--decode", engines.decode, "--policy", "round_robin"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    with only_on(core):
        process = OwnProcess(command, logs / "router.log")
    url = f"http://127.0.0.1:{port}"
    _wait_for(f"{url}/health", process)
    return Subject("vllm_router", Target(url), process)


def start_deployed(engines: Engines, logs: Path, core: int | None) -> Subject:
    """Ray Serve's HAProxy and gateway replica."""
    command = [sys.executable, str(BENCH / "gateway_deployed.py")]
    command += ["--prefill", engines.prefill, "--decode", engines.decode]
    with only_on(core):
        process = OwnProcess(command, logs / "deployed.log", {"PYTHONPATH": PATHS})
    try:
        url = said(process, _LISTENS, 1, 200.0)[0]
    except BaseException:
        process.send(signal.SIGTERM)  # it ends its Ray; killed, it would leave it behind
        deadline_s = time.monotonic() + START_S
        while process.alive and time.monotonic() < deadline_s:
            time.sleep(0.2)
        raise
    marker, folder = said(process, _MARKED, 1, 1.0)[0]
    subject = Subject("baton_deployed", Target(url), process, (marker, folder))
    if core is not None:
        _let_others_run_anywhere(subject)
    return subject


def _let_others_run_anywhere(subject: Subject) -> None:
    """Only what a request goes through stays on its core; Ray's other processes go where room is.

    All on one core, a request would wait for the turns of a control plane that has other cores to
    run on wherever there are more than these two.
    """
    subject.find()
    path = {process.pid for process in subject.processes}
    everywhere = range(os.cpu_count() or 1)
    for process in subject.everybody():
        if process.pid not in path:
            for task in Path(f"/proc/{process.pid}/task").glob("*"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task.name), everywhere)


def _wait_for(url: str, process: OwnProcess) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s and process.alive:
        with contextlib.suppress(OSError):
            fetch(url)
            return
        time.sleep(0.1)
    tail = process.log.read_text(errors="replace")[-1500:]
    raise SystemExit(f"error: {url} does not answer:\n{tail}")
