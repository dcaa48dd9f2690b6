"""Spans reach a collector, and vLLM's own become their children."""

from __future__ import annotations

import asyncio
import json

import pytest

from baton.errors import ConfigRefused
from baton.gateway.app import build_gateway_app
from baton.gateway.directory import FixedDirectory
from baton.observe import otlp
from baton.observe.otlp import endpoint_of
from baton.spec.schema import BatonBlock, Disaggregate, Tracing
from tests.collector import attributes, collector
from tests.unit.gateway.fakes import LONG, Behave, stack, until

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ALWAYS = Disaggregate(mode="always")


def settings(url: str, **more) -> BatonBlock:
    return BatonBlock(disaggregate=ALWAYS, tracing=Tracing(otlp_endpoint=url, **more))


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(otlp, "EVERY_MS", 20)


async def test_a_streamed_request_is_one_trace_from_its_caller_to_both_engines():
    """The engines get the span of their own leg: what they say comes below it."""
    async with collector() as c, stack(settings=settings(c.url)) as s:
        body = {"prompt": LONG, "stream": True}
        await s.post("/v1/completions", body, traceparent=CALLER, tracestate="k=v")
        await until(lambda: c.named("baton /v1/completions"))
        (root,) = c.named("baton /v1/completions")
        assert root.trace_id.hex() == CALLER[3:35]
        assert root.parent_span_id.hex() == CALLER[36:52]
        assert root.trace_state == "k=v"
        legs = {leg: c.named(leg)[0] for leg in ("prefill",)}
        legs["decode"] = next(x for x in c.named("decode") if x.kind == 3)
        for leg, engine in (("prefill", s.prefill[0]), ("decode", s.decode[0])):
            (seen,) = engine.generated
            assert legs[leg].parent_span_id == root.span_id
            assert seen.headers["traceparent"] == f"00-{CALLER[3:35]}-{legs[leg].span_id.hex()}-01"
            assert seen.headers["tracestate"] == "k=v"
        (handoff,) = c.named("handoff")
        assert handoff.parent_span_id == legs["decode"].span_id
        assert {x.trace_id for x in c.spans} == {root.trace_id}
        assert len({x.span_id for x in c.spans}) == len(c.spans)
        for span in c.spans:
            assert root.start_time_unix_nano <= span.start_time_unix_nano
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            assert span.end_time_unix_nano <= root.end_time_unix_nano + 1_000_000
        said = attributes(root)
        assert said["baton.route"] == "pd"
        assert said["http.response.status_code"] == 200
        assert not any("handoff. " in str(value) for value in said.values())
        assert c.services == {"baton-gateway"}
        timeline = json.loads((await s.get("/baton/requests"))[1])["requests"][-1]
        assert timeline["trace_id"] == CALLER[3:35]
        await until(lambda: b'baton_spans_total{outcome="exported"}' in s.app.metrics.render())


async def test_a_leg_that_failed_is_seen_as_one():
    """With its kind, beside the one that went well."""
    async with collector() as c, stack(prefill=2, settings=settings(c.url)) as s:
        for engine in s.prefill:
            engine.plan.append(Behave(status=500))
        await s.complete()
        await until(lambda: c.named("baton /v1/completions"))
        failed = [x for x in c.named("prefill") if x.status.code == 2]
        assert failed
        assert {x.status.message for x in failed} == {"server_error"}


async def test_a_stream_that_goes_on_elsewhere_has_two_decode_legs():
    """The first ends where it broke."""
    async with collector() as c, stack(decode=2, settings=settings(c.url)) as s:
        for engine in s.decode:
            engine.plan.append(Behave(die_after=0))
        body = {"prompt": LONG, "stream": True, "temperature": 0}
        await s.post("/v1/completions", body)
        await until(lambda: c.named("baton /v1/completions"))
        legs = [x for x in c.named("decode") if x.kind == 3]
        assert len(legs) >= 2
        assert any(x.status.code == 2 for x in legs)


async def test_a_caller_who_does_not_sample_is_passed_on_untouched():
    """No spans of ours, and his header reaches the engines."""
    async with collector() as c, stack(settings=settings(c.url)) as s:
        await s.post("/v1/completions", {"prompt": LONG}, traceparent=CALLER[:-2] + "00")
        assert s.decode[0].generated[0].headers["traceparent"] == CALLER[:-2] + "00"
        await s.post("/v1/completions", {"prompt": LONG}, x_request_id="second")
        await until(lambda: c.named("baton /v1/completions"))
        assert len(c.named("baton /v1/completions")) == 1


async def test_without_an_endpoint_nothing_is_traced_and_a_callers_header_passes():
    """As before there was any tracing."""
    async with stack() as s:
        await s.post("/v1/completions", {"prompt": LONG}, traceparent=CALLER)
        assert s.decode[0].generated[0].headers["traceparent"] == CALLER
        assert s.prefill[0].generated[0].headers["traceparent"] == CALLER


@pytest.mark.parametrize("status", [None, 400])
async def test_a_collector_that_is_away_or_refuses_costs_spans_and_no_request(status, monkeypatch):
    """They are counted as failed; answers are as ever."""
    async with collector() as c:
        c.status = status or 200
        monkeypatch.setattr(otlp, "TIMEOUT_S", 0.2)
        url = c.url if status else "http://127.0.0.1:9"
        async with stack(settings=settings(url)) as s:
            for _ in range(3):
                assert (await s.complete())[0] == 200
            await until(lambda: b'baton_spans_total{outcome="failed"}' in s.app.metrics.render())


async def test_spans_that_do_not_fit_the_queue_are_dropped_and_counted(monkeypatch):
    """A request's are dropped together: half a trace misleads."""
    monkeypatch.setattr(otlp, "QUEUE", 3)
    monkeypatch.setattr(otlp, "BATCH", 2)
    async with collector() as c, stack(settings=settings(c.url)) as s:
        await s.complete()
        await until(lambda: b'baton_spans_total{outcome="dropped"}' in s.app.metrics.render())
        assert c.spans == []


async def test_the_share_of_new_traces_is_a_setting():
    """None of them at 0."""
    async with collector() as c, stack(settings=settings(c.url, sample=0.0)) as s:
        await s.complete()
        assert "traceparent" not in s.decode[0].generated[0].headers
        await s.post("/v1/completions", {"prompt": LONG}, traceparent=CALLER)
        await until(lambda: c.named("baton /v1/completions"))
        assert len({x.trace_id for x in c.spans}) == 1


async def test_closing_sends_what_is_left(monkeypatch):
    """A gateway that is replaced takes no spans along."""
    monkeypatch.setattr(otlp, "EVERY_MS", 60_000)
    async with collector() as c:
        async with stack(settings=settings(c.url)) as s:
            await s.complete()
            await asyncio.sleep(0)
        assert c.named("baton /v1/completions")


@pytest.mark.parametrize(
    ("configured", "environ", "endpoint"),
    [
        (None, {}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/", {}, "http://c:4318/v1/traces"),
        ("http://c/otlp/traces", {}, "http://c/otlp/traces"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e:4318"}, "http://e:4318/v1/traces"),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://e/"}, "http://e/"),
        ("http://c:4318", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e"}, "http://c:4318/v1/traces"),
    ],
)
def test_where_spans_go(configured, environ, endpoint):
    """The file before the variables, the specific variable before the general one."""
    assert endpoint_of(Tracing(otlp_endpoint=configured), environ) == endpoint


@pytest.mark.parametrize("url", ["collector:4318", "grpc://c:4317", "http://"])
def test_an_endpoint_that_is_none_is_refused_at_the_start(url):
    """With its place."""
    with pytest.raises(ConfigRefused, match=r"not an HTTP URL") as refused:
        build_gateway_app(settings(url), FixedDirectory([], ["http://127.0.0.1:9"]))
    assert refused.value.place == "tracing.otlp_endpoint"
