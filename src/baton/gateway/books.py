"""What is written down of a request: the access line, the metrics, the ring, the trace."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.observe.logs import say

if TYPE_CHECKING:
    from baton.errors import GatewayError
    from baton.gateway.caller import Caller
    from baton.gateway.routes import Route
    from baton.observe.metrics import GatewayMetrics
    from baton.observe.otlp import Tracer
    from baton.observe.timeline import Timeline, TimelineRing

access = logging.getLogger("baton.gateway.access")


@dataclass(frozen=True)
class Books:
    """One gateway's."""

    metrics: GatewayMetrics
    timelines: TimelineRing
    tracer: Tracer

    def refused(
        self, error: GatewayError, caller: Caller, route: Route | None, key: str | None
    ) -> None:
        """A request got one of our own errors before any engine was asked."""
        self.metrics.reject(str(error.code or error.status), key)
        access.info(
            "%s %s %d",
            caller.scope["method"],
            route.path if route else "?",
            error.status,
            extra={"request_id": caller.request_id, "code": error.code, "key": key},
        )

    def note(self, timeline: Timeline, caller: Caller, key: str, hung_up_in: str | None) -> None:
        """A request has ended, whichever way."""
        timeline.bytes_out = caller.sent
        if hung_up_in is not None:
            self.metrics.hangups.labels(hung_up_in).inc()
        self.metrics.observe(timeline)
        self.metrics.key_requests.labels(key, timeline.outcome).inc()
        self.tracer.end(timeline)
        self.timelines.add(timeline)
        if access.isEnabledFor(logging.INFO):
            fields = {"key": key, "hung_up_in": hung_up_in, **timeline.log_fields()}
            method = caller.scope["method"]
            say(access, "%s %s %d", method, timeline.path, timeline.status, fields=fields)
