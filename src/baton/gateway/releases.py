"""Sees handoffs off that nobody wants: in the background, bounded, done before the gateway ends.

What is done in which state says `handoff.FACTS`; here it is done. vLLM 0.29 frees the blocks of an
offer when a decode engine rejects a request that carries its params
(`_with_kv_transfer_rejection_cleanup`, vllm/entrypoints/generate/base/serving.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from baton.errors import LegFailed
from baton.gateway.generations import generation_of
from baton.gateway.handoff import Event, State
from baton.gateway.request_body import encode_body

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from baton.gateway.engine_client import EngineClient
    from baton.gateway.handoff import Handoff, KVTransferParams
    from baton.observe.metrics import GatewayMetrics
    from baton.spec.lease import EngineLease

log = logging.getLogger("baton.gateway.releases")

Leg = asyncio.Task["KVTransferParams"]

RELEASE_TIMEOUT_S = 5.0
ABORT_SETTLES_S = 0.5
"""How long after a decode leg was closed its abort has surely reached the engine's core."""
PATIENCE_S = 10.0
IMPATIENCE_S = 0.25
"""How long a prefill leg that nobody waits for may still answer, so that its KV can be released.

vLLM reads aborts before it looks at what a step gave, so a prompt in its queue, with more chunks to
come, or in its last step ends there and holds nothing. But a leg whose step has just ended holds
KV, and the answer that names it is lost if the connection is closed before it comes. So a leg that
is most likely in its only step is let finish, which costs no compute that an abort would have
saved: a prompt that fits one step, on an engine where little was given up (`PATIENT_BYTES`). All
others are closed soon, so that a storm of hang-ups does not keep prefill busy for nobody.
"""
ONE_STEP_BYTES = 32 * 1024
"""A body smaller than this is prefilled in one step: 8,192 tokens (vLLM's usual
max_num_batched_tokens) of four bytes."""
NUDGES_S = (0.3, 0.7, 2.0)
"""When a decode engine that has never met the prefill engine gets something to do, each after the
one before. vLLM 0.29 shakes hands in the background and looks for what waited for it in its next
step only (`_ready_requests`, nixl/pull_worker.py `start_load_kv`); an engine without work takes
none, and prefill would hold the KV until its lease ends."""
PATIENT_BYTES = 8 * ONE_STEP_BYTES
"""Bodies of legs that are let finish on one engine at a time: eight full steps for nobody at most.
In bytes and not in legs: short prompts share steps, and they are given up by the dozen."""
_LEAST_BYTES = 1024
"""What a leg counts at least: each is an answer to come."""
_MAX_MET = 16_384
_MAX_PENDING = 1000
_RELEASE_ENGINES = 2


SEEN_OFF = frozenset({State.COLLECTING, State.SETTLING, State.RELEASING})


class Releases:
    """Lets go of handoffs that nobody wants.

    Args:
        client: Sends the release.
        engines: Decode engines to release through, best first.
        headers: Headers of a leg, by its internal request id.
        metrics: Counts how handoffs ended.
    """

    def __init__(
        self,
        client: EngineClient,
        engines: Callable[[], Sequence[EngineLease]],
        headers: Callable[[str], dict[str, str]],
        metrics: GatewayMetrics,
    ) -> None:
        self._client = client
        self._engines = engines
        self._headers = headers
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()
        self._given_up: Counter[str] = Counter()
        self._nudges: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._met: OrderedDict[tuple[str, str], None] = OrderedDict()

    @property
    def pending(self) -> int:
        return len(self._tasks)

    def met(self, handoff: Handoff, decode: EngineLease) -> None:
        """This process of a decode engine has read KV of the handoff's prefill engine."""
        self._note((handoff.params.remote_engine_id, decode.process))

    def _note(self, pair: tuple[str, str]) -> None:
        self._met[pair] = None
        self._met.move_to_end(pair)
        if len(self._met) > _MAX_MET:
            self._met.popitem(last=False)

    def give_up(
        self,
        handoff: Handoff,
        event: Event = Event.GAVE_UP,
        *,
        leg: Leg | None = None,
        size: int = 0,
        not_through: str | None = None,
    ) -> None:
        """See a handoff off that nobody wants; one that has ended, or is being seen off, is left.

        Args:
            handoff: In any state.
            event: Why.
            leg: Its prefill leg, while that is open.
            size: Bytes of the leg's body.
            not_through: A decode engine that has just failed: asked last.
        """
        if handoff.ended or handoff.state in SEEN_OFF:
            return
        handoff.move(event)
        if handoff.ended:
            self._count(handoff)
            return
        if len(self._tasks) >= _MAX_PENDING:
            handoff.move(Event.SHUT_DOWN)
            self._metrics.kv_releases.labels("dropped").inc()
            log.error("too many KV releases are pending: this one waits for its lease to end")
            if leg is not None:
                leg.cancel()
                leg.add_done_callback(_look_away)
            return
        self._spawn(self._see_off(handoff, leg, size, not_through))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_off(
        self, handoff: Handoff, leg: Leg | None, size: int, not_through: str | None
    ) -> None:
        try:
            if handoff.state is State.COLLECTING and leg is not None:
                await self._collect(handoff, leg, size)
            if handoff.state is State.SETTLING:
                await asyncio.sleep(ABORT_SETTLES_S)
                handoff.move(Event.SETTLED)
            if handoff.state is State.RELEASING:
                let_go = await self._reject(handoff, not_through)
                handoff.move(Event.LET_GO if let_go else Event.NOT_LET_GO)
        finally:
            if not handoff.ended:
                handoff.move(Event.SHUT_DOWN)
            self._count(handoff)

    def _count(self, handoff: Handoff) -> None:
        self._metrics.kv_releases.labels(handoff.state.value).inc()
        if handoff.state is State.LAPSING:
            log.warning(
                "KV may stay held until its lease ends",
                extra={"engine": handoff.prefill_engine, "request_id": handoff.request_id},
            )

    async def _collect(self, handoff: Handoff, leg: Leg, size: int) -> None:
        engine = handoff.prefill_engine
        counts = max(size, _LEAST_BYTES)
        patient = size <= ONE_STEP_BYTES and self._given_up[engine] + counts <= PATIENT_BYTES
        if not patient:
            counts = 0
        self._given_up[engine] += counts
        try:
            await asyncio.wait({leg}, timeout=PATIENCE_S if patient else IMPATIENCE_S)
        finally:
            self._given_up[engine] -= counts
            closed = leg.cancel()  # also when we are cancelled ourselves, as the gateway ends
            leg.add_done_callback(_look_away)
        if closed:
            handoff.move(Event.IMPATIENT)
        elif leg.cancelled():
            handoff.move(Event.BROKE)
        elif (failure := leg.exception()) is not None:
            handoff.move(event_of(failure))
        else:
            handoff.answered(leg.result())

    async def _reject(self, handoff: Handoff, not_through: str | None) -> bool:
        body = encode_body(release_body(handoff.params))
        peer = handoff.params.remote_engine_id
        engines = sorted(
            self._engines(),
            key=lambda e: (
                # One of other versions cannot shake hands with prefill.
                generation_of(e) != handoff.generation,
                e.replica_id == not_through,
                (peer, e.process) not in self._met,
            ),
        )
        for engine in engines[:_RELEASE_ENGINES]:
            try:
                status, _ = await self._client.fetch(
                    engine,
                    "POST",
                    "/v1/completions",
                    timeout_s=RELEASE_TIMEOUT_S,
                    body=body,
                    headers=self._headers(f"{handoff.request_id}-r"),
                )
            except LegFailed as exc:
                log.warning(
                    "a KV release did not get through",
                    extra={"engine": engine.replica_id, "failure": exc.failure},
                )
                continue
            if status in (400, 404):
                log.debug("KV released", extra={"request_id": handoff.request_id})
                self._nudge_later((peer, engine.process), engine)
                return True
            log.warning(
                "a KV release got an unexpected answer",
                extra={"engine": engine.replica_id, "status": status},
            )
        return False

    def _nudge_later(self, pair: tuple[str, str], engine: EngineLease) -> None:
        """Once for a pair, however many releases wait for the same handshake."""
        if pair in self._met or pair in self._nudges:
            return
        task = self._nudges[pair] = asyncio.create_task(self._nudge(pair, engine))
        task.add_done_callback(lambda _: self._nudges.pop(pair, None))

    async def _nudge(self, pair: tuple[str, str], engine: EngineLease) -> None:
        """Give an engine steps to take: releases may wait for one (`NUDGES_S`)."""
        body = encode_body(nudge_body(engine.model_id))
        stepped = False
        for wait_s in NUDGES_S:
            await asyncio.sleep(wait_s)
            if pair in self._met:
                return  # it has read something of that engine meanwhile
            with contextlib.suppress(LegFailed):
                status, _ = await self._client.fetch(
                    engine,
                    "POST",
                    "/v1/completions",
                    timeout_s=RELEASE_TIMEOUT_S,
                    body=body,
                    headers=self._headers(f"nudge-{uuid.uuid4().hex[:12]}"),
                )
                stepped = status == 200  # noqa: PLR2004
        if stepped:
            self._note(pair)

    async def close(self, timeout_s: float = 2.0) -> None:
        """Wait for what is pending, then stop it."""
        tasks = {*self._tasks, *self._nudges.values()}
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def event_of(failure: BaseException) -> Event:
    """What a prefill leg's failure says about the KV on its engine."""
    if isinstance(failure, LegFailed) and failure.failure in ("disconnected", "truncated"):
        return Event.BROKE  # an engine that lives may have finished all the same
    return Event.FAILED


def _look_away(leg: Leg) -> None:
    """Nobody waits for how it failed; asyncio would complain that nobody asked."""
    if not leg.cancelled():
        leg.exception()


NO_SUCH_MODEL = "baton-kv-release"


def release_body(params: KVTransferParams) -> dict[str, Any]:
    """A request that decode rejects at once, and so frees the blocks that its params name.

    It must never be taken: its prompt is not the one the KV belongs to. The model is not served
    (404 before anything is tokenized), and should an engine not check names
    (VLLM_SKIP_MODEL_NAME_VALIDATION), vLLM 0.29 refuses any `suffix` (400,
    renderers/online_renderer.py). Both are inside the block that notifies prefill; a body that
    pydantic refuses would not be.
    """
    return {
        "model": NO_SUCH_MODEL,
        "prompt": [0],
        "max_tokens": 1,
        "suffix": "x",
        "kv_transfer_params": params.model_dump(),
    }


def nudge_body(model: str) -> dict[str, Any]:
    """The smallest request that makes an engine take a step."""
    return {"model": model, "prompt": [0], "max_tokens": 1, "temperature": 0}
