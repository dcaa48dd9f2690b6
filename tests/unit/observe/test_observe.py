"""Timelines, logs and metrics say what happened and nothing else."""

from __future__ import annotations

import io
import json
import logging

from baton.observe import logs
from baton.observe.metrics import GatewayMetrics
from baton.observe.timeline import Timeline, TimelineRing
from baton.spec.lease import EngineLease
from baton.spec.schema import Logging


def test_a_stage_that_did_not_happen_is_absent():
    """Not zero."""
    timeline = Timeline("r", "/p")
    timeline.add("admit", 0.5)
    timeline.add("route", 0.25)
    timeline.add("route", 0.25)
    assert timeline.as_dict()["stages"] == {"admit_s": 0.5, "route_s": 0.5}


def test_the_first_outcome_and_the_first_byte_stay():
    """A late error does not rewrite what the caller saw."""
    timeline = Timeline("r", "/p")
    timeline.first_byte()
    ttft = timeline.ttft_s
    timeline.first_byte()
    timeline.finish("broken", 200)
    timeline.finish("ok", 500)
    assert (timeline.outcome, timeline.status, timeline.ttft_s) == ("broken", 200, ttft)


def test_a_timeline_is_one_ascii_line():
    """Fit for a header."""
    timeline = Timeline("r", "/p")
    timeline.prefill_engine = "http://é\n"
    line = timeline.as_json()
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["prefill_engine"] == "http://é\n"


def test_the_ring_keeps_the_last():
    """Memory is bounded."""
    ring = TimelineRing(2)
    for n in range(5):
        ring.add(Timeline(str(n), "/p"))
    assert [t["request_id"] for t in ring.as_list()] == ["3", "4"]


def test_json_lines_carry_structured_fields():
    """One object a line."""
    out = io.StringIO()
    logs.configure(Logging(format="json"), out)
    logging.getLogger("baton.x").info("hello", extra={"request_id": "r"})
    line = json.loads(out.getvalue())
    assert (line["message"], line["request_id"], line["level"]) == ("hello", "r", "info")


def test_a_text_line_cannot_be_forged():
    """A newline in a value stays on its line."""
    out = io.StringIO()
    logs.configure(Logging(), out)
    logging.getLogger("baton.x").warning("a\nb", extra={"engine": "c\nd"})
    assert out.getvalue().count("\n") == 1


def test_the_level_is_kept():
    """Debug lines stay away unless asked for."""
    out = io.StringIO()
    logs.configure(Logging(level="error"), out)
    logging.getLogger("baton.x").warning("no")
    assert out.getvalue() == ""


def test_two_gateways_in_one_process_count_apart():
    """Each has a registry of its own."""
    one, two = GatewayMetrics(), GatewayMetrics()
    one.fallbacks.labels("x").inc()
    one.set_directory_failures(3)
    one.set_directory_failures(3)
    assert b'baton_fallbacks_total{kind="x"} 1.0' in one.render()
    assert b"baton_directory_failures_total 3.0" in one.render()
    assert b'kind="x"' not in two.render()


def test_pools_are_counted_by_state_and_loaded_by_what_is_ready():
    """An engine that drains is seen, and its load is no longer the pool's."""
    metrics = GatewayMetrics()

    def lease(replica_id, state, **load):
        return EngineLease.model_validate(
            {
                "replica_id": replica_id, "role": "prefill", "state": state, "load": load,
                "url": "http://x", "engine_id": replica_id, "model_id": "m",
            }
        )  # fmt: skip

    metrics.pools.set(
        [
            lease("a", "ready", running=2, queued_prompt_tokens=700, kv_usage=0.5),
            lease("b", "ready", running=1, queued_prompt_tokens=300, kv_usage=0.25),
            lease("c", "draining", running=9, queued_prompt_tokens=9000, kv_usage=0.9),
        ]
    )
    page = metrics.render().decode()
    assert 'baton_pool_engines{role="prefill",state="ready"} 2.0' in page
    assert 'baton_pool_engines{role="prefill",state="draining"} 1.0' in page
    assert 'baton_pool_queued_prompt_tokens{role="prefill"} 1000.0' in page
    assert 'baton_pool_kv_usage{role="prefill"} 0.5' in page
    assert 'baton_pool_engines{role="decode",state="ready"} 0.0' in page
    metrics.pools.set([])
    assert 'baton_pool_running_requests{role="prefill"} 0.0' in metrics.render().decode()
