"""Scenarios on a stage without engines: what fails, what is skipped, what is counted."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from baton.drill.outside import Outside
from baton.drill.report import COLUMNS, as_data, failed
from baton.drill.run import Options, run
from baton.drill.scenarios import ALL, Scenario
from baton.drill.stage import Result
from baton.errors import DrillFailed
from baton.spec.lease import EngineLease
from tests.unit.drill.answers import DONE, TEXT, USAGE, chunk, server, whole

if TYPE_CHECKING:
    from baton.drill.injector import Injector

FEW = Options(streams=2, cases=12, prompt_words=(2, 3), tokens=(2, 3))


class Endpoint:
    """Answers as a gateway and its only decode engine; `spoil` changes what comes of an answer."""

    def __init__(self) -> None:
        self.spoil = lambda _number, _body: None
        self.held = 0.0
        self.asked = 0
        self.metrics_status = 200

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        if request.path == "/metrics":
            page = f'vllm:kv_cache_usage_perc {self.held}\nvllm:c{{num_gpu_blocks="11"}} 1\n'
            return web.Response(text=page, status=self.metrics_status)
        body = await request.json()
        self.asked += 1
        wrong = self.spoil(self.asked, body)
        if wrong == "error":
            return web.json_response({}, status=503)
        text = TEXT[:-1] if wrong == "mismatch" else TEXT
        chat = "messages" in body
        if not body.get("stream"):
            content = {"message": {"content": text}} if chat else {"text": text}
            return web.json_response(whole(choices=[{**content, "finish_reason": "length"}]))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        events = chunk(text) + chunk("", reason="length")
        if chat:
            events = events.replace(b'"text": ""', b'"delta": {}').replace(
                f'"text": "{text}"'.encode(), f'"delta": {{"content": "{text}"}}'.encode()
            )
        if "stream_options" in body:
            usage = chunk("", usage=USAGE)
            events += usage.replace(b'[{"index": 0, "text": "", "finish_reason": null}]', b"[]")
        await response.write(events if wrong == "broken" else events + DONE)
        await asyncio.sleep(0.01)
        return response


class Known(Outside):
    """As from outside, but the engine may be looked at."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.restored = 0

    def cannot(self, fault: str) -> str | None:
        return None if fault == "see_engines" else "not here"

    async def engines(self) -> Any:
        return [
            EngineLease(
                replica_id="d", role="decode", url=self.endpoint, engine_id="d", model_id="m"
            )
        ]

    async def restore(self) -> None:
        self.restored += 1


@contextlib.asynccontextmanager
async def _drill(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("baton.drill.stage.SETTLE_S", 0.0)
    monkeypatch.setattr("baton.drill.asks.stop_in", lambda _: None)
    endpoint = Endpoint()
    async with server(endpoint.answer) as url:
        yield endpoint, Known(url)


def _named(name: str) -> Scenario:
    return next(scenario for scenario in ALL if scenario.name == name)


async def test_a_calm_drill_of_a_good_endpoint_loses_nothing(monkeypatch):
    """And counts what it sent."""
    async with _drill(monkeypatch) as (_, injector):
        (result,) = await run(injector, [_named("calm")], FEW)
    assert result.verdict == "held", result
    assert result.requests > 0
    assert (result.kv_blocks_left, result.recovery_s) == (0, 0.0)
    assert injector.restored == 1


@pytest.mark.parametrize(
    ("wrong", "column"),
    [("error", "errors"), ("broken", "broken_streams"), ("mismatch", "mismatched_answers")],
)
async def test_each_kind_of_loss_is_counted_in_its_own_column(monkeypatch, wrong, column):
    """And the scenario fails, with an example."""
    spoilt = []

    def once(number, body):
        """The first request after the undisturbed ones that can go wrong in this way."""
        if number > FEW.cases and not spoilt and (wrong != "broken" or body.get("stream")):
            spoilt.append(number)
            return wrong
        return None

    async with _drill(monkeypatch) as (endpoint, injector):
        endpoint.spoil = once
        (result,) = await run(injector, [_named("calm")], FEW)
    counts = {name: getattr(result, name) for name in COLUMNS[2:5]}
    assert counts == {**dict.fromkeys(counts, 0), column: 1}
    assert result.verdict == "failed"
    assert len(result.examples) == 1


async def test_kv_that_is_left_fails_a_scenario_that_lost_nothing_else(monkeypatch):
    """Blocks are a loss."""
    async with _drill(monkeypatch) as (endpoint, injector):
        endpoint.held = 0.3
        (result,) = await run(injector, [_named("calm")], FEW)
    assert result.kv_blocks_left == 3
    assert failed([result]) == [result]


async def test_metrics_that_cannot_be_read_fail_the_scenario(monkeypatch):
    """Where engines may be looked at, not knowing is no zero."""
    async with _drill(monkeypatch) as (endpoint, injector):
        endpoint.metrics_status = 401
        (result,) = await run(injector, [_named("calm")], FEW)
    assert result.kv_blocks_left is None
    assert "not known" in result.problem


async def test_a_scenario_whose_fault_did_not_happen_fails(monkeypatch):
    """A drill that disturbs nothing proves nothing."""

    async def act(stage):
        async with stage.load(streamed=1, plain=1):
            stage.need(False, "nobody was killed")

    async with _drill(monkeypatch) as (_, injector):
        (result,) = await run(injector, [Scenario("idle", "", act)], FEW)
    assert result.verdict == "failed"
    assert result.problem == "nobody was killed"
    assert result.recovery_s is None


async def test_a_service_that_never_recovers_fails(monkeypatch):
    """Although everything that was sent before went well."""

    async def act(stage):
        async with stage.load(streamed=1, plain=1) as load:
            await load.ended(2, seconds=10)
        stage.struck("something")

    async with _drill(monkeypatch) as (_, injector):
        (result,) = await run(injector, [Scenario("dead", "", act)], FEW)
    assert "after the fault" in result.problem


async def test_what_the_injector_cannot_do_is_skipped_with_its_reason(monkeypatch):
    """Never silently, and never as a success."""
    async with _drill(monkeypatch) as (_, injector):
        results = await run(injector, [_named("kill-prefill"), _named("slow-network")], FEW)
    assert [result.skipped for result in results] == ["not here", "not here"]
    assert {result.verdict for result in results} == {"skipped"}
    assert as_data(results)["scenarios"][0]["skipped"] == "not here"


async def test_a_decode_engine_is_not_killed_when_no_other_would_live(monkeypatch):
    """That would be an outage, not a drill."""
    async with _drill(monkeypatch) as (_, injector):
        injector.cannot = lambda _: None
        (result,) = await run(injector, [_named("kill-decode")], FEW)
    assert "second decode engine" in result.skipped


async def test_200_callers_hang_up_and_what_they_read_is_checked(monkeypatch):
    """From outside, where KV is not seen and said to be so."""
    async with _drill(monkeypatch) as (_, injector):
        outside: Injector = Outside(injector.endpoint + "/v1")
        (result,) = await run(outside, [_named("hang-ups")], FEW)
    assert result.notes["hang_ups"] >= 200
    assert result.requests > 200
    assert result.kv_blocks_left is None
    assert any("KV was not looked at" in line for line in result.proof)
    assert result.verdict == "held", result


async def test_an_endpoint_without_a_model_is_not_drilled(monkeypatch):
    """With what is wrong, and where."""

    async def nothing(_):
        return web.json_response({"data": []})

    async with server(nothing) as url:
        with pytest.raises(DrillFailed, match="names no model"):
            await run(Outside(url), [_named("calm")], FEW)


def test_the_data_has_the_columns_by_name_and_more_only_where_there_is_more():
    """The form that `--json` promises."""
    (row,) = as_data([Result("calm", requests=3, kv_blocks_left=0, recovery_s=0.5)])["scenarios"]
    assert tuple(row) == (*COLUMNS, "verdict")
    assert row["requests"] == 3


def test_every_scenario_of_the_promise_is_there():
    """By name."""
    names = [scenario.name for scenario in ALL]
    assert len(set(names)) == len(names)
    assert set(names) >= {
        "kill-prefill", "kill-decode", "kill-decode-core", "restart-prefill", "hang-prefill",
        "hang-decode", "slow-network", "cut-network", "hang-ups", "directory-lost",
        "gateway-killed", "lease-expiry",
    }  # fmt: skip
