"""Load, read from vLLM's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge

from baton.engine.load import KV_USAGE, RUNNING, WAITING, read_load


def test_the_counts_are_summed_over_the_engines_of_one_process() -> None:
    """With data parallelism vLLM labels each engine's gauge."""
    registry = CollectorRegistry()
    running = Gauge(RUNNING, "r", ["engine"], registry=registry)
    running.labels("0").set(3)
    running.labels("1").set(2)
    Gauge(WAITING, "w", registry=registry).set(4)
    Gauge(KV_USAGE, "k", registry=registry).set(0.25)
    load = read_load(registry)
    assert (load.running, load.waiting, load.kv_usage) == (5, 4, 0.25)


def test_an_engine_that_has_not_stepped_yet_is_idle() -> None:
    """No metric is zero, not an error."""
    load = read_load(CollectorRegistry())
    assert (load.running, load.waiting, load.kv_usage) == (0, 0, 0.0)
