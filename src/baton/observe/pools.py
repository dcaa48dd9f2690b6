"""How the two engine pools fare, as the directory says: what they scale by, for dashboards.

The numbers are the engines' own, about a second old; every gateway shows the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Gauge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.spec.lease import EngineLease

_ROLES = ("prefill", "decode")
_STATES = ("starting", "ready", "draining")


class PoolMetrics:
    """Gauges by role; engines that drain count by their state only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"baton_pool_{name}", text, ["role"], registry=registry)

        self._engines = Gauge(
            "baton_pool_engines",
            "Engines in the directory, by state.",
            ["role", "state"],
            registry=registry,
        )
        self._running = gauge("running_requests", "Requests that engines compute.")
        self._waiting = gauge("waiting_requests", "Requests that wait in engines.")
        self._queued = gauge(
            "queued_prompt_tokens",
            "Prompt tokens of open requests, by measured tokens a byte; prefill only.",
        )
        self._rate = gauge(
            "prefill_tokens_per_second",
            "Prompt tokens a second of all engines while busy; prefill only.",
        )
        self._kv = gauge("kv_usage", "Share of KV blocks in use on the fullest engine, 0 to 1.")
        self._tpot = gauge(
            "tpot_seconds", "Recent mean gap between tokens on the slowest engine; decode only."
        )

    def set(self, engines: Sequence[EngineLease]) -> None:
        """Take over what the directory says now."""
        for role in _ROLES:
            pool = [engine for engine in engines if engine.role == role]
            for state in _STATES:
                count = sum(engine.state == state for engine in pool)
                self._engines.labels(role, state).set(count)
            loads = [engine.load for engine in pool if engine.state == "ready"]
            self._running.labels(role).set(sum(load.running for load in loads))
            self._waiting.labels(role).set(sum(load.waiting for load in loads))
            self._kv.labels(role).set(max((load.kv_usage for load in loads), default=0.0))
            if role == "prefill":
                self._queued.labels(role).set(sum(load.queued_prompt_tokens for load in loads))
                self._rate.labels(role).set(sum(load.prefill_tokens_per_s for load in loads))
            else:
                self._tpot.labels(role).set(max((load.tpot_s for load in loads), default=0.0))
