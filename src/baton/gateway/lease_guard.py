"""Trusts an answer only while prefill's lease on its KV surely lived.

Prefill keeps the KV of an offer for `kv_lease_duration` and longer while decode's heartbeats come;
then it gives the blocks to other requests. A decode engine that reads later reads wrong KV and
answers 200 (vLLM 0.29; `engine/lease_deadline.py` says where). Engines with Baton notice that
themselves, and where both of them say so nothing more is asked. This guard is for all others, those
behind `baton gateway --prefill … --decode …` among them.

- An offer that is older than its lease less a margin is never sent: prefill again.
- An answer that begins later than that is suspect, no more: heartbeats may have kept the lease
  alive, and an answer that is not streamed begins when it has ended. So prefill is asked: its
  counter of leases that ran out (`vllm:nixl_num_kv_expired_reqs`), read at half the lease while
  nothing had come, and again now. Prefill frees no block of an offer without counting, in the same
  step; so an unchanged counter of the same process is proof. A counter that rose may have risen for
  another offer: then an answer is thrown away that was right. Nothing known counts as risen.

An answer that was thrown away leaves wrong KV behind, in decode's prefix cache and under the name
of the right one: the next try of the same request would find it there, and so would any prompt
that begins alike. An engine that hung, or whose leg broke off, may read as late, with nobody there
to see it. So from then on whatever is asked of that process has another `cache_salt`: its old cache
is out of reach (`LeaseGuard.salt_of`).

When an offer was born is not known exactly: prefill may have answered long before the gateway got
to read it. While the leg runs, a timer notes every so often that the event loop ran and had no
answer yet; the last note, or the start, is the birth.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
import uuid
from typing import TYPE_CHECKING

from baton.errors import LegFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.gateway.engine_client import EngineClient
    from baton.gateway.handoff import KVTransferParams
    from baton.spec.lease import EngineLease

log = logging.getLogger("baton.gateway.lease_guard")

MARGIN_SHARE = 1 / 6
LONGEST_MARGIN_S = 5.0
READ_TIMEOUT_S = 2.0
SETTLES_S = 0.25
"""How long a step's statistics may take from prefill's core to its `/metrics`."""

_MAY_HAVE_READ = frozenset({"stale_kv", "timeout", "disconnected", "truncated"})
"""How a decode leg fails whose engine has read KV too late, or may go on with it and do so."""
_MOST_DISTRUSTED = 4096
"""Processes of decode engines; the oldest have long ended."""

_EXPIRED = re.compile(rb"^vllm:nixl_num_kv_expired_reqs_total(?:\{[^\n]*\})? (\S+)$", re.MULTILINE)
# Tells one process from the next: when the counter was made, or the process began.
_PROCESS = re.compile(
    rb"^(?:process_start_time_seconds|vllm:nixl_num_kv_expired_reqs_created)(?:\{[^\n]*\})? (\S+)$",
    re.MULTILINE,
)

Reading = tuple[float, tuple[bytes, ...]]
"""Leases that ran out, and what tells the process from its successor."""


def parse_reading(metrics: bytes) -> Reading | None:
    """The reading in an engine's `/metrics`; None when it has no such counter."""
    counts = _EXPIRED.findall(metrics)
    try:
        total = sum(float(count) for count in counts)
    except ValueError:
        return None
    return (total, tuple(sorted(_PROCESS.findall(metrics)))) if counts else None


def engines_guard(params: KVTransferParams, decode: EngineLease) -> bool:
    """Whether decode itself fails what it reads too late, and was told when that is."""
    told = (params.model_extra or {}).get("remote_blocks_expiry_time")
    return told is not None and decode.evidence.checks_lease


class LeaseGuard:
    """Watches the offers of one gateway.

    Args:
        client: Reads metrics.
        headers: Headers of a request to an engine, by its internal id.
        lease_s: The engines' `kv_lease_duration`, where their own lease does not say.
        clock: Seconds, never going back.
    """

    def __init__(
        self,
        client: EngineClient,
        headers: Callable[[str], dict[str, str]],
        lease_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._client = client
        self._headers = headers
        self._lease_s = lease_s
        self._said: set[str] = set()
        self._salts: dict[str, str] = {}

    def distrust(self, engine: EngineLease, failure: LegFailed) -> None:
        """It may have read KV that was no longer the prompt's, and may keep it."""
        if failure.failure not in _MAY_HAVE_READ:
            return
        while len(self._salts) >= _MOST_DISTRUSTED:
            self._salts.pop(next(iter(self._salts)))
        self._salts[engine.process] = uuid.uuid4().hex

    def salt_of(self, engine: EngineLease) -> str | None:
        """What to add to the caller's `cache_salt`; None while its cache is trusted."""
        return self._salts.get(engine.process) if self._salts else None

    def begin(self, engine: EngineLease) -> LeaseWatch:
        """A prefill leg is about to be sent."""
        return LeaseWatch(self, engine, engine.kv_lease_s or self._lease_s)

    async def read(self, engine: EngineLease) -> Reading | None:
        """Prefill's counter now; None when it cannot be had."""
        try:
            status, raw = await self._client.fetch(
                engine,
                "GET",
                "/metrics",
                timeout_s=READ_TIMEOUT_S,
                headers=self._headers("lease-guard"),
            )
        except LegFailed as exc:
            log.warning(
                "prefill's expired leases cannot be read",
                extra={"engine": engine.replica_id, "failure": exc.failure},
            )
            return None
        reading = parse_reading(raw) if status == 200 else None  # noqa: PLR2004
        if reading is None and engine.replica_id not in self._said:
            self._said.add(engine.replica_id)
            log.warning(
                "this engine does not count expired KV leases: late answers are asked for again",
                extra={"engine": engine.replica_id, "status": status},
            )
        return reading


class LeaseWatch:
    """One offer's lease, from before its prefill leg until its answer has begun."""

    def __init__(self, guard: LeaseGuard, engine: EngineLease, lease_s: float) -> None:
        self._guard = guard
        self._engine = engine
        self._lease_s = lease_s
        self._safe_s = lease_s - min(LONGEST_MARGIN_S, lease_s * MARGIN_SHARE)
        self._born = guard.clock()
        self._reading: asyncio.Task[Reading | None] | None = None
        self._read_in_time = False
        self._closed = False
        self._timer = asyncio.get_running_loop().call_later(self._step_s, self._no_answer_yet)

    @property
    def _step_s(self) -> float:
        return self._lease_s * MARGIN_SHARE / 2

    def _no_answer_yet(self) -> None:
        self._born = self._guard.clock()
        self._timer = asyncio.get_running_loop().call_later(self._step_s, self._no_answer_yet)

    def offered(self, leg: asyncio.Task[object]) -> None:
        """The prefill leg is done: the callback of its task."""
        self._timer.cancel()
        if self._closed or leg.cancelled() or leg.exception() is not None:
            return
        wait_s = self._born + self._lease_s / 2 - self._guard.clock()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, wait_s), self._read_once)

    def _read_once(self) -> None:
        self._reading = asyncio.create_task(self._read_early(), name="baton-lease-guard")

    async def _read_early(self) -> Reading | None:
        reading = await self._guard.read(self._engine)
        self._read_in_time = not self.late()
        return reading

    def late(self) -> bool:
        """Whether the lease may have ended, were there no heartbeats."""
        return self._guard.clock() >= self._born + self._safe_s

    async def trustworthy(self) -> bool:
        """Whether an answer that has begun now was made from this offer's own KV."""
        if not self.late():
            return True
        before = None
        if self._reading is not None and self._reading.done() and self._read_in_time:
            before = self._reading.result()
        if before is None:
            return False
        await asyncio.sleep(SETTLES_S)
        return await self._guard.read(self._engine) == before

    def close(self) -> None:
        """Nobody waits for this offer any more."""
        self._closed = True
        self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()

    # -- for the journey -------------------------------------------------------------------------

    def refuse_late_offer(self) -> None:
        """Before an offer is sent.

        Raises:
            LegFailed: `stale_kv`: it is too old.
        """
        if self.late():
            raise LegFailed("stale_kv", self._engine.replica_id, "the offer outlived its lease")

    async def refuse_late_answer(self, close: Callable[[], None]) -> None:
        """After an answer has begun; `close` drops it.

        Raises:
            LegFailed: `stale_kv`: its KV may have been somebody else's.
        """
        good = False
        try:
            good = await self.trustworthy()
        finally:
            self.close()
            if not good:
                with contextlib.suppress(Exception):
                    close()
        if not good:
            raise LegFailed(
                "stale_kv", self._engine.replica_id, "decode answered after prefill's lease"
            )
