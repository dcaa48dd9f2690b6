"""Where the cost of a streamed chunk goes: Baton's gateway and vllm-router, in turn.

So many streams stay open and get a token at every step, long enough that requests do not count.
For each subject: CPU time of a chunk, how much of it is the kernel's, and the system calls that a
chunk takes; for the gateway also where its own time is spent, by function, for chunks and for
requests, what the callbacks of a chunk take when nothing else runs (no socket, caches warm), and
what a full garbage collection takes. `perf` counts system calls (as root) and is left out where
there is none.

    python bench/gateway_profile.py --router .bench/bin/vllm-router --json FILE
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import uvloop
from gateway_engine import Chunks, framed
from gateway_load import kept_busy
from gateway_report import STEP_MS
from gateway_subjects import cpu_s, start_engines, start_gateway, start_router

from baton.gateway.attention import Attention
from baton.gateway.caller import Caller
from baton.gateway.caller_wire import CallerWire, Outbox
from baton.gateway.decode import DecodeAnswer
from baton.gateway.engine_wire import EngineConnection
from baton.gateway.sources import FirstHand
from baton.gateway.stream import _passing
from baton.gateway.transcript import Transcript
from baton.observe.gaps import Gaps
from baton.spec.lease import EngineLease

if TYPE_CHECKING:
    from gateway_subjects import Subject

STREAMS = 32
SECONDS = 4.0
CALLS = ("read", "recvfrom", "write", "writev", "sendto", "epoll_pwait", "epoll_wait", "getpid")
TOP = 16
TOKENS = 256
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def chunks(subject: Subject) -> dict[str, Any]:
    """One turn: microseconds and system calls a chunk."""
    tokens = int(SECONDS * 1000 / STEP_MS)
    await subject.target.prepare(STREAMS)
    subject.find()
    process = subject.processes[0]
    before_s, times = cpu_s(subject.processes), process.cpu_times()
    counting = await _count_calls(process.pid) if shutil.which("perf") else None
    window = await kept_busy(subject.target, inflight=STREAMS, seconds=0.1, tokens=tokens)
    spent_s, now = cpu_s(subject.processes) - before_s, process.cpu_times()
    if window.failed or not window.chunks:
        raise SystemExit(f"error: {subject.name}: {dict(window.failed)}")
    user, system = now.user - times.user, now.system - times.system
    found: dict[str, Any] = {
        "cpu_us": 1e6 * spent_s / window.chunks,
        "kernel_share": system / (user + system),
    }
    if counting is not None:
        counting.send_signal(2)
        counts = _counts((await counting.communicate())[1].decode())
        found["calls"] = {name: count / window.chunks for name, count in counts.items() if count}
    return found


async def _count_calls(pid: int) -> asyncio.subprocess.Process:
    events = ",".join(f"syscalls:sys_enter_{name}" for name in CALLS)
    command = ("perf", "stat", "-x", ";", "-e", events, "-p", str(pid))
    return await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)


def _counts(said: str) -> dict[str, int]:
    counts = {}
    for line in said.splitlines():
        fields = line.split(";")
        if len(fields) > 2 and fields[0].isdigit():  # noqa: PLR2004
            counts[fields[2].removeprefix("syscalls:sys_enter_")] = int(fields[0])
    return counts


async def functions(subject: Subject, *, tokens: int, inflight: int) -> dict[str, float]:
    """Own time of functions, percent of samples, by py-spy."""
    await subject.target.prepare(inflight)
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw")
        command = ("py-spy", "record", "--native", "-r", "400", "-d", str(int(SECONDS)))
        command = (*command, "-f", "raw", "-o", str(raw), "-p", str(subject.processes[0].pid))
        spying = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name(command[0])),
            *command[1:],
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        await kept_busy(subject.target, inflight=inflight, seconds=SECONDS + 1, tokens=tokens)
        await spying.wait()
        lines = raw.read_text(encoding="utf-8").splitlines()  # noqa: ASYNC240 - nobody waits
    own: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        own[stack.rpartition(";")[2].strip()] += int(count)
    total = sum(own.values())
    return {name: round(100 * count / total, 1) for name, count in own.most_common(TOP)}


async def warm_callbacks_us() -> float:
    """From a chunk's bytes as they come to those that go out, fed in a loop: the best of many."""
    engine, sent = (
        EngineLease(replica_id="e", role="decode", url="http://e", engine_id="e", model_id="m"),
        Sink(),
    )
    cycle = SimpleNamespace(
        flow=SimpleNamespace(write_paused=False), transport=sent, disconnected=False,
        response_complete=False,
    )  # fmt: skip
    chunks = Chunks(b"chatcmpl-" + b"0" * 32, ids=True)
    pieces = [framed(chunks.token(number)) for number in range(TOKENS)]
    best = math.inf
    for _ in range(300):
        connection = EngineConnection([], lambda _: None, lambda _: None)
        connection.connection_made(sent)
        answer = connection.ask(b"x", "e")
        connection.data_received(_HEAD + framed(chunks.opening()) + framed(chunks.token(0)))
        opened = DecodeAnswer(answer, engine, await answer.next_chunk(), 0.0)
        source = FirstHand(opened, Transcript(asks_ids=True, shows_ids=False))
        await source.next_events()
        caller = Caller({"headers": []}, None, None)  # type: ignore[arg-type]
        wire = CallerWire(cycle, Outbox())
        gaps = Gaps((0.01, 0.1))
        attention = Attention(
            caller, [], keep_alive_s=15, idle_s=60, lives=lambda _: True, gaps=gaps
        )
        flowing = asyncio.create_task(
            source.flow(_passing(source, caller, wire, attention, b"data: [DONE]\n\n"))
        )
        await asyncio.sleep(0)
        began = time.perf_counter()
        for piece in pieces:
            connection.data_received(piece)
        wire.flush()
        best = min(best, time.perf_counter() - began)
        if flowing.done():
            raise SystemExit("error: a plain chunk was not taken")
        answer.close()
        await flowing
        await attention.close()
    return 1e6 * best / TOKENS


class Sink:
    """A transport that writes nowhere."""

    def write(self, data: bytes) -> None: ...

    def abort(self) -> None: ...

    def is_closing(self) -> bool:
        return False


def full_collection() -> dict[str, float]:
    """Of what the gateway's process has imported."""
    import baton.cli.gateway  # noqa: PLC0415
    import baton.gateway.app  # noqa: F401, PLC0415

    best = math.inf
    for _ in range(6):
        began = time.process_time()
        gc.collect()
        best = min(best, time.process_time() - began)
    return {"objects": len(gc.get_objects()), "ms": round(1e3 * best, 1)}


async def measure(options: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Everybody in turn."""
    first, last = 0, (os.cpu_count() or 1) - 1
    os.sched_setaffinity(0, {first})
    engines = start_engines(logs, first)
    started = [engines.process]
    try:
        engines.set_step(STEP_MS)
        subjects = [start_gateway(engines, logs, last)]
        if options.router is not None:
            subjects.append(start_router(options.router, engines, logs, last))
        started += [subject.process for subject in subjects if subject.process is not None]
        turns: dict[str, list[dict[str, Any]]] = {subject.name: [] for subject in subjects}
        for _ in range(options.rounds):
            for subject in subjects:
                turns[subject.name].append(await chunks(subject))
        long = int(SECONDS * 1000 / STEP_MS)
        return {
            "what": f"{STREAMS} streams, a token each every {STEP_MS:g} ms; {options.rounds} rounds"
            " in turn. Medians, with lowest and highest.",
            "a_chunk": {name: _summary(of) for name, of in turns.items()},
            "warm_callbacks_us": round(await warm_callbacks_us(), 2),
            "full_collection": full_collection(),
            "own_time_percent": {
                "chunks": await functions(subjects[0], tokens=long, inflight=STREAMS),
                "requests": await functions(subjects[0], tokens=1, inflight=16),
            },
        }
    finally:
        for process in reversed(started):
            await process.end()


def _summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    costs = [turn["cpu_us"] for turn in turns]
    shares = [turn["kernel_share"] for turn in turns]
    found: dict[str, Any] = {
        "cpu_us": round(statistics.median(costs), 2),
        "cpu_us_spread": [round(min(costs), 2), round(max(costs), 2)],
        "kernel_share": round(statistics.median(shares), 2),
    }
    if "calls" in turns[0]:
        found["calls"] = {
            name: round(statistics.median(turn["calls"].get(name, 0.0) for turn in turns), 3)
            for name in turns[0]["calls"]
        }
    return found


def main() -> None:
    """Measure and write it down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--router", help="the program vllm-router, in an environment of its own")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        text = json.dumps(uvloop.run(measure(options, Path(folder))), indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
