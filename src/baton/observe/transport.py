"""What each pair's handoffs have shown lately, for dashboards and alerts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from baton.observe import state_definitions as s
from baton.observe.definitions import MAX_PAIRS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry


class TransportMetrics:
    """One gauge for the judgement, one for what it rests on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ok = s.TRANSPORT_OK.gauge(registry)
        self._speed = s.TRANSPORT_SPEED.gauge(registry)

    def show(self, pairs: Iterable[tuple[str, str, bool, float | None]]) -> None:
        """Take over prefill, decode, whether it is well, bytes a second; others leave."""
        self._ok.clear()
        self._speed.clear()
        for prefill, decode, ok, speed in sorted(pairs, key=lambda pair: pair[2])[:MAX_PAIRS]:
            self._ok.labels(prefill, decode).set(1 if ok else 0)
            self._speed.labels(prefill, decode).set(math.nan if speed is None else speed)
