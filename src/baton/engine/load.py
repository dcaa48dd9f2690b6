"""The engine's load, read from the metrics that vLLM keeps in this process."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry

# vLLM 0.29, v1/metrics/loggers.py. A counter's samples end in `_total`, a histogram's in `_sum` and
# `_count`.
WAITING = "vllm:num_requests_waiting"
RUNNING = "vllm:num_requests_running"
KV_USAGE = "vllm:kv_cache_usage_perc"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
ITL_SUM = "vllm:inter_token_latency_seconds_sum"
ITL_COUNT = "vllm:inter_token_latency_seconds_count"


@dataclass(frozen=True)
class EngineCounts:
    """What an engine counts: three gauges, and sums since its start.

    Attributes:
        waiting: Requests that wait for room or for their KV.
        running: Requests that are computed.
        kv_usage: Share of KV blocks that somebody holds, 0 to 1; prefill's leases are in it.
        prompt_tokens: Prompt tokens of requests whose prefill has ended, cached ones included.
        itl_sum_s: Sum of the gaps between tokens, in seconds.
        itl_count: How many gaps that were.
    """

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    prompt_tokens: float = 0.0
    itl_sum_s: float = 0.0
    itl_count: float = 0.0


def read_counts(registry: CollectorRegistry = REGISTRY) -> EngineCounts:
    """The counts of this process's engine.

    A metric that is not there counts as zero: the engine may not have stepped yet.
    """
    names = (WAITING, RUNNING, KV_USAGE, PROMPT_TOKENS, ITL_SUM, ITL_COUNT)
    found = dict.fromkeys(names, 0.0)
    for family in registry.restricted_registry(list(found)).collect():
        for sample in family.samples:
            if sample.name in found:
                found[sample.name] += sample.value
    return EngineCounts(
        waiting=int(found[WAITING]),
        running=int(found[RUNNING]),
        kv_usage=found[KV_USAGE],
        prompt_tokens=found[PROMPT_TOKENS],
        itl_sum_s=found[ITL_SUM],
        itl_count=found[ITL_COUNT],
    )
