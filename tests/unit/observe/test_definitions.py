"""Names are stable, arithmetic is right, and nothing grows without a bound."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.observe import definitions as d
from baton.observe.definitions import Verdict, judge, tpot
from baton.observe.gaps import Gaps
from baton.observe.metrics import GatewayMetrics
from baton.observe.state_definitions import ALL_METRICS, FEDERATED_METRICS
from baton.observe.timeline import Timeline, TimelineRing
from baton.observe.timeline_fields import FIELDS
from baton.observe.usage import usage_in
from baton.spec.schema import Slo


def families(metrics: GatewayMetrics) -> dict:
    return {f.name: f for f in text_string_to_metric_families(metrics.render().decode())}


def test_a_gateway_has_exactly_the_metrics_that_are_defined():
    """What is on the page is documented, and the other way round."""
    on_page = set(families(GatewayMetrics()))
    assert on_page == {m.name for m in ALL_METRICS if m not in FEDERATED_METRICS}


def test_names_and_labels_are_prometheus_own_way():
    """`baton_` in front, a unit behind, `_total` left to the counter."""
    for metric in ALL_METRICS:
        assert re.fullmatch(r"baton_[a-z0-9_]*[a-z0-9]", metric.name)
        assert not metric.name.endswith("_total")
        assert all(metric.labels.values()), metric.name
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert list(metric.buckets) == sorted(metric.buckets)
    assert len({metric.name for metric in ALL_METRICS}) == len(ALL_METRICS)


def ended(**about):
    """A streamed request that took 1.1 s, the first token 0.1 s."""
    timeline = Timeline("r", "/v1/completions")
    timeline.generates = timeline.streamed = True
    timeline.route, timeline.reason = "pd", "mode_always"
    timeline.outcome, timeline.total_s, timeline.ttft_s = "ok", 1.1, 0.1
    timeline.completion_tokens = 11
    for name, value in about.items():
        setattr(timeline, name, value)
    return timeline


def test_tpot_leaves_the_first_token_out():
    """(1.1 - 0.1) / (11 - 1)."""
    assert ended().tpot_s == pytest.approx(0.1)
    assert tpot(1.1, 0.1, 1) is None
    assert ended(streamed=False).tpot_s is None
    assert ended(completion_tokens=None).tpot_s is None
    assert ended(outcome="broken").tpot_s is None


@pytest.mark.parametrize(
    ("slo", "about", "met"),
    [
        ({}, {}, None),
        ({"ttft_s": 0.2}, {}, "yes"),
        ({"ttft_s": 0.05}, {}, "no"),
        ({"ttft_s": 0.2, "tpot_s": 0.05}, {}, "no"),
        ({"ttft_s": 0.2, "tpot_s": 0.2}, {"outcome": "broken"}, "no"),
        ({"ttft_s": 0.2}, {"outcome": "error", "ttft_s": None}, "no"),
        ({"ttft_s": 0.2}, {"outcome": "rejected", "status": 400}, None),
        ({"ttft_s": 0.2}, {"outcome": "rejected", "status": 429}, "no"),
        ({"ttft_s": 0.2}, {"streamed": False}, "unmeasured"),
        ({"ttft_s": 0.2}, {"outcome": "hangup"}, "unmeasured"),
        ({"tpot_s": 0.2}, {"completion_tokens": None}, "unmeasured"),
        ({"tpot_s": 0.2}, {"completion_tokens": 1}, "yes"),
        ({"ttft_s": 0.2}, {"generates": False}, None),
    ],
)  # fmt: skip
def test_goodput_counts_what_met_every_target(slo, about, met):
    """A failure is a miss, a wrong request is nobody's, and what was not measured is said to be."""
    metrics = GatewayMetrics(Slo(**slo))
    metrics.observe(ended(**about))
    counted = {
        s.labels["met"]: s.value
        for s in families(metrics)["baton_slo_requests"].samples
        if s.name.endswith("_total")
    }
    assert counted == ({} if met is None else {met: 1.0})


def test_a_miss_names_its_target():
    """Not only that something was missed."""
    slo = Slo(ttft_s=0.05, tpot_s=0.2)
    assert judge(slo, outcome="ok", ttft_s=0.1, tpot_s=0.1, tokens=9) == Verdict("no", ("ttft",))


def test_gaps_of_a_stream_are_added_to_the_histogram_at_its_end():
    """One observation a gap, none for the first piece, and the sum is theirs."""
    metrics = GatewayMetrics()
    timeline = ended()
    gaps = timeline.streams()
    for now in (5.0, 5.004, 5.008, 5.5):
        gaps.note(now)
    metrics.observe(timeline)
    samples = {
        (s.name, s.labels.get("le")): s.value
        for s in families(metrics)["baton_itl_seconds"].samples
    }
    assert samples["baton_itl_seconds_count", None] == 3
    assert samples["baton_itl_seconds_bucket", "0.002"] == 0
    assert samples["baton_itl_seconds_bucket", "0.005"] == 2
    assert samples["baton_itl_seconds_bucket", "0.5"] == 3
    assert samples["baton_itl_seconds_sum", None] == pytest.approx(0.5)


def test_gaps_take_the_same_memory_however_long_the_stream():
    """A count a bucket."""
    gaps = Gaps(d.GAP_BUCKETS)
    for n in range(1, 10_000):
        gaps.note(n / 100)
    assert len(gaps.counts) == len(d.GAP_BUCKETS) + 1
    assert sum(gaps.counts) == 9998


def test_ten_thousand_pairs_do_not_blow_up_the_page():
    """The first have series of their own, and the sum is right."""
    metrics = GatewayMetrics()
    before = len(metrics.render())
    for p in range(100):
        for q in range(100):
            metrics.handoffs.done(f"p{p}", f"d{q}", kv_bytes=10, seconds=0.5)
    found = [
        s for s in families(metrics)["baton_handoff_kv_bytes"].samples if s.name.endswith("_total")
    ]
    assert len(found) == d.MAX_PAIRS + 1
    assert sum(s.value for s in found) == 100_000
    assert len(metrics.render()) - before < 512 * 1024


def test_pairs_whose_engine_has_left_make_room():
    """And what they had is not counted to others."""
    metrics = GatewayMetrics()
    metrics.handoffs.done("p0", "d0", kv_bytes=1, seconds=None)
    metrics.handoffs.done("p1", "d0", kv_bytes=1, seconds=None)
    metrics.handoffs.forget_all_but({"p1", "d0"})
    page = metrics.render().decode()
    assert 'decode="d0",prefill="p1"' in page
    assert "p0" not in page


def test_circuits_of_many_engines_show_those_in_trouble():
    """A bound must not hide the one that matters."""
    metrics = GatewayMetrics()
    states = [(f"e{n}", "decode", "closed") for n in range(2000)] + [("sick", "decode", "open")]
    metrics.set_circuits(states)
    samples = families(metrics)["baton_engine_circuit"].samples
    assert len(samples) == d.MAX_ENGINES
    assert {s.labels["engine"]: s.value for s in samples}["sick"] == 2


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (b'{"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}', (7, 2)),
        (b'{"usage":{"input_tokens":7,"output_tokens":2,"input_tokens_details":{}}}', (7, 2)),
        (b'{"usage":{"input_tokens":7,"output_tokens":2,"cache_read_input_tokens":64}}', (71, 2)),
        (b'{"text":"\\"usage\\":{\\"prompt_tokens\\":1}"}', (None, None)),
        (b'{"usage":null}', (None, None)),
        (b"", (None, None)),
    ],
)
def test_usage_is_read_where_an_engine_says_it(answer, tokens):
    """Words of the answer are not taken for it."""
    assert usage_in(answer) == tokens


def test_every_field_of_a_timeline_is_documented():
    """The page of the reference is complete."""
    assert set(Timeline("r", "/p").as_dict()) == set(FIELDS)


def test_a_request_that_is_routed_again_and_again_keeps_few_steps_and_counts_the_rest():
    """What is held is bounded; the sums have all of it."""
    timeline = Timeline("r", "/p")
    for _ in range(500):
        timeline.add("route", 0.5)
    told = timeline.as_dict()
    assert len(timeline.steps) == len(told["steps"]) == 64
    assert told["steps_left_out"] == 436
    assert told["stages"]["route_s"] == 250


def test_a_kept_timeline_holds_on_to_nothing():
    """Neither what watched it, which knows the request's body, nor its buckets."""
    timeline = ended()
    timeline.streams()
    timeline.watcher = object()
    TimelineRing().add(timeline)
    assert timeline.gaps is timeline.watcher is None
