"""Verdicts on endpoints that are right, and on those that are not."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from baton.conformance.case import Case, Outcome
from baton.conformance.cases import ALL
from baton.conformance.compare import compare
from baton.conformance.report import as_data, as_junit, summary
from baton.conformance.run import GIVE_UP_AFTER, Report, run
from baton.engine.simulated import SimulatedEngine
from baton.errors import EndpointUnfit
from baton.gateway.directory import FixedDirectory
from tests.unit.conformance.endpoints import (
    answer,
    as_json,
    half_broken,
    models_else,
    serving,
)
from tests.unit.gateway import fakes

if TYPE_CHECKING:
    from baton.conformance.probe import Probe

HTTP_ONLY = [case for case in ALL if not case.id.startswith("client.")]
CHAT = [case for case in ALL if case.id in {"chat.answer", "stream.chat.joins"}]
SIMULATED_HAS_NOT = {
    "models.unknown", "completions.logit_bias", "tools.required", "tools.required_streamed",
    "tools.named", "shaped.json_schema", "shaped.json_schema_streamed", "shaped.cut_characters",
    "errors.top_logprobs",
    "errors.context", "errors.unknown_route", "errors.method",
}  # fmt: skip
"""vLLM's own deviations, and what an engine without a model has none of."""


def failed(report: Report) -> set[str]:
    return {outcome.case.id for outcome in report.outcomes if outcome.status == "fail"}


def test_cases_have_ids_of_their_own_and_a_source() -> None:
    """An id names one claim, and each claim says where it is written."""
    ids = [case.id for case in ALL]
    assert len(set(ids)) == len(ids)
    assert all(case.says and case.source for case in ALL)


async def test_a_simulated_engine_fails_where_it_has_no_model_and_nowhere_else() -> None:
    """And the gateway before it differs only where that is explained."""
    async with contextlib.AsyncExitStack() as stack:
        prefill, decode = [
            await stack.enter_async_context(SimulatedEngine(role=role, max_model_len=2048))
            for role in ("prefill", "decode")
        ]
        directory = FixedDirectory([prefill.url], [decode.url], None)
        _, gateway = await stack.enter_async_context(fakes.serving(directory))
        always = {"x-baton-disaggregate": "always"}
        behind = await run(gateway, HTTP_ONLY, headers=always)
        plain = await run(decode.url, HTTP_ONLY)
    assert failed(plain) == SIMULATED_HAS_NOT
    assert failed(behind) < failed(plain)
    differences = compare(behind, plain)
    assert differences
    assert [d.id for d in differences if not d.explained] == []
    routes = {o.notes.get("x-baton-route") for o in behind.outcomes if o.case.id == "chat.answer"}
    assert routes == {"pd"}


async def test_an_endpoint_that_is_not_there_is_no_endpoint() -> None:
    """Said once, with the place, instead of as many failures as there are cases."""
    with pytest.raises(EndpointUnfit, match="no OpenAI-compatible endpoint answers"):
        await run("http://127.0.0.1:1", CHAT)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        answer(200, b"<html>hello</html>", "text/html"),
        as_json({"data": []}),
        as_json([1, 2]),
        as_json({"detail": "Not Found"}, 404),
        b"",
    ],
    ids=["ssh", "html", "no-models", "list", "404", "nothing"],
)
async def test_what_speaks_no_openai_is_no_endpoint(said: bytes) -> None:
    """Whatever it answers instead."""
    async with serving(lambda _: said) as url:
        with pytest.raises(EndpointUnfit):
            await run(url, CHAT)


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (b"data: {\n\n", "no JSON"),
        (b"\x00\xff\xfe garbage", ""),
        (b'data: {"choices": 7}\n\ndata: [DONE]\n\n', "no chunk"),
        (b'data: {"error": {"message": "dead"}}\n\n', "no chunk"),
        (b"data: [DONE]\n\n", "ids"),
    ],
    ids=["half-json", "bytes", "shape", "error-event", "empty"],
)
async def test_a_stream_of_garbage_fails_its_case(stream: bytes, told: str) -> None:
    """With what was wrong, and nothing is raised."""
    streaming = [case for case in ALL if case.id == "stream.chat.role"]
    said = answer(200, stream, "text/event-stream")
    async with serving(models_else(said)) as url:
        (outcome,) = (await run(url, streaming)).outcomes
    assert outcome.status == "fail"
    assert told in outcome.detail


async def test_a_body_that_breaks_off_fails_its_case() -> None:
    """A connection that closes before content-length is no whole answer."""
    said = answer(200, b'{"id": "x"}' * 9)[:-20]
    async with serving(models_else(said)) as url:
        report = await run(url, CHAT[:1])
    assert "closed in the middle" in report.outcomes[0].detail


async def test_an_endpoint_that_answers_500_half_of_the_time_fails_half_of_the_cases() -> None:
    """The model is found nevertheless, and a case fails with the status it saw."""
    answers = [case for case in ALL if case.id in {"chat.answer", "chat.nulls"}]
    async with serving(half_broken()) as url:
        report = await run(url, answers)
    assert sorted(o.status for o in report.outcomes) == ["fail", "pass"]
    assert any("status 500" in o.detail for o in report.outcomes)


async def test_an_endpoint_that_hangs_costs_a_few_deadlines_and_not_all_of_them() -> None:
    """After some in a row the rest is not asked any more, and that is what they say."""
    cases = ALL[3:13]
    async with serving(models_else(None)) as url:
        report = await run(url, cases, deadline_s=0.25)
    details = [outcome.detail for outcome in report.outcomes]
    assert all("no answer within" in detail for detail in details[:GIVE_UP_AFTER])
    assert all("not asked" in detail for detail in details[GIVE_UP_AFTER:])
    assert {outcome.status for outcome in report.outcomes} == {"fail"}


async def _nothing(probe: Probe) -> None:
    del probe


def _report(**seen: object) -> Report:
    case = Case("area.case", "it is so", "a book", _nothing)
    return Report("http://x", "m", [Outcome(case, "pass", seen=dict(seen))])


def test_a_difference_that_nobody_knows_is_unexplained() -> None:
    """A fact that one endpoint does not show counts as well."""
    (difference,) = compare(_report(text="a", more=1), _report(text="b"))
    assert not difference.explained
    assert "text 'a'" in difference.first
    assert "more None" in difference.second
    assert compare(_report(text="a"), _report(text="a")) == []


def test_reports_hold_every_case_in_each_form() -> None:
    """JSON has the fixed keys; JUnit counts an unexplained difference as a failure, and is XML
    whatever the endpoint said."""
    case = Case("area.case", "it is so", "a book", _nothing)
    report = Report("http://x", "m", [Outcome(case, "fail", "bad \x00\x1b \ud800 <tag>")])
    (row,) = json.loads(json.dumps(as_data(report)))["cases"]
    assert (row["id"], row["status"], row["detail"][:3]) == ("area.case", "fail", "bad")
    assert ET.fromstring(as_junit(report)).get("failures") == "1"
    one, two = _report(text="a"), _report(text="b")
    assert ET.fromstring(as_junit(one, compare(one, two))).get("failures") == "1"
    assert ET.fromstring(as_junit(one)).get("failures") == "0"
    assert summary(report).startswith("0 pass, 1 fail")


def test_a_case_that_only_one_endpoint_offers_is_one_failure_and_not_skipped_as_well() -> None:
    """The counts at JUnit's head are those of the elements below it."""
    one, two = _report(), _report()
    one.outcomes[0].status = "not offered"
    for differences, counts in ((compare(one, two), ("1", "0")), ([], ("0", "1"))):
        suite = ET.fromstring(as_junit(one, differences))
        assert (suite.get("failures"), suite.get("skipped")) == counts
        assert len(suite.findall("*/failure")) == int(counts[0])
        assert len(suite.findall("*/skipped")) == int(counts[1])
