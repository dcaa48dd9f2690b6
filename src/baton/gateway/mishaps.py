"""Writes down what goes wrong on a journey: in its timeline, the metrics, the log, the budget."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Literal

    from baton.errors import LegFailed
    from baton.gateway.ask import Parts
    from baton.observe.timeline import Timeline

log = logging.getLogger("baton.gateway.journey")


@dataclass(frozen=True, slots=True)
class Mishaps:
    """One request's."""

    parts: Parts
    timeline: Timeline

    def leg_failed(
        self, leg: Literal["prefill", "decode"], engine: str, failure: LegFailed, seconds: float
    ) -> None:
        """A leg failed on an engine, after so long."""
        self.timeline.failed_attempt(leg, engine, failure.failure, seconds)
        log.warning(
            "%s leg failed",
            leg,
            extra={
                "request_id": self.timeline.request_id,
                "engine": engine,
                "failure": failure.failure,
                "detail": failure.place,
            },
        )

    def tried_again(self, leg: Literal["prefill", "decode"], failure: LegFailed) -> None:
        """Another engine is asked, or the same one once more."""
        self.parts.budget.spend()
        self.parts.metrics.retries.labels(leg, failure.failure).inc()

    def fell_back(self, kind: str) -> None:
        """It goes on decode alone, where both phases were wanted."""
        self.timeline.route = "decode_only"
        self.timeline.reason = "fallback"
        self.timeline.fallbacks.append(kind)
        self.parts.metrics.fallbacks.labels(kind).inc()
        log.warning(
            "prefill on decode",
            extra={"request_id": self.timeline.request_id, "fallback": kind},
        )
