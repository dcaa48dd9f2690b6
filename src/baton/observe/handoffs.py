"""KV that went from one engine to another, by pair, with a bound on how many pairs are told apart.

A hundred prefill and a hundred decode engines are 10,000 pairs. The first `MAX_PAIRS` have series
of their own until one of their engines has left the directory; what comes when all are taken is
counted under `other`. So a counter never goes back, and sums are right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.observe import definitions

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from prometheus_client import CollectorRegistry, Counter

_OTHERS = (definitions.OTHER, definitions.OTHER)


class HandoffMetrics:
    """Handoffs, bytes and seconds by prefill and decode engine."""

    def __init__(self, registry: CollectorRegistry, max_pairs: int = definitions.MAX_PAIRS) -> None:
        self._counters = tuple(
            definition.counter(registry)
            for definition in (
                definitions.HANDOFFS,
                definitions.HANDOFF_BYTES,
                definitions.HANDOFF_SECONDS,
                definitions.HANDOFF_TIMED_BYTES,
            )
        )
        self._max_pairs = max_pairs
        self._pairs: dict[tuple[str, str], tuple[Counter, ...]] = {}

    def done(self, prefill: str, decode: str, *, kv_bytes: int, seconds: float | None) -> None:
        """A decode engine took a prompt's KV.

        Args:
            prefill: `replica_id` of the engine that computed it.
            decode: Of the engine that reads it.
            kv_bytes: 0 when that is not known.
            seconds: Of a streamed answer, to its first byte.
        """
        pair = (prefill, decode)
        series = self._pairs.get(pair)
        if series is None:
            if len(self._pairs) >= self._max_pairs:
                pair = _OTHERS
            series = tuple(counter.labels(*pair) for counter in self._counters)
            if pair is not _OTHERS:
                self._pairs[pair] = series
        count, moved, took, timed = series
        count.inc()
        moved.inc(kv_bytes)
        if seconds is not None:
            took.inc(seconds)
            timed.inc(kv_bytes)

    def forget_all_but(self, engines: AbstractSet[str]) -> None:
        """Engines that have left the directory take their pairs along."""
        for pair in [p for p in self._pairs if not (p[0] in engines and p[1] in engines)]:
            del self._pairs[pair]
            for counter in self._counters:
                counter.remove(*pair)
