"""Counts, read from vLLM's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from baton.engine.load import KV_USAGE, RUNNING, WAITING, EngineCounts, read_counts


def test_the_counts_are_summed_over_the_engines_of_one_process() -> None:
    """With data parallelism vLLM labels each engine's gauge."""
    registry = CollectorRegistry()
    running = Gauge(RUNNING, "r", ["engine"], registry=registry)
    running.labels("0").set(3)
    running.labels("1").set(2)
    Gauge(WAITING, "w", registry=registry).set(4)
    Gauge(KV_USAGE, "k", registry=registry).set(0.25)
    counts = read_counts(registry)
    assert (counts.running, counts.waiting, counts.kv_usage) == (5, 4, 0.25)


def test_prompt_tokens_and_gaps_are_read_under_the_names_of_their_samples() -> None:
    """prometheus_client adds `_total`, `_sum` and `_count` to what vLLM calls them."""
    registry = CollectorRegistry()
    Counter("vllm:prompt_tokens", "p", registry=registry).inc(700)
    gaps = Histogram("vllm:inter_token_latency_seconds", "g", registry=registry)
    gaps.observe(0.5)
    gaps.observe(0.25)
    counts = read_counts(registry)
    assert (counts.prompt_tokens, counts.itl_sum_s, counts.itl_count) == (700, 0.75, 2)


def test_an_engine_that_has_not_stepped_yet_is_idle() -> None:
    """No metric is zero, not an error."""
    assert read_counts(CollectorRegistry()) == EngineCounts()
