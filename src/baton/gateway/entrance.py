"""Decides who serves a request: this deployment at once, after a wait, or the overflow provider.

The shell around `admission`, `tokens` and `overflow`. A request that may overflow waits here no
longer than `hold_off_s`, counted from when the lack began: the first requests of a busy spell wait
for a place, and once it has lasted that long what does not fit goes out at once.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from baton.errors import NoEngineAvailable, Saturated
from baton.gateway.eligibility import at_most
from baton.gateway.tokens import PromptCounter, check_length

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from baton.gateway.admission import Admission, Place
    from baton.gateway.ask import Ask, Parts
    from baton.gateway.auth import Holder
    from baton.gateway.caller import Caller
    from baton.gateway.journey import Journey
    from baton.gateway.overflow import Overflow, Reason
    from baton.observe.metrics import GatewayMetrics
    from baton.spec.schema import BatonBlock

LOOK_EVERY_S = 0.05


class Entrance:
    """One gateway's way in."""

    def __init__(
        self,
        settings: BatonBlock,
        admission: Admission,
        overflow: Overflow | None,
        metrics: GatewayMetrics,
    ) -> None:
        self._settings = settings
        self._limits = settings.admission
        self._admission = admission
        self._overflow = overflow
        self._counts = PromptCounter(metrics) if admission.needs_tokens else None
        self._unready_since: float | None = None

    async def serve(
        self,
        caller: Caller,
        journey: Journey,
        parts: Parts,
        holder: Holder,
        locally: Callable[[], Awaitable[None]],
    ) -> None:
        """Have a request answered by whoever can.

        Raises:
            GatewayError: Nobody can, or an engine's or the provider's failure.
            RequestRejected: Whoever was asked says that the request is wrong.
        """
        try:
            tokens = 0 if self._counts is None else await self._count(journey.ask, parts)
            journey.timeline.prompt_tokens = tokens or None
            # Without any prefill engine it goes to decode alone, and waits for decode only.
            timeline = journey.timeline
            timeline.add("admit", timeline.since_received())
            asked = timeline.now()
            place = self._admission.ask(
                holder.name,
                prefill=journey.ask.why_alone is None and bool(parts.directory.prefill_engines()),
                tokens=tokens,
                weight=holder.weight,
            )
            waits = place.state != "held" or (
                self._overflow is not None and not parts.directory.decode_engines()
            )
            try:
                await self._wait(place, caller, journey.ask)
                if self._overflow is not None:
                    await self._wait_for_engines(self._overflow, parts)
                if waits:
                    timeline.add("queue", timeline.now() - asked)
                journey.prefill_done = place.prefill_done
                await locally()
                return
            finally:
                place.leave()
        except NoEngineAvailable as exc:
            lack: tuple[Reason, Saturated | NoEngineAvailable] = ("unready", exc)
        except Saturated as exc:
            lack = ("saturated", exc)
        reason, error = lack
        overflow = self._overflow
        if overflow is None or caller.started or not overflow.settings.covers(reason):
            raise error
        why_not = overflow.why_not(caller, journey.ask)
        if why_not is not None:
            caller.extra[b"x-baton-not-overflowed"] = _header_safe(why_not)
            raise error
        journey.stage = "overflow"
        await overflow.serve(
            caller,
            journey.ask,
            journey.timeline,
            reason=reason,
            instead_of=error,
            idle_s=self._settings.recovery.stream_idle_timeout_s,
        )

    async def _wait(self, place: Place, caller: Caller, ask: Ask) -> None:
        """Until the places are held, or it has waited long enough."""
        if place.state == "held":
            return
        left_s = self._limits.queue_timeout_s
        overflow = self._overflow
        if overflow is not None and overflow.settings.covers("saturated"):
            since = self._admission.waiting_since
            hold_off_s = overflow.settings.hold_off_s - _ago(since)
            first_s = min(left_s, max(0.0, hold_off_s))
            if await place.wait(first_s):
                return
            # Asked only now, and left for good only when the provider can take it.
            if overflow.why_not(caller, ask) is None:
                raise self._admission.saturated("no place came free in time")
            left_s -= first_s
        if not await place.wait(left_s):
            raise self._admission.saturated("no place came free in time")

    async def _wait_for_engines(self, overflow: Overflow, parts: Parts) -> None:
        """A deployment that is only restarting need not lose requests to the provider."""
        while not parts.directory.decode_engines():
            if self._unready_since is None:
                self._unready_since = time.monotonic()
            left_s = overflow.settings.hold_off_s - _ago(self._unready_since)
            if left_s <= 0 or not overflow.settings.covers("unready"):
                raise NoEngineAvailable("No decode engine is ready.")
            await asyncio.sleep(min(LOOK_EVERY_S, left_s))
        self._unready_since = None

    async def _count(self, ask: Ask, parts: Parts) -> int:
        """The prompt's tokens, where a limit depends on them.

        Raises:
            PromptTooLong: There are too many.
        """
        limit = self._limits.max_prompt_tokens
        pools = (self._limits.prefill, self._limits.decode)
        summed = any(pool.max_prompt_tokens_inflight is not None for pool in pools)
        if self._counts is None or ask.body is None:
            return 0
        if not summed and limit is not None and at_most(ask.body, limit):
            return 0  # it has fewer bytes than it may have tokens
        counts = await self._counts.count(ask, parts.client, parts.directory, parts.router)
        engines = parts.directory.all_engines()
        context = min((e.max_model_len for e in engines if e.max_model_len > 0), default=0)
        check_length(counts, limit=limit, context=context)
        return sum(counts)


def _ago(since: float | None) -> float:
    return 0.0 if since is None else time.monotonic() - since


def _header_safe(text: str) -> bytes:
    """A field's name comes from the caller: only what may stand in a header."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)[:64].encode()
