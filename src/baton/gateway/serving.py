"""Serves one request that engines answer: from its body to its last byte, whatever happens.

What is understood becomes a journey (`journey`); it is admitted (`entrance`) and its answer handed
on (`delivery`). One more task watches whether the caller is still there. However it ends, it is
written down (`books`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from baton.errors import BrokenStream, GatewayError, Saturated
from baton.gateway.answers import answer_error, answer_fault, answer_rejection, last_headers
from baton.gateway.caller import CallerGone
from baton.gateway.delivery import deliver
from baton.gateway.first_token import Ordinary, plan
from baton.gateway.intake import understand
from baton.gateway.journey import Journey
from baton.gateway.prefill import RequestRejected
from baton.gateway.resume import Resumer
from baton.observe.timeline import Timeline

if TYPE_CHECKING:
    from baton.gateway.admission import HeldBodies
    from baton.gateway.app import GatewayApp
    from baton.gateway.ask import Ask, Parts
    from baton.gateway.auth import Holder
    from baton.gateway.books import Books
    from baton.gateway.caller import Caller
    from baton.gateway.entrance import Entrance
    from baton.gateway.first_token import Plan
    from baton.gateway.routes import Route
    from baton.observe.otlp import Tracer

log = logging.getLogger("baton.gateway")


class Serving:
    """One gateway's."""

    def __init__(
        self,
        app: GatewayApp,
        entrance: Entrance,
        books: Books,
        tracer: Tracer,
        bodies: HeldBodies,
    ) -> None:
        self._app = app
        self._entrance = entrance
        self._books = books
        self._tracer = tracer
        self._bodies = bodies

    async def serve(
        self, parts: Parts, caller: Caller, route: Route, ident: str | None, holder: Holder
    ) -> None:
        """Answer a request that engines answer.

        Raises:
            GatewayError: It was refused before anybody was asked.
        """
        app = self._app
        timeline = Timeline(caller.request_id, route.path)
        timeline.trace = self._tracer.begin(
            caller.header(b"traceparent"), caller.header(b"tracestate")
        )
        try:
            limits = app.settings.admission
            raw = await caller.read_body(limits.max_body_bytes, limits.body_timeout_s, self._bodies)
            ask = understand(
                caller,
                route,
                ident,
                raw,
                mode=app.settings.disaggregate.mode,
                known_models=app.model_ids,
                ways=app.ways,
            )
        except CallerGone:
            timeline.gone()
            self._books.note(timeline, caller, holder.name, hung_up_in="admit")
            return
        timeline.generates = route.kind == "pd"
        me = asyncio.current_task()
        resumer = Resumer(parts, ask, timeline) if ask.streamed else None
        journey = Journey(
            parts,
            ask,
            timeline,
            asks_ids=resumer is not None and resumer.asks_ids,
            plan=None if resumer is None else self._plan(ask, resumer, timeline),
        )
        lesson = app.ways.lesson(ask, timeline)
        hung_up = False

        async def watch() -> None:
            # The only other task of a request. Cancelling the request closes its legs' connections.
            nonlocal hung_up
            try:
                await caller.hung_up()
            except Exception:  # a server whose channel broke: it ends the request itself
                log.debug("the caller's channel broke", exc_info=True)
                return
            if me is not None and not caller.finished:
                hung_up = True
                me.cancel()

        watcher = asyncio.create_task(watch())
        try:
            await self._serve(caller, journey, resumer, parts, holder)
        except asyncio.CancelledError:
            timeline.gone()
            if not hung_up or me is None:
                raise  # the server ends us, not the caller
            me.uncancel()
        finally:
            watcher.cancel()
            lesson.close()
            if resumer is not None:
                resumer.count_tokens()
            timeline.finish("ok")
            gone = timeline.outcome == "hangup"
            stage = journey.stage if gone else None
            self._books.note(timeline, caller, holder.name, hung_up_in=stage)

    def _plan(self, ask: Ask, resumer: Resumer, timeline: Timeline) -> Plan | None:
        """Whether the first token may leave from prefill."""
        if ask.why_alone is not None:
            return None
        mode = self._app.settings.disaggregate.first_token
        try:
            return plan(ask, resumer.means, keeps_ids=resumer.asks_ids, mode=mode)
        except Ordinary as why:
            timeline.first_token = ("ordinary", why.reason)
            return None

    async def _serve(
        self,
        caller: Caller,
        journey: Journey,
        resumer: Resumer | None,
        parts: Parts,
        holder: Holder,
    ) -> None:
        """From the queue to the last byte, with every failure turned into an answer."""
        timeline, route = journey.timeline, journey.ask.route

        async def locally() -> None:
            await deliver(
                journey,
                caller,
                resumer,
                directory=self._app.directory,
                settings=self._app.settings.recovery,
            )

        try:
            await self._entrance.serve(caller, journey, parts, holder, locally)
        except RequestRejected as rejected:
            timeline.finish("rejected", rejected.status)
            await answer_rejection(caller, rejected, route, last_headers(timeline, caller))
        except CallerGone:
            timeline.gone()
        except BrokenStream:
            self._app.metrics.broken_streams.inc()
            timeline.finish("broken")
        except GatewayError as error:
            timeline.finish("rejected" if isinstance(error, Saturated) else "error", error.status)
            self._app.metrics.reject(str(error.code or error.status), holder.name)
            await answer_error(caller, error, route, last_headers(timeline, caller))
        except Exception:
            log.exception("a fault in the gateway", extra={"request_id": caller.request_id})
            timeline.finish("error", 500)
            await answer_fault(caller, route)
