"""The engine behind the HTTP face: queue, KV blocks, prefill or handoff, then tokens.

A request goes the way that vLLM's scheduler sends it: it waits until there is a place and there are
blocks; its KV is computed here, or pulled from the peer that `kv_transfer_params` name; then it
writes. What it holds is freed when it ends, however it ends, unless it was a prefill for somebody
else: then the blocks stay until the lease ends or decode has read them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.engine.simulated.compute import Compute, Pace
from baton.engine.simulated.faults import NO_FAULT, Plan
from baton.engine.simulated.handoff import KvLoadFailed, Peers, RemoteKv
from baton.engine.simulated.kv import Holding, KvPool
from baton.engine.simulated.metrics import Counts
from baton.engine.simulated.prefix import Cached, Prefixes
from baton.engine.simulated.sequence import Sampling, Sequence, Step
from baton.engine.simulated.text import Context
from baton.errors import ConfigRefused

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from baton.engine.simulated.settings import EngineSettings

logger = logging.getLogger(__name__)

_INCOMPLETE = "KeyError in NixlConnectorMetadata.add_new_req_to_recv"


class EngineDead(Exception):
    """A request has killed the engine: see `Core.die`."""


@dataclass(frozen=True)
class Generation:
    """One prompt to answer.

    `kv` is what the request said under `kv_transfer_params`, as it came.
    """

    request_id: str
    tokens: list[int]
    sampling: Sampling
    n: int = 1
    kv: Mapping[str, Any] = field(default_factory=dict)
    salt: str = ""


class Core:
    """One engine's state. `on_death` is called once, when a request has killed it."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        side_channel: tuple[str, int],
        on_death: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.counts = Counts()
        self.pool = KvPool(
            blocks=settings.kv_blocks,
            block_size=settings.block_size,
            lease_s=settings.kv_lease_s,
            now=time.monotonic,
        )
        if not self.pool.fits(settings.max_model_len):
            raise ConfigRefused(
                f"{settings.kv_blocks} KV blocks of {settings.block_size} tokens cannot hold one "
                f"request of {settings.max_model_len} tokens",
                cure="give more --kv-blocks or a smaller --max-model-len",
            )
        self.boot = uuid.uuid4().hex
        self.dead = False
        self._side_channel = side_channel
        self._on_death = on_death
        self._prefixes = (
            Prefixes(settings.block_size, settings.kv_blocks)
            if settings.prompt_tokens_details
            else None
        )
        self._compute = Compute(settings.latency, settings.max_num_batched_tokens)
        self._peers = Peers(settings, self.counts)
        self._queue = asyncio.Lock()
        self._room = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None
        self._pulls: set[asyncio.Task[Context]] = set()

    async def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        await self._peers.close()

    def die(self, reason: str) -> None:
        """What vLLM's EngineCore does when one of its assertions fails: it ends, for everybody."""
        logger.error("EngineCore encountered a fatal error: %s", reason)
        self.dead = True
        self._on_death()

    def reject(self, kv: Mapping[str, Any]) -> None:
        """A request with these `kv_transfer_params` was refused before it got here.

        vLLM 0.29, generate/base/serving.py `_with_kv_transfer_rejection_cleanup`.
        """
        if not kv.get("do_remote_prefill"):
            return
        if (remote := RemoteKv.of(kv)) is not None:
            self._peers.reject(remote)
        else:
            self.die(_INCOMPLETE)

    def expire_leases(self, *, everything: bool = False) -> None:
        """Free the offers whose lease has ended, and come back when the next one does."""
        if self.pool.expire(everything=everything):
            self._room.set()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if (wait := self.pool.next_expiry_s()) is not None:
            self._expiry = asyncio.get_running_loop().call_later(wait + 0.001, self.expire_leases)

    def release(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            self.pool.release(request_id)
        self._room.set()

    @contextlib.asynccontextmanager
    async def admitted(self, generation: Generation, plan: Plan = NO_FAULT) -> AsyncIterator[Run]:
        """Run a request. The body takes its steps; leaving it early is an abort.

        Raises:
            KvLoadFailed: The KV of a handoff did not come (`kv_load_failure_policy` is `fail`).
            EngineDead: This request, or another, has killed the engine.
        """
        remote = await self._remote(generation)
        holding = await self._wait_for_blocks(len(generation.tokens), remote)
        run: Run | None = None
        try:
            self._peers.step()
            context = await self._fill(generation, remote, plan)
            self.counts.running += 1
            run = Run(
                self,
                generation,
                context,
                holding,
                self._compute.pace(slow=plan.slow),
                first_is_ready=remote is None,
                cached=self._cached(generation, handed=remote is not None),
            )
            yield run
        except KvLoadFailed:
            self.counts.finished["error"] += 1
            raise
        finally:
            offered = False
            if run is not None:
                self.counts.running -= 1
                self.counts.finished["abort"] += not run.finished
                offered = run.finished and bool(generation.kv.get("do_remote_decode"))
            if offered and run is not None:
                self._offer(run)
            else:
                self.pool.give_back(holding if run is None else run.holding)
            self._room.set()
            self._peers.step()

    def _cached(self, generation: Generation, *, handed: bool) -> Cached | None:
        if self._prefixes is None:
            return None
        return self._prefixes.read(generation.tokens, generation.salt, handed=handed)

    async def _remote(self, generation: Generation) -> RemoteKv | None:
        """Where the KV comes from; None for here. What vLLM cannot bear kills it here too."""
        kv = generation.kv
        if not kv.get("do_remote_prefill"):
            return None
        if not kv.get("remote_block_ids"):
            # pull_scheduler.py: `assert num_external_tokens == 0`
            self.die("AssertionError in update_state_after_alloc")
            raise EngineDead
        remote = RemoteKv.of(kv)
        if remote is None:
            # Scheduled to wait for a transfer that nobody starts. The caller can only hang up, and
            # the notice of that to the peer that is not named ends the engine.
            logger.warning("Got invalid KVTransferParams: %s", dict(kv))
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.die(_INCOMPLETE)
                raise
        elif self.pool.blocks_for(len(generation.tokens)) > len(remote.blocks):
            # base_worker.py: `assert num_decode_blocks <= len(prefill_group)`
            self.die("AssertionError in _apply_prefix_caching")
            raise EngineDead
        return remote

    async def make_room(self, run: Run, tokens: int) -> None:
        """Blocks for an answer that grows.

        Where there are none left, the request gives back what it has, waits its turn and computes
        its KV again, as a request does that vLLM preempts.
        """
        if tokens <= len(run.holding.blocks) * self.settings.block_size:
            return
        if self.pool.grow(run.holding, tokens):
            return
        self.counts.preemptions += 1
        self.pool.give_back(run.holding)
        self.counts.running -= 1
        self._room.set()
        try:
            run.holding = await self._wait_for_blocks(tokens)
            await self._compute.prefill(tokens)
        finally:
            self.counts.running += 1

    async def _wait_for_blocks(self, tokens: int, remote: RemoteKv | None = None) -> Holding:
        beats = contextlib.nullcontext() if remote is None else self._peers.heartbeats(remote)
        self.counts.waiting_capacity += 1
        try:
            with beats:
                async with self._queue:
                    while (holding := self._try_to_take(tokens)) is None:
                        self._room.clear()
                        await self._room.wait()
                    return holding
        except asyncio.CancelledError:
            if remote is not None:
                self._peers.reject(remote)
            raise
        finally:
            self.counts.waiting_capacity -= 1

    def _try_to_take(self, tokens: int) -> Holding | None:
        if self.counts.running >= self.settings.max_num_seqs:
            return None
        return self.pool.take(tokens)

    async def _fill(self, generation: Generation, remote: RemoteKv | None, plan: Plan) -> Context:
        """Get the KV of the prompt, from here or from there."""
        tokens = generation.tokens
        if remote is None:
            await self._compute.prefill(len(tokens), slow=plan.slow)
            self.counts.prompt_tokens["local_compute"] += len(tokens)
            return Context().read(tokens)
        self.counts.waiting_deferred += 1
        pull = asyncio.get_running_loop().create_task(self._pull(tokens, remote, plan))
        self._pulls.add(pull)
        pull.add_done_callback(self._pulls.discard)
        try:
            context = await asyncio.shield(pull)
        except asyncio.CancelledError:
            # A transfer that has begun is finished, and the peer told, also for nobody.
            pull.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        finally:
            self.counts.waiting_deferred -= 1
        self.counts.prompt_tokens["external_kv_transfer"] += len(tokens)
        # vLLM computes the last prompt token itself, to get the first logits.
        return context.read(tokens[-1:])

    async def _pull(self, tokens: list[int], remote: RemoteKv, plan: Plan) -> Context:
        started = time.monotonic()
        blocks = self.pool.blocks_for(len(tokens))
        moved = blocks * self.settings.block_size * self.settings.kv_bytes_per_token
        try:
            with self._peers.heartbeats(remote):
                context = await self._peers.read(
                    remote, list(remote.blocks[-blocks:]), len(tokens) - 1, fail=plan.fail_kv_load
                )
                spent = time.monotonic() - started
                takes = plan.kv_transfer_s(moved, self.settings.latency.handoff_s(moved))
                await asyncio.sleep(max(0.0, takes - spent))
        except KvLoadFailed as exc:
            logger.warning("KV load failed, request %s: %s", remote.request_id, exc)
            self.counts.failed_transfers += 1
            raise
        self.counts.xfer_time.observe(time.monotonic() - started)
        self.counts.xfer_bytes.observe(moved)
        self._peers.release(remote)
        return context

    def _offer(self, run: Run) -> None:
        """Put a finished prefill under lease.

        With n > 1 every choice is a request of its own with an offer of its own, and the answer
        names the first only: the others wait for their lease to end, as they do in vLLM.
        """
        for number, name in enumerate(run.offer_names):
            holding = run.holding if number == 0 else self.pool.take(len(run.holding.tokens))
            if holding is not None:
                self.pool.offer(name, holding)
        self.expire_leases()

    def transfer_params(self, run: Run) -> dict[str, Any]:
        """The `kv_transfer_params` of a finished prefill, with vLLM's keys.

        vLLM 0.29, nixl/pull_scheduler.py `request_finished`.
        """
        host, port = self._side_channel
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [run.holding.blocks],
            "remote_engine_id": self.settings.engine_id,
            "remote_request_id": run.offer_names[0],
            "remote_host": host,
            "remote_port": port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": len(run.holding.tokens),
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }


class Run:
    """A request that has its KV and writes. All its choices are alike: the text is greedy."""

    def __init__(
        self,
        core: Core,
        generation: Generation,
        context: Context,
        holding: Holding,
        pace: Pace,
        *,
        first_is_ready: bool,
        cached: Cached | None = None,
    ) -> None:
        self.holding = holding
        self.cached = cached
        """How much of the prompt was cached, where that is told."""
        self.finished = False
        self.offer_names = [
            f"{generation.request_id}-{uuid.uuid4().hex[:8]}" for _ in range(generation.n)
        ]
        self._core = core
        self._generation = generation
        self._pace = pace
        # Prefill has given the first token with the last prompt token; after a handoff it takes
        # a step of its own.
        self._first_is_ready = first_is_ready
        self._sequence = Sequence(
            context, generation.sampling, answer_tokens=core.settings.answer_tokens
        )

    async def steps(self, *, arrived: float) -> AsyncIterator[Step]:
        """Token after token; `arrived` is when the request came, by the monotonic clock."""
        core, counts, n = self._core, self._core.counts, self._generation.n
        written: list[int] = []
        last_at = arrived
        while not self.finished:
            if written or not self._first_is_ready:
                await self._pace.next_token()
            if core.dead:
                raise EngineDead
            step = self._sequence.step()
            now = time.monotonic()
            (counts.itl if written else counts.ttft).observe(now - last_at)
            last_at = now
            written.append(step.token)
            counts.generation_tokens += n
            if step.finish_reason is not None:
                self._finish(written, step.finish_reason, now - arrived)
            yield step
            if not self.finished:
                await core.make_room(self, len(self._generation.tokens) + len(written))

    def _finish(self, written: list[int], reason: str, seconds: float) -> None:
        self.finished = True
        # The last token was sampled and not read: its KV is nowhere.
        self.holding.tokens = self._generation.tokens + written[:-1]
        self._core.counts.finished[reason] += self._generation.n
        self._core.counts.e2e.observe(seconds)
