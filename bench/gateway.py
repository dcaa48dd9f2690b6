"""What a gateway adds: calling engines by hand, Baton's gateway, vllm-router, Baton deployed.

One run on one machine. In each round every subject takes its turn with the same load:

`pace`      open-loop, about 8 requests open at a time: time to the first token, gaps, and how long
            a token is on its way from engine to reader
`short`     answers of one token, `long` answers of 256: CPU time of the subject's processes, solved
            for a request and for a chunk
`busy`      as many requests as are answered while 384 are open, and
`flood`     as many chunks as are passed on then, of more than anybody can: these are not open-loop

What a subject adds is its figure less that of calling by hand in the same round; figures are
medians over rounds, with the lowest and highest. A subject has the last core for itself; generator
and engines share the first one. Their own cost is in the report (`instrument`).

The deployed path (Ray Serve's HAProxy and the gateway's replica) is measured behind the others,
with the bare gateway and the calls by hand in turn again: Ray's own processes disturb everybody.

    make bench-gateway                    BENCH_ARGS="--rounds 2 --no-deployed"
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import output
import psutil
import uvloop
from gateway_load import kept_busy, open_loop, opened
from gateway_report import (
    BUSY,
    FLOOD,
    FLOOD_STEP_MS,
    HELD_STREAMS,
    LONG,
    PACE,
    SHORT,
    STEP_MS,
    Turn,
    report,
)
from gateway_subjects import (
    Engines,
    Subject,
    by_hand,
    cpu_s,
    held_bytes,
    machine_busy_s,
    start_deployed,
    start_engines,
    start_gateway,
    start_router,
)

from baton.errors import DeployFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.deploy.own_process import OwnProcess

IDLE_S = 1.0
QUIET = 0.25
"""A turn is taken again when other programs took more than so many cores meanwhile."""
TRIES = 3
LONGEST_WAIT_S = 10.0
PACKAGES = ("uvloop", "httptools", "aiohttp", "uvicorn", "msgspec", "ray")


class Bench:
    """Engines, subjects and what was found."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self._me = [psutil.Process()]
        self.turns: dict[str, dict[str, list[Turn]]] = {}
        self.idle: dict[str, float] = {}
        self.held: dict[str, dict[str, float]] = {}
        self.started: list[psutil.Process] = []
        self.again = 0

    def strangers_s(self) -> float:
        """CPU seconds of this machine that went to nobody of ours, since it was started."""
        return machine_busy_s() - cpu_s([*self._me, *self.started])

    @contextmanager
    def clocked(self, subject: Subject, turn: Turn, name: str) -> Iterator[None]:
        """CPU time of everybody in a window; no garbage collection here meanwhile."""
        subject.find()
        gc.collect()
        gc.disable()
        began = time.monotonic()
        watched = {"subject": subject.processes, "me": self._me, "engine": self.engines.processes}
        watched |= subject.parts
        before = {who: cpu_s(processes) for who, processes in watched.items()}
        try:
            yield
        finally:
            took_s = time.monotonic() - began
            used = {who: cpu_s(processes) - before[who] for who, processes in watched.items()}
            gc.enable()
            idle_s = self.idle.get(subject.name, 0.0) * took_s
            turn.took_s[name] = took_s
            turn.cpu_s[name] = used["subject"] - idle_s
            turn.generator_s[name] = used["me"]
            turn.engine_s[name] = used["engine"]
            turn.parts_s[name] = {part: used[part] for part in subject.parts}

    async def warm(self, subject: Subject, count: int) -> None:
        """Connections, caches, code paths; then what it takes when nobody asks."""
        await subject.target.prepare(32)
        await kept_busy(subject.target, inflight=8, seconds=count / 100, tokens=16)
        subject.find()
        before = cpu_s(subject.processes)
        await asyncio.sleep(IDLE_S)
        self.idle[subject.name] = (cpu_s(subject.processes) - before) / IDLE_S
        subject.target.close()

    async def hold(self, subject: Subject) -> None:
        """Memory of so many open streams, on a process that has only been warmed."""
        self.engines.set_step(1000)
        subject.find()
        before = held_bytes(subject.processes)
        window = await opened(subject.target, count=HELD_STREAMS, rate=400, tokens=60)
        await self._until_open(HELD_STREAMS)
        await asyncio.sleep(1.0)
        held = held_bytes(subject.processes) - before
        if window.failed:
            raise SystemExit(f"error: {subject.name} lost streams: {window.failed}")
        self.held[subject.name] = {
            "before_mib": round(before / 2**20, 1),
            "added_mib": round(held / 2**20, 1),
        }
        subject.target.close()
        await self._until_open(0)
        self.engines.set_step(STEP_MS)

    async def _until_open(self, count: int) -> None:
        for _ in range(int(LONGEST_WAIT_S / 0.2)):
            if self.engines.counts()["open"] == count:
                return
            await asyncio.sleep(0.2)
        found = self.engines.counts()["open"]
        raise SystemExit(f"error: {found} streams are open at the engine instead of {count}")

    async def turn(self, subject: Subject, seed: int) -> Turn:
        """All windows of one subject in one round."""
        turn = Turn()
        target = subject.target
        for name, load in (("pace", PACE), ("short", SHORT), ("long", LONG)):
            await target.prepare(48)
            with self.clocked(subject, turn, name):
                turn.windows[name] = await open_loop(target, seed=seed, **load)  # type: ignore[arg-type]
        await target.prepare(int(BUSY["inflight"]))
        with self.clocked(subject, turn, "busy"):
            turn.windows["busy"] = await kept_busy(target, **BUSY)  # type: ignore[arg-type]
        await target.prepare(int(FLOOD["inflight"]))
        self.engines.set_step(FLOOD_STEP_MS)
        with self.clocked(subject, turn, "flood"):
            turn.windows["flood"] = await kept_busy(target, **FLOOD)  # type: ignore[arg-type]
        self.engines.set_step(STEP_MS)
        target.close()
        for name, window in turn.windows.items():
            if window.failed:
                raise SystemExit(f"error: {subject.name}, {name}: {dict(window.failed)}")
        return turn

    async def quiet_turn(self, subject: Subject, seed: int, until: float) -> Turn:
        """A turn that nobody disturbed; else, of a few while time is left, the least disturbed."""
        best: Turn | None = None
        for _ in range(TRIES):
            began, before_s = time.monotonic(), self.strangers_s()
            turn = await self.turn(subject, seed)
            took_s = time.monotonic() - began
            turn.strangers = (self.strangers_s() - before_s) / took_s
            if best is None or turn.strangers < best.strangers:
                best = turn
            if turn.strangers <= QUIET or time.monotonic() + took_s > until:
                break
            self.again += 1
            say(f"  again: others took {turn.strangers:.2f} cores")
        if best is None:
            raise SystemExit("error: no turn was taken")
        return best

    async def rounds(
        self, part: str, subjects: Sequence[Subject], count: int, until: float
    ) -> None:
        """Everybody in turn, `count` times or until the time is over."""
        self.started = [
            one for subject in subjects for one in subject.everybody()
        ] + self.engines.processes
        turns = self.turns.setdefault(part, {subject.name: [] for subject in subjects})
        taken_s = 0.0
        for number in range(count):
            began = time.monotonic()
            if number and began + taken_s > until:
                break
            # Whoever comes first finds another machine than who comes last: so it goes around.
            first = number % len(subjects)
            for subject in (*subjects[first:], *subjects[:first]):
                say(f"{part}, round {number + 1}: {subject.name}")
                turns[subject.name].append(await self.quiet_turn(subject, number, until))
            taken_s = time.monotonic() - began


async def measure(options: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Start everybody, take the rounds, end everybody."""
    until = time.monotonic() + options.seconds
    first, last = (0, (os.cpu_count() or 1) - 1) if options.pin else (None, None)
    if first is not None:
        os.sched_setaffinity(0, {first})
    engines = start_engines(logs, first)
    started = [engines.process]
    try:
        engines.set_step(STEP_MS)
        bench = Bench(engines)
        subjects = [by_hand(engines), start_gateway(engines, logs, last)]
        if options.router is not None:
            subjects.append(start_router(options.router, engines, logs, last))
        started += [subject.process for subject in subjects if subject.process is not None]
        for subject in subjects:
            await bench.warm(subject, 100)
            if subject.process is not None:
                say(f"memory: {subject.name}")
                await bench.hold(subject)
        reserve_s = options.deployed_seconds if options.deployed else 0
        await bench.rounds("alone", subjects, options.rounds, until - reserve_s)
        if options.deployed:
            say("deploying on Ray Serve")
            deployed = start_deployed(engines, logs, last)
            if deployed.process is not None:
                started.append(deployed.process)
            await bench.warm(deployed, 100)
            say("memory: baton_deployed")
            await bench.hold(deployed)
            behind = [*subjects[:2], deployed]
            await bench.rounds("deployed", behind, options.rounds, until)
        counts = engines.counts()
        if counts["refused"]:
            raise SystemExit(f"error: {counts['refused']} legs were no P/D")
        result = report(bench.turns, bench.held, bench.idle)
        result["versions"] = output.versions(PACKAGES, options.router)
        result["machine"] = {
            "cores": os.cpu_count(),
            "pinned": options.pin,
            "cpu": platform.machine(),
            "load_before": options.load_before,
            "turns_taken_again": bench.again,
        }
        return result
    finally:
        for process in reversed(started):
            await ended(process)


async def ended(process: OwnProcess) -> None:
    """SIGTERM, and as long as Ray takes to end: whoever cleans up must not be cut off."""
    await process.end()
    for _ in range(5):
        if not process.alive:
            return
        with suppress(DeployFailed):
            await process.gone()
    process.end_now()


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, write the report, draw it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--router", help="the program vllm-router, in an environment of its own")
    parser.add_argument("--rounds", type=int, default=5, help="at most, in each part")
    parser.add_argument("--seconds", type=float, default=245, help="no round begins behind that")
    parser.add_argument("--deployed-seconds", type=float, default=130, help="kept for that part")
    parser.add_argument("--no-deployed", dest="deployed", action="store_false")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="share all cores")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--logs", type=Path, help="folder for the subjects' output")
    options = parser.parse_args()
    options.load_before = round(os.getloadavg()[0], 2)
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        for old in logs.glob("*.log"):
            old.unlink()
        result = uvloop.run(measure(options, logs))
    output.write(result, options.json)


if __name__ == "__main__":
    main()
