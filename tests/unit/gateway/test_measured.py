"""What a real gateway measures of requests on simulated engines."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.engine.simulated import SimulatedEngine
from baton.gateway.directory import FixedDirectory
from baton.spec.schema import Admission, BatonBlock, Disaggregate, Slo
from tests.unit.gateway.fakes import LONG, Behave, serving, stack, until

COMPLETE = "/v1/completions"
ALWAYS = Disaggregate(mode="always", first_token="ordinary")


def value(app: Any, name: str, **labels: str) -> float:
    """Of all series of that name with these labels, added up."""
    page = app.metrics.render().decode()
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@asynccontextmanager
async def pair(**settings: Any) -> Any:
    """Two simulated engines and a gateway: the app, and a function that posts."""
    block = BatonBlock(**{"disaggregate": ALWAYS, **settings})
    async with (
        SimulatedEngine(role="prefill", engine_id="p") as p,
        SimulatedEngine(role="decode", engine_id="d") as d,
        serving(FixedDirectory([p.url], [d.url], interval_s=30.0), block) as (app, url),
        aiohttp.ClientSession() as session,
    ):

        async def post(path: str = COMPLETE, **body: Any) -> bytes:
            async with session.post(url + path, json={"prompt": LONG, **body}) as answer:
                return await answer.read()

        yield app, post


async def last(app: Any) -> dict[str, Any]:
    await until(app.timelines.as_list)
    return app.timelines.as_list()[-1]


@pytest.mark.parametrize("first_token", ["ordinary", "early"])
async def test_a_streamed_request_is_measured_from_its_caller_to_its_last_token(first_token):
    """Tokens, TTFT, TPOT, gaps, goodput and the handoff; however the first token went."""
    mode = Disaggregate(mode="always", first_token=first_token)
    async with pair(slo=Slo(ttft_s=60.0, tpot_s=60.0), disaggregate=mode) as (app, post):
        await post(stream=True, max_tokens=6, temperature=0)
        seen = await last(app)
        assert seen["completion_tokens"] == 6
        assert seen["prompt_tokens"] == value(app, "baton_tokens_total", kind="prompt") > 0
        assert seen["tpot_s"] == pytest.approx((seen["total_s"] - seen["ttft_s"]) / 5, abs=2e-6)
        assert value(app, "baton_tokens_total", kind="completion") == 6
        assert value(app, "baton_tpot_seconds_count", route="pd") == 1
        assert value(app, "baton_ttft_seconds_count", route="pd") == 1
        assert value(app, "baton_itl_seconds_count") >= 1
        assert value(app, "baton_slo_requests_total", met="yes") == 1
        assert value(app, "baton_slo_seconds", slo="ttft") == 60.0
        assert value(app, "baton_handoffs_total") == 1
        assert value(app, "baton_handoff_seconds_total") > 0
        for stage in ("admit", "route", "prefill", "handoff", "first_token", "decode"):
            assert value(app, "baton_stage_seconds_count", stage=stage) == 1, stage
        ends = [step["at_s"] + step["seconds"] for step in seen["steps"]]
        assert max(ends) <= seen["total_s"] + 1e-3
        assert [s["stage"] for s in seen["steps"]].count("route") == 2


async def test_a_whole_answer_is_measured_by_its_usage():
    """It has no first token to time, and is no goodput."""
    async with pair(slo=Slo(ttft_s=60.0)) as (app, post):
        usage = json.loads(await post(max_tokens=4))["usage"]
        seen = await last(app)
        assert seen["completion_tokens"] == usage["completion_tokens"]
        assert seen["prompt_tokens"] == usage["prompt_tokens"]
        assert seen["tpot_s"] is None
        assert value(app, "baton_itl_seconds_count") == 0
        assert value(app, "baton_slo_requests_total", met="unmeasured") == 1
        assert value(app, "baton_handoff_seconds_total") == 0
        assert value(app, "baton_handoffs_total") == 1


async def test_usage_counts_where_token_ids_were_not_asked_for():
    """A stream with tools cannot be resumed by ids; its usage says the tokens."""
    async with pair() as (app, post):
        body = {"logprobs": 1, "stream_options": {"include_usage": True}}
        await post(stream=True, max_tokens=3, **body)
        assert (await last(app))["completion_tokens"] == 3


async def test_tokens_that_nobody_counted_are_not_made_up():
    """Events are no tokens."""
    async with pair(slo=Slo(tpot_s=60.0)) as (app, post):
        await post(stream=True, max_tokens=3, logprobs=1)
        seen = await last(app)
        assert (seen["completion_tokens"], seen["tpot_s"]) == (None, None)
        assert value(app, "baton_slo_requests_total", met="unmeasured") == 1


async def test_waiting_for_a_place_is_a_stage_of_its_own():
    """Absent where there was room at once."""
    admission = Admission(max_inflight=1, max_queue=5)
    async with stack(settings=BatonBlock(admission=admission)) as s:
        gate = s.decode[0].gate = asyncio.Event()
        first = asyncio.create_task(s.complete())
        await until(lambda: s.app.admission.inflight == 1)
        second = asyncio.create_task(s.complete())
        await until(lambda: s.app.admission.queued == 1)
        gate.set()
        await asyncio.gather(first, second)
        await until(lambda: len(s.app.timelines.as_list()) == 2)
        stages = [timeline["stages"] for timeline in s.app.timelines.as_list()]
        assert [("queue_s" in one) for one in stages] == [False, True]
        assert all("admit_s" in one for one in stages)


async def test_errors_carry_their_timeline_when_it_is_asked_for():
    """What went wrong is when it is wanted most."""
    async with stack() as s:
        s.prefill[0].always = s.decode[0].always = Behave(status=500)
        status, _, headers = await s.post(COMPLETE, {"prompt": LONG}, x_baton_timing="1")
        assert status == 502
        said = json.loads(headers["x-baton-timing"])
        assert said["outcome"] == "error"
        assert said["attempts"]
        assert "x-baton-timing" not in (await s.post(COMPLETE, {"prompt": LONG}))[2]


async def test_a_failed_request_misses_the_target():
    """And one that was wrong itself is nobody's."""
    async with stack(settings=BatonBlock(slo=Slo(ttft_s=60.0))) as s:
        await s.post(COMPLETE, {"prompt": LONG, "model": "unknown"})
        s.prefill[0].always = s.decode[0].always = Behave(status=400)
        await s.complete()
        assert value(s.app, "baton_slo_requests_total") == 0
        s.prefill[0].always = s.decode[0].always = Behave(status=500)
        await s.complete()
        assert value(s.app, "baton_slo_requests_total", met="no") == 1


async def test_timelines_are_bounded_in_number():
    """The last 1,000."""
    async with stack() as s:
        assert s.app.timelines._ring.maxlen == 1000
