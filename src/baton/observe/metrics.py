"""The gateway's Prometheus metrics, in a registry of their own.

What they are called and mean is in `definitions`. The registry is not the process-wide default one,
so that two gateways in one process (tests, Ray Serve replicas) never collide. A request is counted
once, when it has ended; only events that it may not live to tell are counted on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest

from baton.observe import definitions as d
from baton.observe import state_definitions as s
from baton.observe.costs import CostMetrics
from baton.observe.gaps import AddedUp
from baton.observe.handoffs import HandoffMetrics
from baton.observe.pools import PoolMetrics
from baton.observe.timeline_fields import STAGES
from baton.observe.transport import TransportMetrics
from baton.spec.schema import Slo
from baton.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.observe.timeline import Timeline

# Each counter's time of birth as a series beside it: twice the page, and nobody reads it. (A switch
# of the whole process; in a gateway's nobody else counts.)
disable_created_metrics()  # type: ignore[no-untyped-call]

_STATES = ("closed", "half_open", "open")


class GatewayMetrics:
    """All counters, gauges and histograms of one gateway.

    Args:
        slo: What callers were promised; requests are held to it.
    """

    def __init__(self, slo: Slo | None = None) -> None:
        registry = self.registry = CollectorRegistry()
        self._slo = slo or Slo()
        self.requests = d.REQUESTS.counter(registry)
        self.fallbacks = d.FALLBACKS.counter(registry)
        self.retries = d.RETRIES.counter(registry)
        self.choices = d.CHOICES.counter(registry)
        self.first_tokens = d.FIRST_TOKENS.counter(registry)
        self.hangups = d.HANGUPS.counter(registry)
        self.broken_streams = d.BROKEN_STREAMS.counter(registry)
        self.resumes = d.RESUMES.counter(registry)
        self.rejected = d.REJECTED.counter(registry)
        self.kv_releases = d.KV_RELEASES.counter(registry)
        self.prompt_counts = d.PROMPT_COUNTS.counter(registry)
        self.key_requests = d.KEY_REQUESTS.counter(registry)
        self.key_rejected = d.KEY_REJECTED.counter(registry)
        self.overflow = d.OVERFLOW.counter(registry)
        stages = d.STAGES.histogram(registry)
        self._stages = {stage: stages.labels(stage) for stage in STAGES}
        self.ttft = d.TTFT.histogram(registry)
        self.tpot = d.TPOT.histogram(registry)
        self.itl = AddedUp(d.ITL, registry)
        self.slo_requests = d.SLO_REQUESTS.counter(registry)
        self.slo_misses = d.SLO_MISSES.counter(registry)
        tokens = d.TOKENS.counter(registry)
        self._prompt_tokens = tokens.labels("prompt")
        self._completion_tokens = tokens.labels("completion")
        self.handoffs = HandoffMetrics(registry)
        self.generations, self.unpaired = s.GENERATIONS.gauge(registry), s.UNPAIRED.gauge(registry)

        s.BUILD.gauge(registry).labels(__version__).set(1)
        self.inflight = s.INFLIGHT.gauge(registry)
        self.queued = s.QUEUED.gauge(registry)
        self.pool_inflight = s.POOL_INFLIGHT.gauge(registry)
        self.pool_queued = s.POOL_QUEUED.gauge(registry)
        self.pool_tokens = s.POOL_TOKENS.gauge(registry)
        self.overflow_inflight = s.OVERFLOW_INFLIGHT.gauge(registry)
        self.key_reload_failures = s.KEY_RELOAD_FAILURES.counter(registry)
        self.keys_stale = s.KEYS_STALE.gauge(registry)
        self.spans = s.SPANS.counter(registry)
        self.engines = s.ENGINES.gauge(registry)
        self.circuits = s.CIRCUITS.gauge(registry)
        self.directory_age = s.DIRECTORY_AGE.gauge(registry)
        self.directory_failures = s.DIRECTORY_FAILURES.counter(registry)
        self.pools = PoolMetrics(registry)
        self.costs = CostMetrics(registry)
        self.transport = TransportMetrics(registry)
        targets = s.SLO.gauge(registry)
        for name, target in (("ttft", self._slo.ttft_s), ("tpot", self._slo.tpot_s)):
            if target is not None:
                targets.labels(name).set(target)
        self._directory_failures = 0
        self._key_failures = 0

    def observe(self, timeline: Timeline) -> None:
        """Count a request that has ended."""
        route = timeline.route or "none"
        self.requests.labels(
            timeline.path, route, timeline.reason or "none", timeline.outcome
        ).inc()
        if timeline.first_token is not None:
            self.first_tokens.labels(*timeline.first_token).inc()
        for stage, seconds in timeline.stages.items():
            self._stages[stage].observe(seconds)
        if timeline.prompt_tokens:
            self._prompt_tokens.inc(timeline.prompt_tokens)
        if timeline.completion_tokens:
            self._completion_tokens.inc(timeline.completion_tokens)
        if timeline.gaps is not None:
            self.itl.add(timeline.gaps)
        if timeline.streamed and timeline.ttft_s is not None:
            self.ttft.labels(route).observe(timeline.ttft_s)
        if timeline.tpot_s is not None:
            self.tpot.labels(route).observe(timeline.tpot_s)
        if timeline.generates:
            self._hold_to_slo(timeline)

    def _hold_to_slo(self, timeline: Timeline) -> None:
        if timeline.outcome == "rejected" and timeline.status not in _OURS:
            return  # the request was wrong
        verdict = d.judge(
            self._slo,
            outcome=timeline.outcome,
            ttft_s=timeline.ttft_s if timeline.streamed else None,
            tpot_s=timeline.tpot_s,
            tokens=timeline.completion_tokens,
        )
        if verdict is not None:
            self.slo_requests.labels(verdict.met).inc()
            for name in verdict.missed:
                self.slo_misses.labels(name).inc()

    def reject(self, code: str, key: str | None) -> None:
        """Count a request that was answered with an error of the gateway's own."""
        self.rejected.labels(code).inc()
        if key is not None:
            self.key_rejected.labels(key, code).inc()

    def set_circuits(self, circuits: Iterable[tuple[str, str, str]]) -> None:
        """Take over the breakers' states: engine, role, state. Engines that are gone leave."""
        self.circuits.clear()
        worst_first = sorted(circuits, key=lambda one: -_STATES.index(one[2]))
        for engine, role, state in worst_first[: d.MAX_ENGINES]:
            self.circuits.labels(engine, role).set(_STATES.index(state))

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


_OURS = frozenset({429, 503})
"""Statuses of a rejection that is not the caller's fault."""
