"""What `disaggregate: auto` has learned and chosen, for dashboards. NaN: not measured yet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

if TYPE_CHECKING:
    from collections.abc import Iterable


class Learned(Protocol):
    """The numbers that are shown; `baton.gateway.cost.Learned` says what they mean."""

    @property
    def prefill_s_per_1000(self) -> float | None: ...
    @property
    def local_prefill_s_per_1000(self) -> float | None: ...
    @property
    def handoff_fixed_s(self) -> float | None: ...
    @property
    def handoff_tokens_per_s(self) -> float | None: ...
    @property
    def break_even_tokens(self) -> float | None: ...
    @property
    def failed_share(self) -> float: ...


class CostMetrics:
    """One counter of choices, and gauges of what they rest on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
            return Gauge(f"baton_cost_{name}", text, labels, registry=registry)

        self.choices = Counter(
            "baton_ways",
            "Requests on routes that can be disaggregated, by the way chosen for them and why.",
            ["way", "reason"],
            registry=registry,
        )
        self._prefill = gauge(
            "prefill_seconds_per_1000_tokens",
            "Measured seconds until 1,000 prompt tokens are read, by where.",
            ["where"],
        )
        self._fixed = gauge(
            "handoff_fixed_seconds",
            "What a first byte takes longer behind a handoff of no tokens than on decode alone.",
        )
        self._tokens = gauge("handoff_tokens_per_second", "Measured speed of KV transfers.")
        self._bytes = gauge(
            "handoff_bytes_per_second",
            "The same in bytes, where engines say what KV a token has.",
        )
        self._even = gauge(
            "break_even_tokens",
            "Prompts longer than this are worth a handoff now; +Inf when none is.",
        )
        self._failed = gauge("handoff_failed_share", "Share of the last handoffs that failed.")
        self._ratio = gauge("tokens_per_byte", "Prompt tokens that a byte of text makes.")

    def show(
        self, learned: Learned, *, tokens_per_byte: float | None, kv_bytes_per_token: int | None
    ) -> None:
        """Take over what is believed now."""
        self._prefill.labels("prefill").set(_or_nan(learned.prefill_s_per_1000))
        self._prefill.labels("decode").set(_or_nan(learned.local_prefill_s_per_1000))
        self._fixed.set(_or_nan(learned.handoff_fixed_s))
        rate = learned.handoff_tokens_per_s
        self._tokens.set(_or_nan(rate))
        self._bytes.set(_or_nan(rate) * _or_nan(kv_bytes_per_token))
        self._even.set(_or_nan(learned.break_even_tokens))
        self._failed.set(learned.failed_share)
        self._ratio.set(_or_nan(tokens_per_byte))


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
