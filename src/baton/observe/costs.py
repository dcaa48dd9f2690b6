"""What `disaggregate: auto` has learned and chosen, for dashboards. NaN: not measured yet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from baton.observe import state_definitions as s
from baton.observe.definitions import WAYS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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
        self.choices = WAYS.counter(registry)
        self._prefill = s.COST_PREFILL.gauge(registry)
        self._fixed = s.COST_FIXED.gauge(registry)
        self._tokens = s.COST_TOKENS.gauge(registry)
        self._bytes = s.COST_BYTES.gauge(registry)
        self._even = s.COST_EVEN.gauge(registry)
        self._failed = s.COST_FAILED.gauge(registry)
        self._ratio = s.COST_RATIO.gauge(registry)

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
