"""The gateway's Prometheus metrics, in a registry of their own.

Names begin with `baton_`; times are seconds. The registry is not the process-wide default one, so
that two gateways in one process (tests, Ray Serve replicas) never collide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from baton.observe.costs import CostMetrics
from baton.observe.pools import PoolMetrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.observe.timeline import Timeline

_STAGE_BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300,
)  # fmt: skip


class GatewayMetrics:
    """All counters, gauges and histograms of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "baton_requests",
            "Requests that were let in, by the way they went and why.",
            ["path", "route", "reason", "outcome"],
            registry=self.registry,
        )
        self.fallbacks = Counter(
            "baton_fallbacks",
            "Times that a request left the planned way, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.retries = Counter(
            "baton_retries",
            "Legs that were tried again after a failure.",
            ["leg", "kind"],
            registry=self.registry,
        )
        self.choices = Counter(
            "baton_routing_choices",
            "Engines that were chosen for a leg, by why: only, load, prefix, home, spill"
            " (definitions: baton.gateway.routing.Choice).",
            ["leg", "why"],
            registry=self.registry,
        )
        self.first_tokens = Counter(
            "baton_first_tokens",
            "Streamed P/D requests by how their first token went: early from prefill, or ordinary"
            " through decode and why (definitions: baton.gateway.first_token).",
            ["how", "reason"],
            registry=self.registry,
        )
        self.stages = Histogram(
            "baton_stage_seconds",
            "What each stage took (definitions: baton.observe.timeline).",
            ["stage"],
            buckets=_STAGE_BUCKETS,
            registry=self.registry,
        )
        self.ttft = Histogram(
            "baton_ttft_seconds",
            "Request received to first body byte sent to the caller, streamed answers.",
            ["route"],
            buckets=_STAGE_BUCKETS,
            registry=self.registry,
        )
        self.hangups = Counter(
            "baton_hangups",
            "Callers that went away, by the stage they left in.",
            ["stage"],
            registry=self.registry,
        )
        self.broken_streams = Counter(
            "baton_broken_streams",
            "Streams that ended with an error event after tokens had been sent.",
            registry=self.registry,
        )
        self.resumes = Counter(
            "baton_resumed_streams",
            "Streams that broke and went on from another engine, by how.",
            ["how"],
            registry=self.registry,
        )
        self.rejected = Counter(
            "baton_rejected",
            "Requests answered with an error of the gateway's own, by its code.",
            ["code"],
            registry=self.registry,
        )
        self.kv_releases = Counter(
            "baton_kv_releases",
            "KV offers of prefill that no decode took, by how their release went.",
            ["outcome"],
            registry=self.registry,
        )
        self.inflight = Gauge(
            "baton_inflight", "Requests that hold a place now.", registry=self.registry
        )
        self.queued = Gauge(
            "baton_queued", "Requests that wait for a place now.", registry=self.registry
        )
        self.engines = Gauge(
            "baton_engines",
            "Engines this gateway would send a request to now.",
            ["role"],
            registry=self.registry,
        )
        self.circuits = Gauge(
            "baton_engine_circuit",
            "Circuit breaker of each engine: 0 closed, 1 half-open, 2 open.",
            ["engine", "role"],
            registry=self.registry,
        )
        self.directory_age = Gauge(
            "baton_directory_age_seconds",
            "Seconds since the directory was last read.",
            registry=self.registry,
        )
        self.directory_failures = Counter(
            "baton_directory_failures",
            "Reads of the directory that failed; the last known view stayed in use.",
            registry=self.registry,
        )
        self.pool_inflight = Gauge(
            "baton_pool_inflight",
            "Requests that hold a place in a pool now.",
            ["pool"],
            registry=self.registry,
        )
        self.pool_queued = Gauge(
            "baton_pool_queued",
            "Requests that wait now and need a place in a pool.",
            ["pool"],
            registry=self.registry,
        )
        self.pool_tokens = Gauge(
            "baton_pool_prompt_tokens",
            "Prompt tokens in a pool now, where a limit has them counted.",
            ["pool"],
            registry=self.registry,
        )
        self.prompt_counts = Counter(
            "baton_prompt_counts",
            "Prompts whose tokens a limit depended on, by how they were counted.",
            ["how"],
            registry=self.registry,
        )
        self.key_requests = Counter(
            "baton_key_requests",
            "Requests that were understood, by the name of their key and how they ended.",
            ["key", "outcome"],
            registry=self.registry,
        )
        self.key_rejected = Counter(
            "baton_key_rejected",
            "Requests that were not let in, by the name of their key and the error's code.",
            ["key", "code"],
            registry=self.registry,
        )
        self.key_reload_failures = Counter(
            "baton_key_reload_failures",
            "Changed keys that did not hold; the old ones stayed in use.",
            registry=self.registry,
        )
        self.keys_stale = Gauge(
            "baton_keys_stale",
            "1 while the keys in use are older than what their file says.",
            registry=self.registry,
        )
        self.overflow = Counter(
            "baton_overflow",
            "Requests that were offered to the overflow provider, by reason and outcome.",
            ["reason", "outcome"],
            registry=self.registry,
        )
        self.overflow_inflight = Gauge(
            "baton_overflow_inflight",
            "Requests that the overflow provider serves now.",
            registry=self.registry,
        )
        self._directory_failures = 0
        self._key_failures = 0
        self.pools = PoolMetrics(self.registry)
        self.costs = CostMetrics(self.registry)

    def observe(self, timeline: Timeline) -> None:
        """Count a request that has ended."""
        self.requests.labels(
            timeline.path, timeline.route or "none", timeline.reason or "none", timeline.outcome
        ).inc()
        if timeline.first_token is not None:
            self.first_tokens.labels(*timeline.first_token).inc()
        for stage, seconds in timeline.stages.items():
            self.stages.labels(stage).observe(seconds)
        if timeline.ttft_s is not None and timeline.streamed:
            self.ttft.labels(timeline.route or "none").observe(timeline.ttft_s)

    def reject(self, code: str, key: str | None) -> None:
        """Count a request that was answered with an error of the gateway's own."""
        self.rejected.labels(code).inc()
        if key is not None:
            self.key_rejected.labels(key, code).inc()

    def set_circuits(self, circuits: Iterable[tuple[str, str, str]]) -> None:
        """Take over the breakers' states: engine, role, state. Engines that are gone leave."""
        self.circuits.clear()
        for engine, role, state in circuits:
            self.circuits.labels(engine, role).set(("closed", "half_open", "open").index(state))

    def set_directory_failures(self, total: int) -> None:
        """Take over the directory's own count."""
        self.directory_failures.inc(max(0, total - self._directory_failures))
        self._directory_failures = max(total, self._directory_failures)

    def set_key_failures(self, total: int) -> None:
        """Take over the keys' own count."""
        self.key_reload_failures.inc(max(0, total - self._key_failures))
        self._key_failures = max(total, self._key_failures)

    def forget_key(self, name: str) -> None:
        """The key is gone: so are its series, or a name a day would fill the registry."""
        self.key_requests.remove_by_labels({"key": name})
        self.key_rejected.remove_by_labels({"key": name})

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
