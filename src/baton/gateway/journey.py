"""Takes a request through its legs: prefill, handoff, decode, and round again when one fails.

The thin loop around the decisions of `recovery`. It ends with an answer that says something, or
with the error that the caller gets; nothing that prefill holds is left behind on any way out.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from baton.errors import DeadlinePassed, EngineFailed, LegFailed
from baton.gateway.ask import leg_headers
from baton.gateway.choosing import Choosing, NoTaker
from baton.gateway.decode import decode_body, open_decode
from baton.gateway.directory import need_decode
from baton.gateway.first_token import Ordinary, read
from baton.gateway.generations import MIXED
from baton.gateway.handoff import Event
from baton.gateway.lease_guard import engines_guard
from baton.gateway.mishaps import Mishaps
from baton.gateway.prefill import RequestRejected, prefill_body, prefill_on
from baton.gateway.prompt_usage import PromptUsage
from baton.gateway.recovery import after_decode_failure, after_prefill_failure, final_error
from baton.gateway.request_body import encode_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.gateway.ask import Ask, Parts
    from baton.gateway.decode import DecodeAnswer
    from baton.gateway.first_token import FirstToken, Plan
    from baton.gateway.handoff import Handoff
    from baton.gateway.lease_guard import LeaseWatch
    from baton.observe.timeline import Timeline
    from baton.observe.timeline_fields import Stage
    from baton.spec.lease import EngineLease


class Journey:
    """One request's way from admitted to an answer that says something."""

    def __init__(
        self,
        parts: Parts,
        ask: Ask,
        timeline: Timeline,
        *,
        avoid: frozenset[str] = frozenset(),
        asks_ids: bool = False,
        plan: Plan | None = None,
    ) -> None:
        self._parts = parts
        self.ask = ask
        self.timeline = timeline
        self._avoid = avoid
        self._tried = set(avoid)  # decode engines that this request is not for, by replica_id
        self._asks_ids = asks_ids
        self._choose = Choosing(parts, ask, timeline)
        self._mishaps = Mishaps(parts, timeline)
        self._leg_prefix = f"{timeline.request_id}-{os.urandom(6).hex()}"
        self._counted: EngineLease | None = None
        self._again: str | None = None  # the engine that is asked again, by its replica_id
        self._plan = plan
        self._prefilled = False
        self._said: Any = None  # prefill's answer, where it was planned to use it
        self.prompt_usage: PromptUsage | None = None
        """What the last prefill leg said of the prompt."""
        self._picked: EngineLease | None = None
        self._offer: Handoff | None = None
        self._lease: LeaseWatch | None = None
        self._kv_bytes = 0
        self._handoff_s: float | None = None
        self.stage = "admit"
        self.prefill_done: Callable[[], None] = lambda: None
        timeline.route = "pd" if ask.why_alone is None else "decode_only"
        timeline.reason = ask.reason
        timeline.way = None if ask.choice is None else ask.choice.as_dict()

    def _time_left(self) -> float:
        left = self._parts.settings.request_timeout_s - self.timeline.since_received()
        if left <= 0:
            raise DeadlinePassed("The request's deadline passed before an answer began.")
        return left

    async def first_token(self) -> FirstToken | None:
        """Prefill, and what it says of the answer if that may be said at once; before `run`.

        Where something is left to write, the KV stays offered, and `run` goes on with it: the
        same request when None comes back, and otherwise the one that `go_on_with` was told.

        Raises:
            RequestRejected: Prefill refused the request.
            GatewayError: Nothing worked.
        """
        if self._plan is None:
            return None
        self._parts.budget.request()
        self.stage = "route"
        await need_decode(self._parts.directory, after_failure=False)
        prefill = await self._prefill()
        plan, self._plan, self._prefilled = self._plan, None, True
        self.prefill_done()
        said, self._said = self._said, None
        if prefill is None or self._offer is None:
            self.timeline.first_token = ("ordinary", "fallback")
            return None
        self._picked = self._pick_decode(self._tried)
        if self._offer is None:
            self.timeline.first_token = ("ordinary", "fallback")
            return None
        try:
            token = read(plan, said, self._offer.params, prefill, self._picked)
        except Ordinary as why:
            self.timeline.first_token = ("ordinary", why.reason)
            return None
        if token.rest is None:
            self.timeline.first_token = ("early", "complete")
            self._parts.releases.give_up(self._offer)
        else:
            self.timeline.first_token = ("early", "from_prefill")
            self.timeline.decode_engine = self._picked.replica_id
        return token

    def go_on_with(self, ask: Ask) -> None:
        """From now on this is asked for; the KV that is offered is that of its prompt."""
        self.ask = ask

    async def run(self) -> DecodeAnswer:
        """Until a decode engine's answer has begun.

        Raises:
            RequestRejected: An engine refused the request.
            GatewayError: Nothing worked.
        """
        alone = self.ask.why_alone is not None
        if self._prefilled:
            alone = self._offer is None
        else:
            self._parts.budget.request()
            self.stage = "route"
        tried = self._tried
        attempt = 0
        try:
            while True:
                attempt += 1
                if self.ask.tag is None:
                    # Before prefill computes for nothing.
                    await need_decode(self._parts.directory, after_failure=attempt > 1)
                if not alone and not self._prefilled:
                    alone = await self._prefill() is None
                    self.prefill_done()
                self._prefilled = False
                engine, self._picked = self._picked or self._pick_decode(tried), None
                started = self.timeline.now()
                try:
                    with self._parts.directory.breakers.leg(engine):
                        answer = await self._decode_in_time(engine, attempt)
                except LegFailed as failure:
                    self._offer = None  # released or spent: the next try has its own or none
                    took_s = self.timeline.now() - started
                    self._mishaps.leg_failed("decode", engine.replica_id, failure, took_s)
                    self._decode_failed(engine, failure, attempt, tried)
                    if attempt + 1 >= self._parts.settings.max_attempts and not alone:
                        alone = True
                        self._mishaps.fell_back(f"decode_{failure.failure}")
                else:
                    if not answer.refused:
                        self._choose.learn(engine)
                    return answer
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """What was not taken: the caller went away, or an error leaves through here."""
        if self._offer is not None:
            self._parts.releases.give_up(self._offer)

    def close(self) -> None:
        """The answer has been handed on, or there is none."""
        self._let_go()
        self._count(None)
        if self._lease is not None:
            self._lease.close()

    def _count(self, engine: EngineLease | None) -> None:
        if self._counted is not None:
            self._parts.inflight.end(self._counted)
        self._counted = engine
        if engine is not None:
            self._parts.inflight.begin(engine)

    # -- prefill ---------------------------------------------------------------------------------

    async def _prefill(self) -> EngineLease | None:
        """Prefill on some engine within the deadline, which offers its KV; None: decode alone."""
        self._offer = None
        parts, timeline = self._parts, self.timeline
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(parts.settings.prefill_timeout_s, self._time_left())
        tried = set(self._avoid)
        failed_as = "no_prefill_engine"
        for attempt in range(1, parts.settings.max_attempts + 1):
            engine = self._choose.prefill(tried, self._tried)
            if engine is None:
                if parts.directory.prefill_engines() and not self._choose.paired(self._tried):
                    failed_as = MIXED
                break
            tried.add(engine.replica_id)
            timeline.prefill_engine = engine.replica_id
            self.stage = "prefill"
            started = timeline.now()
            try:
                with parts.directory.breakers.leg(engine):
                    self._offer = await self._prefill_on(engine, deadline - loop.time())
            except LegFailed as failure:
                took_s = timeline.now() - started
                self._mishaps.leg_failed("prefill", engine.replica_id, failure, took_s)
                failed_as = f"prefill_{failure.failure}"
                ready = self._choose.paired(self._tried)
                step = after_prefill_failure(
                    failure.failure,
                    attempt=attempt,
                    max_attempts=parts.settings.max_attempts,
                    others=any(e.replica_id not in tried for e in ready),
                    budget=parts.budget.left,
                )
                if step == "decode_alone":
                    break
                self._mishaps.tried_again("prefill", failure)
                continue
            timeline.add("prefill", timeline.now() - started)
            timeline.came(timeline.now())
            self._choose.learn(engine)
            self.stage = "route"
            return engine
        timeline.prefill_engine = None
        self._mishaps.fell_back(failed_as)
        return None

    async def _prefill_on(self, engine: EngineLease, timeout_s: float) -> Handoff:
        parts, ask = self._parts, self.ask
        leg_id = f"{self._leg_prefix}-p{len(self.timeline.attempts)}"
        if ask.body is None:
            raise EngineFailed("a request without a body has no prefill leg")
        plan = self._plan
        body = encode_body(
            prefill_body(ask.body, ask.route) if plan is None else plan.prefill_body()
        )
        if self._lease is not None:
            self._lease.close()
        offered = await prefill_on(
            parts,
            engine,
            ask.route,
            body,
            headers=self._headers("prefill", engine, leg_id),
            leg_id=leg_id,
            timeout_s=timeout_s,
        )
        handoff, self._lease, said = offered.handoff, offered.lease, offered.said
        self._said = None if plan is None else said
        self.prompt_usage = PromptUsage.of(said, ask.route.dialect)
        self.timeline.prompt_tokens = handoff.params.prompt_tokens or self.timeline.prompt_tokens
        self._kv_bytes = engine.kv_bytes_per_token * (self.timeline.prompt_tokens or 0)
        return handoff

    # -- decode ----------------------------------------------------------------------------------

    def _pick_decode(self, tried: set[str]) -> EngineLease:
        try:
            return self._choose.decode(tried, self._offer, self._again)
        except NoTaker:
            self._let_go()
            self._offer = None
            self._mishaps.fell_back(MIXED)
        return self._choose.decode(tried, None, self._again)

    async def _decode_in_time(self, engine: EngineLease, attempt: int) -> DecodeAnswer:
        """Decode, and believe it only while prefill's lease on what it read surely lived."""
        offer, lease = self._offer, self._lease
        if offer is None or lease is None:
            return await self._decode(engine, attempt)
        try:
            lease.refuse_late_offer()
        except LegFailed:
            self._parts.releases.give_up(offer)
            raise
        offer.move(Event.ASKED)
        try:
            answer = await self._decode(engine, attempt)
        except LegFailed as failure:
            if not engines_guard(offer.params, engine):
                self._parts.leases.distrust(engine, failure)
            raise
        if answer.refused:
            # vLLM's own clean-up has ended by the time a stream refuses.
            self._parts.releases.give_up(offer, Event.REFUSED)
            return answer
        offer.move(Event.TOOK)
        self._parts.releases.met(offer, engine)
        self._parts.metrics.handoffs.done(
            offer.prefill_engine,
            engine.replica_id,
            kv_bytes=self._kv_bytes,
            seconds=self._handoff_s,
        )
        if not engines_guard(offer.params, engine):
            try:
                await lease.refuse_late_answer(answer.close)
            except LegFailed as failure:
                self._parts.leases.distrust(engine, failure)
                raise
        answer.read_by_prefill(self.prompt_usage)
        return answer

    async def _decode(self, engine: EngineLease, attempt: int) -> DecodeAnswer:
        parts, ask, timeline = self._parts, self.ask, self.timeline
        offer = self._offer
        left = self._time_left()
        if ask.streamed:
            left = min(left, parts.settings.decode_first_byte_timeout_s)
        timeline.decode_engine = engine.replica_id
        self.stage = "decode" if offer is None else "handoff"
        self._count(engine)
        body = None
        if ask.body is not None:
            salt, asks_ids = parts.leases.salt_of(engine), self._asks_ids
            copy = decode_body(ask.body, ask.route, engine, offer, asks_ids=asks_ids, salt=salt)
            body = encode_body(copy)
        started = timeline.now()
        try:
            async with asyncio.timeout(left):
                answer = await open_decode(
                    parts.client,
                    engine,
                    ask.route,
                    method=ask.method,
                    path=ask.path,
                    body=body,
                    headers=self._headers("decode", engine, f"{self._leg_prefix}-d{attempt}"),
                )
        except TimeoutError as exc:
            if offer is not None:
                # vLLM frees the blocks itself when it sees the abort. An engine that hangs may
                # still be reading them: then their lease must end it, not we.
                parts.releases.give_up(offer, Event.HUNG)
            raise LegFailed("timeout", engine.replica_id) from exc
        except RequestRejected:
            if offer is not None:
                # vLLM's own clean-up does not run for what pydantic refuses.
                parts.releases.give_up(offer, Event.REFUSED)
            raise
        except LegFailed:
            if offer is not None:
                parts.releases.give_up(offer, Event.FAILED, not_through=engine.replica_id)
            raise
        self.stage = "decode"
        took_s = answer.first_byte_at - started
        self._handoff_s = took_s if answer.streamed else None
        timeline.came(answer.first_byte_at)
        stage: Stage = "answer"
        if answer.streamed:
            stage = "local_prefill" if offer is None else "handoff"
        timeline.add(stage, took_s, since=started)
        return answer

    def _decode_failed(
        self, engine: EngineLease, failure: LegFailed, attempt: int, tried: set[str]
    ) -> None:
        """Note it, and raise when there is nothing more to try."""
        self._count(None)
        tried.add(engine.replica_id)
        sound = self._choose.sound()
        step = after_decode_failure(
            failure.failure,
            attempt=attempt,
            max_attempts=self._parts.settings.max_attempts,
            others=any(e.replica_id not in tried for e in sound),
            resting=any(e.replica_id not in tried for e in self._choose.resting()),
            budget=self._parts.budget.left,
        )
        if step == "give_up":
            raise final_error(failure.failure) from failure
        self._again = engine.replica_id if step == "same_decode" else None
        self._mishaps.tried_again("decode", failure)

    # -- both ------------------------------------------------------------------------------------

    def _headers(self, leg: str, engine: EngineLease, leg_id: str) -> dict[str, str]:
        traced = self.timeline.leg(leg, engine.replica_id)
        return leg_headers(self._parts.directory, {**self.ask.headers, **traced}, leg_id)
