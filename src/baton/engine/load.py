"""The engine's load, read from the metrics that vLLM keeps in this process."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry

from baton.spec.lease import EngineLoad

# vLLM 0.29, v1/metrics/loggers.py.
WAITING = "vllm:num_requests_waiting"
RUNNING = "vllm:num_requests_running"
KV_USAGE = "vllm:kv_cache_usage_perc"


def read_load(registry: CollectorRegistry = REGISTRY) -> EngineLoad:
    """Waiting and running requests, and the share of KV blocks in use (0 to 1).

    A metric that is not there counts as zero: the engine may not have stepped yet.
    """
    found = dict.fromkeys((WAITING, RUNNING, KV_USAGE), 0.0)
    for family in registry.restricted_registry(list(found)).collect():
        for sample in family.samples:
            if sample.name in found:
                found[sample.name] += sample.value
    return EngineLoad(
        waiting=int(found[WAITING]), running=int(found[RUNNING]), kv_usage=found[KV_USAGE]
    )
