"""The scenarios: each breaks one thing under load, and proves that it did."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from baton.drill.hang_ups import HANG_UPS, hang_ups
from baton.drill.kv import EXPIRED, PROMPT_TOKENS, value_in
from baton.drill.proxy import Proxy
from baton.drill.stage import NothingProved

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from baton.drill.injector import Fault
    from baton.drill.load import Load
    from baton.drill.stage import Stage
    from baton.spec.lease import EngineLease
    from baton.spec.schema import Role

HANG_S = 5.0
RESUMED = "baton_resumed_streams_total"
_DELAY_S = 0.03
_BYTES_PER_S = 256_000.0
_OPEN_S = 30.0
_LATE_S = 10.0
_REUSED_S = 1.0
_PLAIN = 4
_MOMENTS = 60
_TRIES = 20
_ON_THE_WAY_S = 0.3
"""Answers that had left an engine before it was frozen have arrived so long after."""


@dataclass(frozen=True)
class Scenario:
    """One thing that goes wrong.

    Args:
        name: On the command line.
        story: What happens, in one line.
        act: Does it.
        needs: Faults that the injector must be able to do.
        others: Roles of which one engine must be left when the scenario takes one.
    """

    name: str
    story: str
    act: Callable[[Stage], Awaitable[None]]
    needs: tuple[Fault, ...] = ()
    others: tuple[Role, ...] = ()


async def _calm(stage: Stage) -> None:
    async with stage.load(streamed=stage.streams, plain=_PLAIN) as load:
        await load.ended(stage.streams, seconds=_OPEN_S)
        stage.need(load.judged, "no request ended")
    stage.result.proof.append("nothing was disturbed: what this row counts is the drill's own")


async def _kill_prefill(stage: Stage) -> None:
    async with _busy_load(stage) as load:
        victim, asked = await stage.busy_engine("prefill", load)
        await stage.injector.kill(victim, core_only=False)
        stage.struck(f"SIGKILL for {victim.url}, which had {asked} requests")
        await stage.watch(load, at_least=stage.streams // 2)


async def _kill_decode(stage: Stage, *, core_only: bool = False) -> None:
    async with _open_streams(stage) as load:
        victim = await stage.engine("decode")
        running, streams = await _enough_on(stage, load, victim)
        async with stage.counting(load, RESUMED, "resumed_streams"):
            await stage.injector.kill(victim, core_only=core_only)
            what = "its EngineCore" if core_only else "the whole engine"
            stage.struck(
                f"SIGKILL ({what}) for {victim.url} with {streams} streams open, {running:.0f} "
                "requests of them there"
            )
            stage.note("open_streams", streams)
            await stage.watch(load, at_least=stage.streams)


async def _enough_on(stage: Stage, load: Load, victim: EngineLease) -> tuple[float, int]:
    """Wait for a moment in which enough streams are open, some of them on the victim.

    Returns:
        Requests that run there, and all streams that are open.
    """
    running, streams = 0.0, 0
    for _ in range(_MOMENTS):
        await load.until(lambda: load.client.open_streams >= stage.streams, seconds=1)
        running = await stage.gauges.busy(victim)
        streams = load.client.open_streams
        if running and streams >= stage.streams:
            return running, streams
    raise NothingProved(f"{streams} streams were open at most, {running:.0f} requests there")


async def _kill_decode_core(stage: Stage) -> None:
    await _kill_decode(stage, core_only=True)


async def _restart_prefill(stage: Stage) -> None:
    async with _busy_load(stage) as load:
        victim, asked = await stage.busy_engine("prefill", load)
        restarting = asyncio.create_task(stage.injector.restart(victim))
        stage.struck(f"{victim.url} was ended while it had {asked} requests")
        try:
            again = await restarting
            stage.need(again.engine_id != victim.engine_id, "the engine kept its engine_id")
            stage.result.proof.append(f"another engine ({again.engine_id}) runs at {again.url}")
            for _ in range(1000):
                page = await stage.gauges.page(again)
                if value_in(page, PROMPT_TOKENS) > 0:
                    break
                await asyncio.sleep(0.1)
            stage.need(value_in(page, PROMPT_TOKENS), "the new engine was never asked")
            stage.note("served_again_s", stage.since_fault_s())
            await stage.watch(load, at_least=stage.streams // 2)
        finally:
            restarting.cancel()


async def _hang(stage: Stage, role: Role) -> None:
    async with _busy_load(stage) as load, contextlib.AsyncExitStack() as stack:
        victim = await _freeze_a_busy_one(stage, role, load)
        try:
            await stack.enter_async_context(_newcomers(stage))
            await asyncio.sleep(HANG_S - stage.since_fault_s())
        finally:
            await stage.injector.thaw(victim)
        await stage.watch(load, at_least=stage.streams // 2)


async def _freeze_a_busy_one(stage: Stage, role: Role, load: Load) -> EngineLease:
    """Freeze an engine that is left with requests on it; the caller thaws it.

    What it had when it was chosen may be answered before the freeze: then another try is made.

    Raises:
        NothingProved: No try left a request on a frozen engine. None stays frozen.
    """
    for _ in range(_TRIES):
        victim, _ = await stage.busy_engine(role, load)
        frozen_at = time.monotonic()
        await stage.injector.freeze(victim)
        try:
            await asyncio.sleep(_ON_THE_WAY_S)
            if asked := await stage.inflight(load, victim):
                stage.struck(f"{victim.url} was frozen", at=frozen_at)
                stage.result.proof.append(f"{asked} requests were on it, and it answered none")
                return victim
        except BaseException:
            await stage.injector.thaw(victim)
            raise
        await stage.injector.thaw(victim)
    raise NothingProved(f"no {role} engine was frozen with a request on it in {_TRIES} tries")


async def _hang_prefill(stage: Stage) -> None:
    await _hang(stage, "prefill")


async def _hang_decode(stage: Stage) -> None:
    await _hang(stage, "decode")


async def _slow_network(stage: Stage) -> None:
    async with _network(stage) as (proxies, endpoint), _busy_load(stage, endpoint) as load:
        await load.ended(8, seconds=_OPEN_S)
        before = sum(proxy.passed for proxy in proxies.values())
        stage.need(before, "nothing went through the proxies")
        for proxy in proxies.values():
            proxy.delay_s, proxy.bytes_per_s = _DELAY_S, _BYTES_PER_S
        stage.struck(f"{_DELAY_S * 1000:.0f} ms each way, {_BYTES_PER_S / 1000:.0f} kB/s")
        await stage.watch(load, at_least=stage.streams // 2)
        passed = sum(proxy.passed for proxy in proxies.values()) - before
        stage.need(passed, "nothing went through the slow network")
        stage.result.proof.append(f"{passed} bytes went through it")


async def _cut_network(stage: Stage) -> None:
    async with _network(stage) as (proxies, endpoint), _open_streams(stage, endpoint) as load:
        victim = await stage.engine("decode")
        running = await stage.gauges.busy(victim)
        async with stage.counting(load, RESUMED, "resumed_streams"):
            cut = proxies[victim.url].cut()
            stage.need(cut and running, "no connection was open")
            stage.struck(f"{cut} connections to {victim.url} reset, {running:.0f} requests there")
            await stage.watch(load, at_least=stage.streams)


async def _directory_lost(stage: Stage) -> None:
    async with stage.injector.with_directory() as lost:
        await stage.wait_until_ready(lost.endpoint)
        async with _busy_load(stage, lost.endpoint) as load:
            await load.ended(4, seconds=_OPEN_S)
            before = (await load.client.get_json("/baton/engines"))["directory_failures"]
            await lost.lose()
            stage.struck("the directory does not answer")
            failures = 0
            for _ in range(300):
                view = await load.client.get_json("/baton/engines")
                failures = view["directory_failures"] - before
                if failures >= 3:  # noqa: PLR2004
                    break
                await asyncio.sleep(0.1)
            stage.need(failures, "the gateway never noticed")
            stage.result.proof.append(f"{failures} reads of it failed")
            await stage.watch(load, at_least=stage.streams // 2)
            await lost.find()
            for _ in range(300):
                age_s = (await load.client.get_json("/baton/engines"))["directory_age_s"]
                if age_s is not None and age_s < 2:  # noqa: PLR2004
                    break
                await asyncio.sleep(0.1)
            stage.need(age_s is not None and age_s < 2, "it was never read again")  # noqa: PLR2004


async def _gateway_killed(stage: Stage) -> None:
    async with stage.injector.two_gateways() as pair:
        for endpoint in pair.endpoints:
            await stage.wait_until_ready(endpoint)
        async with _open_streams(stage, *pair.endpoints, retries=1) as load:
            streams = load.client.open_streams
            await pair.kill_one()
            stage.struck(f"SIGKILL for one of two gateways with {streams} streams open")
            await stage.watch(load, at_least=stage.streams)
        retried = sum(one.seen.retried for one in load.judged)
        stage.need(retried, "no client had to ask twice")
        stage.result.proof.append(f"{retried} clients had to ask a second time, and did once")
        # A killed gateway cannot release what it held: that is what KV leases are for.
        stage.settle_s += stage.injector.kv_lease_s


async def _lease_expiry(stage: Stage) -> None:
    engines = [e for e in await stage.injector.engines() if e.role == "prefill"]

    async def expired() -> float:
        return sum([value_in(await stage.gauges.page(e), EXPIRED) for e in engines])

    before = await expired()
    async with _busy_load(stage) as load, contextlib.AsyncExitStack() as stack:
        victim = await _freeze_a_busy_one(stage, "decode", load)
        try:
            await stack.enter_async_context(_newcomers(stage))
            ended = 0.0
            while not ended and stage.since_fault_s() < stage.injector.kv_lease_s + _LATE_S:
                await asyncio.sleep(0.5)
                ended = await expired() - before
            # Long enough that other prompts are written where that KV was.
            await asyncio.sleep(_REUSED_S)
        finally:
            await stage.injector.thaw(victim)
        stage.need(ended, "no KV was waiting when its lease ended")
        stage.result.proof.append(f"{ended:.0f} offers of KV lost their lease before it went on")
        await stage.watch(load, at_least=stage.streams // 2)


@contextlib.asynccontextmanager
async def _busy_load(stage: Stage, *endpoints: str) -> AsyncIterator[Load]:
    """Half as many requests as streams in a decode kill, of all kinds."""
    workers = max(4, stage.streams // 2)
    async with stage.load(
        streamed=workers - workers // 3, plain=workers // 3, endpoints=endpoints or None
    ) as load:
        await load.ended(2, seconds=_OPEN_S)
        yield load


def _newcomers(stage: Stage) -> contextlib.AbstractAsyncContextManager[Load]:
    """As many again, all at once: a gateway that counts would ask the others only otherwise."""
    workers = max(4, stage.streams // 4)
    return stage.load(streamed=workers, plain=workers)


@contextlib.asynccontextmanager
async def _open_streams(stage: Stage, *endpoints: str, retries: int = 0) -> AsyncIterator[Load]:
    """At least so many streams in the middle of their answer, and a few plain requests."""
    some_more = round(stage.streams * (1 + stage.spare)) + 2
    async with stage.load(
        streamed=some_more, plain=_PLAIN, endpoints=endpoints or None, retries=retries
    ) as load:
        await load.until(lambda: load.client.open_streams >= stage.streams, seconds=_OPEN_S)
        seen = load.client.open_streams
        stage.need(seen >= stage.streams, f"only {seen} of {stage.streams} streams were open")
        yield load


@contextlib.asynccontextmanager
async def _network(stage: Stage) -> AsyncIterator[tuple[dict[str, Proxy], str]]:
    """A proxy before each engine, and a gateway that knows the proxies only."""
    async with contextlib.AsyncExitStack() as stack:
        proxies = {
            engine.url: await stack.enter_async_context(Proxy(engine.url))
            for engine in await stage.injector.engines()
        }
        urls = {url: proxy.url for url, proxy in proxies.items()}
        endpoint = await stack.enter_async_context(stage.injector.rewired(urls))
        await stage.wait_until_ready(endpoint)
        yield proxies, endpoint


_SEE: tuple[Literal["see_engines"]] = ("see_engines",)

ALL: tuple[Scenario, ...] = (
    Scenario("calm", "nothing is broken: the control", _calm),
    Scenario(
        "kill-prefill", "a prefill engine is killed under load", _kill_prefill, (*_SEE, "kill")
    ),
    Scenario(
        "kill-decode",
        "a decode engine is killed in the middle of its streams",
        _kill_decode,
        (*_SEE, "kill"),
        others=("decode",),
    ),
    Scenario(
        "kill-decode-core",
        "the same, of its EngineCore alone: its HTTP server has last words",
        _kill_decode_core,
        (*_SEE, "kill_core"),
        others=("decode",),
    ),
    Scenario(
        "restart-prefill",
        "a prefill engine is started anew in its place, with a new engine_id",
        _restart_prefill,
        (*_SEE, "restart"),
    ),
    Scenario(
        "hang-prefill",
        f"a prefill engine accepts and does not answer for {HANG_S:.0f} s",
        _hang_prefill,
        (*_SEE, "freeze"),
    ),
    Scenario(
        "hang-decode",
        f"a decode engine accepts and does not answer for {HANG_S:.0f} s",
        _hang_decode,
        (*_SEE, "freeze"),
        others=("decode",),
    ),
    Scenario(
        "slow-network",
        "delay and little bandwidth between gateway and engines",
        _slow_network,
        (*_SEE, "rewire"),
    ),
    Scenario(
        "cut-network",
        "every connection to a decode engine is reset; the engine lives",
        _cut_network,
        (*_SEE, "rewire"),
        others=("decode",),
    ),
    Scenario("hang-ups", f"{HANG_UPS} callers hang up at random moments", hang_ups),
    Scenario(
        "directory-lost",
        "gateways cannot read who serves",
        _directory_lost,
        (*_SEE, "lose_directory"),
    ),
    Scenario(
        "gateway-killed",
        "one of two gateways is killed; clients try once more",
        _gateway_killed,
        ("kill_gateway",),
    ),
    Scenario(
        "lease-expiry",
        "decode freezes until the lease on the KV that waits for it has ended",
        _lease_expiry,
        (*_SEE, "outlast_lease"),
        others=("decode",),
    ),
)
