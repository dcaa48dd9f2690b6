"""Gaps between the pieces of streams, counted where they happen and added up when a stream ends.

A piece costs one look at a clock that was read anyway and one addition; nothing grows with the
stream.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family

    from baton.observe.definitions import Metric


class Gaps:
    """One stream's gaps, by bucket. `buckets` are upper bounds in seconds, in order."""

    __slots__ = ("_buckets", "_first", "_last", "counts")

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self._first = self._last = 0.0

    def note(self, now: float) -> None:
        """A piece came."""
        last = self._last
        self._last = now
        if last:
            self.counts[bisect_left(self._buckets, now - last)] += 1
        else:
            self._first = now

    @property
    def sum_s(self) -> float:
        """All gaps together."""
        return self._last - self._first


class AddedUp(Collector):
    """A histogram that takes many observations at once."""

    def __init__(self, definition: Metric, registry: CollectorRegistry) -> None:
        self._definition = definition
        self._counts = [0] * (len(definition.buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def add(self, gaps: Gaps) -> None:
        """Take over a stream's gaps."""
        counts = self._counts
        for number, count in enumerate(gaps.counts):
            if count:
                counts[number] += count
        self._sum += gaps.sum_s

    def _family(self, *, empty: bool) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._definition.name, self._definition.text)
        if not empty:
            total, buckets = 0, []
            for bound, count in zip((*self._definition.buckets, None), self._counts, strict=True):
                total += count
                buckets.append(("+Inf" if bound is None else repr(float(bound)), float(total)))
            family.add_metric([], buckets, self._sum)
        return family

    def describe(self) -> Iterable[Family]:
        yield self._family(empty=True)

    def collect(self) -> Iterable[Family]:
        yield self._family(empty=False)
