"""What a scenario plays on: the load, the faults, the proof that they happened, the counting."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import aiohttp

from baton.drill.client import Client
from baton.drill.judge import Judged, recovered_at
from baton.drill.kv import Unreadable, value_in
from baton.drill.load import Load
from baton.spec.lease import all_used

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from baton.drill.asks import Case
    from baton.drill.client import Seen
    from baton.drill.injector import Injector
    from baton.drill.kv import Gauges
    from baton.spec.lease import EngineLease
    from baton.spec.schema import Role

SETTLE_S = 2.0
"""KV must be free so long after the last request."""
READY_S = 60.0
_EXAMPLES = 5


@dataclass
class Result:
    """One row of the table.

    `kv_blocks_left` and `recovery_s` are None where they are not known. `problem` says why a row
    fails although nothing was lost: the fault did not happen, or its end was not seen.
    """

    name: str
    requests: int = 0
    errors: int = 0
    broken_streams: int = 0
    mismatched_answers: int = 0
    kv_blocks_left: int | None = None
    recovery_s: float | None = None
    skipped: str = ""
    problem: str = ""
    proof: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    @property
    def lost(self) -> bool:
        """Whether anything was lost, or the scenario proves nothing."""
        columns = (self.errors, self.broken_streams, self.mismatched_answers, self.kv_blocks_left)
        return bool(self.problem) or any(columns)

    @property
    def verdict(self) -> Literal["skipped", "failed", "held"]:
        if self.skipped:
            return "skipped"
        return "failed" if self.lost else "held"


class NothingProved(Exception):
    """The fault did not really happen, or nothing was there to be disturbed."""


class Stage:
    """One scenario's stage. The scenario calls `load`, then a fault, then `struck`.

    Args:
        injector: Breaks things.
        gauges: Reads the engines.
        cases: Requests with their undisturbed answers.
        streams: How many streams are open when a decode engine dies.
        spare: How many more are kept going, as a share: they wait for prefill meanwhile.
        seed: Of everything random.
        headers: Of every request.
    """

    def __init__(
        self,
        injector: Injector,
        gauges: Gauges,
        cases: Sequence[Case],
        *,
        name: str,
        streams: int,
        spare: float,
        seed: int,
        headers: Mapping[str, str],
    ) -> None:
        self.injector = injector
        self.gauges = gauges
        self.cases = cases
        self.streams = streams
        self.spare = spare
        self.seed = seed
        self.headers = headers
        self.settle_s = SETTLE_S
        self.result = Result(name)
        self._counted: list[Sequence[Judged]] = []
        self._fault_at: float | None = None

    @contextlib.asynccontextmanager
    async def load(
        self,
        *,
        streamed: int,
        plain: int,
        endpoints: Sequence[str] | None = None,
        retries: int = 0,
    ) -> AsyncIterator[Load]:
        """So many streams and so many plain requests at once, while the block lasts."""
        client = Client(
            list(endpoints or [self.injector.endpoint]), headers=self.headers, retries=retries
        )
        groups = [
            ([case for case in self.cases if case.ask.streamed], streamed),
            ([case for case in self.cases if not case.ask.streamed], plain),
        ]
        async with client:
            load = Load(client, groups, seed=self.seed)
            self._counted.append(load.judged)
            async with load:
                yield load

    async def engine(self, role: Role) -> EngineLease:
        """An engine of this role to break: the busiest."""
        engines = [e for e in await self.injector.engines() if e.role == role]
        self.need(engines, f"no {role} engine runs")
        busy = [await self.gauges.busy(engine) for engine in engines]
        return engines[busy.index(max(busy))]

    async def busy_engine(self, role: Role, load: Load) -> tuple[EngineLease, int]:
        """An engine that has requests of the gateway's in this moment, and how many.

        Raises:
            NothingProved: There is none for seconds.
        """
        engines = [e for e in await self.injector.engines() if e.role == role]
        for _ in range(200):
            for engine in engines:
                if (asked := await self.inflight(load, engine)) > 0:
                    return engine, asked
            await asyncio.sleep(0.02)
        raise NothingProved(f"no {role} engine had anything to do")

    def need(self, claim: object, otherwise: str) -> None:
        """Raise NothingProved unless so."""
        if not claim:
            raise NothingProved(otherwise)

    def struck(self, proof: str, *, at: float | None = None) -> None:
        """The (first) fault has just happened, or `at` (monotonic); `proof`: what was seen."""
        self._fault_at = self._fault_at or at or time.monotonic()
        self.result.proof.append(proof)

    def note(self, name: str, value: float) -> None:
        """A number that is worth telling beside the columns."""
        self.result.notes[name] = round(value, 3)

    def since_fault_s(self) -> float:
        return time.monotonic() - (self._fault_at or time.monotonic())

    async def watch(self, load: Load, *, at_least: int, seconds: float = 60.0) -> None:
        """Keep the load on until so many more have ended, and one sent after the fault is right."""
        await load.ended(at_least, seconds=seconds)
        await load.until(lambda: self._recovered(load.judged) is not None, seconds=seconds)

    def _recovered(self, judged: Sequence[Judged]) -> float | None:
        return None if self._fault_at is None else recovered_at(judged, self._fault_at)

    def _was_open(self, seen: Seen) -> bool:
        """Whether the fault came in the middle of this stream."""
        if self._fault_at is None or seen.first_byte_at is None:
            return False
        return seen.first_byte_at <= self._fault_at <= seen.ended_at

    async def wait_until_ready(self, endpoint: str) -> None:
        """Until the gateway there has every engine ready. Raises NothingProved."""
        async with Client([endpoint], headers=self.headers) as client:
            for _ in range(int(READY_S / 0.1)):
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    view = await client.get_json("/baton/engines")
                    if all_used(view["engines"]):
                        return
                await asyncio.sleep(0.1)
        raise NothingProved(f"{endpoint} did not have every engine ready within {READY_S:.0f} s")

    async def inflight(self, load: Load, engine: EngineLease) -> int:
        """How many requests the gateway has on this engine now."""
        view: dict[str, Any] = await load.client.get_json("/baton/engines")
        return sum(e["inflight"] for e in view["engines"] if e["url"] == engine.url)

    @contextlib.asynccontextmanager
    async def counting(self, load: Load, metric: str, note: str) -> AsyncIterator[None]:
        """Note by how much one of the gateway's counters grows meanwhile; it proves nothing."""
        before = value_in(await load.client.get_text("/metrics"), metric)
        yield
        self.note(note, value_in(await load.client.get_text("/metrics"), metric) - before)

    def count_hang_ups(self, judged: Sequence[Judged]) -> None:
        """Count requests that the load did not send."""
        self._counted.append(judged)

    async def conclude(self) -> None:
        """Count, then look at the KV that is left. The load has ended."""
        result = self.result
        everything = [one for judged in self._counted for one in judged]
        verdicts = Counter(one.verdict for one in everything)
        result.requests = len(everything)
        result.errors = verdicts["error"]
        result.broken_streams = verdicts["broken"]
        result.mismatched_answers = verdicts["mismatch"]
        bad = [one for one in everything if one.verdict != "right"]
        result.examples = [
            f"{one.verdict}: {one.case.ask.name}: {one.detail}" for one in bad[:_EXAMPLES]
        ]
        streams = [one.seen for one in everything if one.case.ask.streamed]
        if streams:
            self.note("longest_gap_s", max(seen.longest_gap_s for seen in streams))
        if thinking := sum(seen.reasoning != "" and self._was_open(seen) for seen in streams):
            self.note("open_thinking_streams", thinking)
        if retried := sum(one.seen.retried for one in everything):
            self.note("retried_requests", retried)
        if fallbacks := sum(one.seen.fallback for one in everything):
            self.note("fallbacks", fallbacks)
        if self._fault_at is None:
            result.recovery_s = None if result.problem else 0.0
        elif (at := self._recovered(everything)) is not None:
            result.recovery_s = round(at - self._fault_at, 3)
        elif not result.problem:
            result.problem = "no request that was sent after the fault was answered right"
        await self._look_at_kv()

    async def _look_at_kv(self) -> None:
        result = self.result
        if reason := self.injector.cannot("see_engines"):
            result.proof.append(f"KV was not looked at: {reason}")
            return
        settled_at = time.monotonic() + self.settle_s
        await asyncio.sleep(SETTLE_S)
        try:
            engines = await self.injector.engines()
            held = await self.gauges.blocks_held(engines)
            if self.settle_s > SETTLE_S:
                self.note("kv_blocks_after_2_s", held)
            while held and time.monotonic() < settled_at:
                await asyncio.sleep(0.5)
                held = await self.gauges.blocks_held(engines)
            result.kv_blocks_left = held
        except Unreadable as exc:
            result.problem = result.problem or f"what an engine holds is not known: {exc}"
