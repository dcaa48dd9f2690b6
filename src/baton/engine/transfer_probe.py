"""A raw NIXL transfer between two places: what the wire gives when nothing else is in the way.

Two processes beside two engines, with the engines' environment: one offers memory, the other reads
it. No blocks, no scheduler, no model: what a handoff loses against this is vLLM's part, and what
this does not reach, no engine will. The probe's own NIXL log and UCX notes come back with it.

    python -m baton.engine.transfer_probe offer --backend UCX   one JSON line, then waits on stdin
    python -m baton.engine.transfer_probe read  --backend UCX   the offer on stdin, one JSON line

`Probe` runs one of them for an engine and bounds its time, so that no process is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from baton.engine import fabric
from baton.engine.ucx_notes import note_ucx_choices, read_notes

if TYPE_CHECKING:
    from collections.abc import Iterator

DESCRIPTOR_BYTES = 16 << 20
"""Few of them: what posting many costs is the engines' part, not the wire's."""
SIZES = tuple(1 << power for power in (16, 18, 20, 22, 24, 26))
"""64 KiB to 64 MiB."""
ROUNDS = 3
TIME_S = 6.0
"""So long sizes are tried at most; a slow wire stops at a small one."""
LIVES_S = 60.0
"""An offer that nobody ends is gone by then."""
START_S = 60.0
_PAUSE_S = 0.00005


def main(argv: list[str] | None = None) -> None:
    """Offer, or read; one JSON line on stdout."""
    parser = argparse.ArgumentParser(prog="baton.engine.transfer_probe")
    parser.add_argument("part", choices=("offer", "read"))
    parser.add_argument("--backend", default="UCX")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(argv)
    os.environ.setdefault("NIXL_LOG_LEVEL", "INFO")  # to stderr, which the engine reads
    note_ucx_choices()
    with _agent(given.backend, given.device) as (agent, buffer, kind):
        if given.part == "offer":
            _say(
                {
                    "metadata": base64.b64encode(agent.get_agent_metadata()).decode(),
                    "address": buffer.data_ptr(),
                    "bytes": buffer.numel(),
                    "device": buffer.get_device() if kind == "VRAM" else 0,
                    "kind": kind,
                }
            )
            sys.stdin.readline()
        else:
            _say(_read(agent, buffer, kind, json.loads(sys.stdin.readline()), given.backend))


@contextlib.contextmanager
def _agent(backend: str, device: str) -> Iterator[tuple[Any, Any, str]]:
    import torch
    from nixl._api import nixl_agent, nixl_agent_config

    buffer = torch.zeros(SIZES[-1], dtype=torch.uint8, device=device)
    kind = "VRAM" if buffer.is_cuda else "DRAM"
    agent = nixl_agent(
        f"probe-{os.getpid()}-{time.time_ns()}",
        nixl_agent_config(backends=[backend], capture_telemetry=True),
    )
    place = (buffer.data_ptr(), buffer.numel(), buffer.get_device() if buffer.is_cuda else 0, "")
    registered = agent.get_reg_descs([place], kind)
    agent.register_memory(registered, backends=[backend])
    try:
        yield agent, buffer, kind
    finally:
        agent.deregister_memory(registered, backends=[backend])


def _read(agent: Any, buffer: Any, kind: str, offer: dict[str, Any], backend: str) -> Any:
    peer = agent.add_remote_agent(base64.b64decode(offer["metadata"]))
    if isinstance(peer, bytes):
        peer = peer.decode()
    began = time.monotonic()
    found = []
    here = buffer.get_device() if kind == "VRAM" else 0
    for size in SIZES:
        for _ in range(ROUNDS):
            if time.monotonic() - began > TIME_S:
                break
            seconds = _once(
                agent,
                peer,
                _descriptors(agent, buffer.data_ptr(), size, here, kind),
                _descriptors(agent, offer["address"], size, offer["device"], offer["kind"]),
            )
            found.append({"bytes": size, "seconds": seconds})
    notes = fabric.read_ucx_protocols(read_notes() or "") if backend == "UCX" else ()
    return {
        "backend": backend,
        "memory": kind,
        "transfers": found,
        "ucx": [protocol.model_dump() for protocol in notes],
        "net_counters": fabric.net_counters(),
        "rdma_counters": fabric.rdma_counters(),
    }


def _descriptors(agent: Any, address: int, size: int, device: int, kind: str) -> Any:
    piece = min(size, DESCRIPTOR_BYTES)
    return agent.get_xfer_descs(
        [(address + at, piece, device) for at in range(0, size, piece)], kind
    )


def _once(agent: Any, peer: str, local: Any, remote: Any) -> float:
    handle = agent.initialize_xfer("READ", local, remote, peer, b"")
    began = time.perf_counter()
    state = agent.transfer(handle)
    while state == "PROC":
        if time.perf_counter() - began > LIVES_S:
            break
        time.sleep(_PAUSE_S)
        state = agent.check_xfer_state(handle)
    seconds = time.perf_counter() - began
    agent.release_xfer_handle(handle)
    if state != "DONE":
        raise RuntimeError(f"the transfer ended as {state}")
    return seconds


def _say(value: Any) -> None:
    sys.stdout.write("\n" + json.dumps(value) + "\n")  # NIXL's own lines may stand before it
    sys.stdout.flush()


# -- beside an engine ----------------------------------------------------------------------------


class ProbeFailed(Exception):
    """A probe ended without its line; the message holds the end of what it said."""


class Probe:
    """One probe process of an engine.

    Args:
        part: `offer` or `read`.
        backend: NIXL's name of the backend.
        device: Where its memory lies, as torch spells it.
    """

    def __init__(self, part: str, backend: str, device: str) -> None:
        self._arguments = (part, "--backend", backend, "--device", device)
        self._process: asyncio.subprocess.Process | None = None
        self._log = bytearray()
        self._reading: asyncio.Task[None] | None = None

    async def begin(self, first_line: str | None = None) -> dict[str, Any]:
        """Start it, hand it a line if there is one, and wait for what it says.

        Raises:
            ProbeFailed: It said nothing in time, or ended.
        """
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "baton.engine.transfer_probe", *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=1 << 22,
        )
        self._reading = asyncio.create_task(self._read_log())
        try:
            async with asyncio.timeout(START_S):
                if first_line is not None and self._process.stdin is not None:
                    self._process.stdin.write(first_line.encode() + b"\n")
                    await self._process.stdin.drain()
                return await self._json_line()
        except (TimeoutError, OSError) as exc:
            raise ProbeFailed(f"no answer of the probe: {self.said()[-600:]}") from exc

    async def _json_line(self) -> dict[str, Any]:
        if self._process is None or self._process.stdout is None:
            raise ProbeFailed("the probe was not started")
        async for line in self._process.stdout:
            if line.startswith(b"{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise ProbeFailed(f"the probe ended: {self.said()[-600:]}")

    async def _read_log(self) -> None:
        if self._process is not None and self._process.stderr is not None:
            async for line in self._process.stderr:
                if len(self._log) < 1 << 20:
                    self._log += line

    def said(self) -> str:
        """What it wrote to stderr: NIXL's log among it."""
        return self._log.decode(errors="replace")

    async def end(self) -> None:
        """End it. Safe to call again."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=1.0)
        self._process = None


if __name__ == "__main__":
    main()
