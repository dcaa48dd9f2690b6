"""Hostile requests against a gateway process: no 5xx, nothing held, nothing that grows.

About 1,500 by default; `BATON_FUZZ=10000` sends ten thousand.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from baton.deploy.gateways import Gateways
from baton.drill.kv import RUNNING, blocks_in, value_in
from baton.engine.simulated import SimulatedEngine
from baton.gateway.app import build_gateway_app
from baton.spec.lease import EngineLease
from baton.spec.schema import BatonBlock, Disaggregate, Logging
from tests import hostile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.real_engines import RealPair

pytestmark = pytest.mark.timeout(1800)
log = logging.getLogger(__name__)

COUNT = int(os.environ.get("BATON_FUZZ", "1500"))
WARM_UP = min(2000, COUNT // 3)
REAL_COUNT = 300
GROWTH = 0.10
SETTINGS = BatonBlock(disaggregate=Disaggregate(mode="always"), logging=Logging(level="error"))


@dataclass
class Fuzzed:
    """What was seen of a run."""

    complaints: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    rss_warm: int = 0
    rss_after: int = 0
    fds_before: int = 0
    fds_after: int = 0
    blocks_after: list[int] = field(default_factory=list)
    running_after: list[float] = field(default_factory=list)
    gateway_after: str = ""
    alive: bool = False


def fuzz(engines: Sequence[EngineLease], folder: Path, *, count: int, warm_up: int) -> Fuzzed:
    """Start a gateway before these engines and send it `count` hostile requests."""
    seen = Fuzzed()
    gateways = Gateways(folder, SETTINGS)
    try:
        process, url = asyncio.run(gateways.start(engines))
        _until(lambda: httpx.get(f"{url}/ready").status_code == 200)
        parts = urlsplit(url)
        address = (parts.hostname or "", parts.port or 0)
        watched = psutil.Process(process.pid)
        seen.fds_before = watched.num_fds()

        @seed(20_260)
        @settings(
            max_examples=count,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(hostile.requests())
        def send(one: hostile.Hostile) -> None:
            statuses, came = hostile.send(address, one)
            seen.sent += 1
            seen.statuses.update(statuses)
            seen.kinds[one.kind] += 1
            if wrong := hostile.complaint(one, statuses, came):
                seen.complaints.append(f"{wrong}: {one!r} -> {came[:300]!r}")
            if seen.sent == warm_up:
                seen.rss_warm = watched.memory_info().rss

        send()
        _until(lambda: watched.num_fds() <= seen.fds_before, seconds=20)
        seen.alive = process.alive
        seen.rss_after = watched.memory_info().rss
        seen.fds_after = watched.num_fds()
        seen.gateway_after = httpx.get(f"{url}/metrics").text
        for engine in engines:
            for _ in range(20):  # real engines write their gauges with the next step
                page = httpx.get(f"{engine.url}/metrics").text
                if not blocks_in(page) and not value_in(page, RUNNING):
                    break
                time.sleep(0.5)
            seen.blocks_after.append(blocks_in(page))
            seen.running_after.append(value_in(page, RUNNING))
    finally:
        gateways.end_all()
    log.info(
        "%d sent: %s, statuses %s, RSS %d then %d bytes, descriptors %d then %d",
        seen.sent,
        dict(seen.kinds),
        dict(sorted(seen.statuses.items())),
        seen.rss_warm,
        seen.rss_after,
        seen.fds_before,
        seen.fds_after,
    )
    return seen


def _until(claim: Any, seconds: float = 30.0) -> None:
    """Wait for it; what did not become so is what the tests see."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not claim():
        time.sleep(0.1)


def lease(role: Any, url: str) -> EngineLease:
    return EngineLease(replica_id=url, role=role, url=url, engine_id=role, model_id=hostile.MODEL)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Fuzzed:
    folder = tmp_path_factory.mktemp("fuzz")
    engines = _engine_processes(folder)
    try:
        leases = [lease(role, asyncio.run(process.listens())) for role, process in engines]
        return fuzz(leases, folder, count=COUNT, warm_up=WARM_UP)
    finally:
        for _, process in engines:
            process.end_now()


def _engine_processes(folder: Path) -> list[tuple[str, Any]]:
    import sys

    from baton.deploy.own_process import OwnProcess

    command = [sys.executable, "-m", "baton.cli", "engine", "--simulated", "--port", "0"]
    command += ["--model", hostile.MODEL, "--max-model-len", "2048", "--answer-tokens", "100"]
    command += ["--prefill-tokens-per-s", "0", "--tpot-ms", "0", "--handoff-fixed-ms", "0"]
    command += ["--handoff-gbps", "0"]
    return [
        (role, OwnProcess([*command, "--role", role], folder / f"{role}.log"))
        for role in ("prefill", "decode")
    ]


def test_no_hostile_request_is_answered_by_a_5xx(fuzzed: Fuzzed) -> None:
    """Nor left without an answer, when it was a request at all."""
    assert fuzzed.sent >= COUNT * 0.99
    assert not fuzzed.complaints, "\n".join([str(len(fuzzed.complaints)), *fuzzed.complaints[:10]])


def test_the_hostile_requests_reach_engines_and_are_refused_as_well(fuzzed: Fuzzed) -> None:
    """A fuzz that only ever sees one answer proves nothing."""
    assert set(fuzzed.kinds) == {"body", "odd", "raw"}
    assert {200, 400, 404, 405, 415} <= set(fuzzed.statuses), fuzzed.statuses


def test_no_request_holds_anything_afterwards(fuzzed: Fuzzed) -> None:
    """No KV block, no running request, no place in the gateway's queue, no file descriptor."""
    assert fuzzed.blocks_after == [0, 0]
    assert fuzzed.running_after == [0, 0]
    assert "\nbaton_inflight 0.0\n" in fuzzed.gateway_after
    assert "\nbaton_queued 0.0\n" in fuzzed.gateway_after
    assert fuzzed.fds_after <= fuzzed.fds_before


def test_the_gateway_lives_and_its_memory_does_not_grow(fuzzed: Fuzzed) -> None:
    """Resident memory after all of them, against resident memory after the first part."""
    assert fuzzed.alive
    assert fuzzed.rss_after <= fuzzed.rss_warm * (1 + GROWTH), (
        fuzzed.rss_warm,
        fuzzed.rss_after,
    )


async def test_no_task_and_no_release_is_left_in_the_gateway() -> None:
    """Seen from inside: a gateway in this event loop, and 200 hostile requests."""
    import uvicorn

    from baton.gateway.directory import FixedDirectory

    async with (
        SimulatedEngine(role="prefill", engine_id="p", model_id=hostile.MODEL) as prefill,
        SimulatedEngine(role="decode", engine_id="d", model_id=hostile.MODEL) as decode,
    ):
        app = build_gateway_app(
            SETTINGS, FixedDirectory([prefill.url], [decode.url], interval_s=60.0)
        )
        config = uvicorn.Config(app, port=0, log_config=None, ws="none", lifespan="on")
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        address = server.servers[0].sockets[0].getsockname()[:2]
        try:
            before = _names()
            await asyncio.to_thread(_send_some, address, 200)
            parts = await app.start()
            for _ in range(200):
                if _names() <= before and not parts.releases.pending:
                    break
                await asyncio.sleep(0.1)
            assert parts.releases.pending == 0
            assert app.admission.inflight == 0
            assert _names() <= before
            assert prefill.core.pool.usage == decode.core.pool.usage == 0
        finally:
            server.should_exit = True
            await server.shutdown()


def _names() -> Counter[str]:
    """The running tasks, by what they run."""
    tasks = (task for task in asyncio.all_tasks() if not task.done())
    return Counter(getattr(task.get_coro(), "__qualname__", "?") for task in tasks)


def _send_some(address: tuple[str, int], count: int) -> None:
    @seed(7)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(hostile.requests())
    def send(one: hostile.Hostile) -> None:
        statuses, came = hostile.send(address, one)
        assert hostile.complaint(one, statuses, came) is None, (one, came[:300])

    send()


@pytest.mark.real_engine
def test_real_engines_answer_hostile_requests_without_a_5xx_and_hold_nothing(
    real_pair: RealPair, tmp_path: Path
) -> None:
    """A smaller number: vLLM takes longer. Both engines are alive and empty afterwards."""
    engines = [lease("prefill", real_pair.prefill_url), lease("decode", real_pair.decode_url)]
    seen = fuzz(engines, tmp_path, count=REAL_COUNT, warm_up=REAL_COUNT // 3)
    assert not seen.complaints, "\n".join([str(len(seen.complaints)), *seen.complaints[:10]])
    assert seen.blocks_after == [0, 0]
    assert {httpx.get(f"{engine.url}/health").status_code for engine in engines} == {200}
