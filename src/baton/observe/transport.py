"""What each pair's handoffs have shown lately, for dashboards and alerts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

if TYPE_CHECKING:
    from collections.abc import Iterable


class TransportMetrics:
    """One gauge for the judgement, one for what it rests on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ok = Gauge(
            "baton_transport_ok",
            "1 while a pair hands KV over as fast as prefill makes it, 0 while it is avoided.",
            ["prefill", "decode"],
            registry=registry,
        )
        self._speed = Gauge(
            "baton_transport_bytes_per_second",
            "KV bytes a second of a pair's handoffs, decode's first step and HTTP included;"
            " NaN where engines do not say what KV a token has.",
            ["prefill", "decode"],
            registry=registry,
        )

    def show(self, pairs: Iterable[tuple[str, str, bool, float | None]]) -> None:
        """Take over prefill, decode, whether it is well, bytes a second; others leave."""
        self._ok.clear()
        self._speed.clear()
        for prefill, decode, ok, speed in pairs:
            self._ok.labels(prefill, decode).set(1 if ok else 0)
            self._speed.labels(prefill, decode).set(math.nan if speed is None else speed)
