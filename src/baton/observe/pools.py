"""How the two engine pools fare, as the directory says: what they scale by, for dashboards.

The numbers are the engines' own, about a second old; every gateway shows the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.observe import state_definitions as s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client import CollectorRegistry

    from baton.spec.lease import EngineLease

_ROLES = ("prefill", "decode")
_STATES = ("starting", "ready", "draining")


class PoolMetrics:
    """Gauges by role; engines that drain count by their state only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._engines = s.POOL_ENGINES.gauge(registry)
        self._running = s.POOL_RUNNING.gauge(registry)
        self._waiting = s.POOL_WAITING.gauge(registry)
        self._queued = s.POOL_PROMPTS.gauge(registry)
        self._rate = s.POOL_RATE.gauge(registry)
        self._kv = s.POOL_KV.gauge(registry)
        self._tpot = s.POOL_TPOT.gauge(registry)

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
