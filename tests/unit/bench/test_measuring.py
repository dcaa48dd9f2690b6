"""Figures, sweeps and comparisons, from samples that are made up."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from baton.bench import report, run, served
from baton.bench.compare import Comparison, Side, Tried, compare, rows, sentence, tuned
from baton.bench.figures import figures, spread
from baton.bench.generator import Sample, _sample
from baton.bench.prompts import Endpoint, job_of, prompt_of
from baton.bench.run import Measured, check_disaggregated, measure
from baton.bench.served import Counts, Served, counts_of
from baton.bench.sweep import Step, best, sweep
from baton.bench.traffic import Block, Planned
from baton.errors import BenchFailed
from baton.spec.schema import Slo

SLO = Slo(ttft_s=1.0, tpot_s=0.1)
ENDPOINT = Endpoint("http://x", "m", 8192, stock=(5, 6, 7))
PAGE = """
baton_inflight 0
baton_requests_total{{outcome="ok",path="/v1/completions",reason="cost, \\"x\\"",route="pd"}} {pd}
baton_requests_total{{outcome="ok",path="/v1/completions",reason="cheaper",route="decode_only"}} 4.0
"""


def sample(at_s: float = 0, ttft_s: float = 0.5, gaps: int = 4, gap_s: float = 0.05) -> Sample:
    return Sample(at_s, 10, gaps + 1, ttft_s, (gap_s,) * gaps)


def planned(count: int, kind: str = "") -> list[Planned]:
    return [Planned(float(n), (Block(f"b{n}", 10),), 5, kind) for n in range(count)]


@dataclass
class Fake:
    """A generator that has made up its mind."""

    samples: list[Sample]
    jobs: list[list[dict[str, Any]]] = field(default_factory=list)

    async def measure(self, endpoint: Endpoint, requests: list[dict[str, Any]]) -> list[Sample]:
        self.jobs.append(requests)
        return self.samples[: len(requests)]


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the endpoint tells of itself: nothing, unless a test says otherwise."""
    pages: dict[str, Any] = {"counts": [None, None], "phases": {}}

    async def counts_at(*_: Any) -> Any:
        return pages["counts"].pop(0)

    async def phases_at(*_: Any) -> Any:
        return pages["phases"]

    monkeypatch.setattr(run, "counts_at", counts_at)
    monkeypatch.setattr(run, "phases_at", phases_at)
    return pages


def test_tpot_and_goodput_are_those_of_the_definitions() -> None:
    """(E2E - TTFT) / (tokens - 1); a request is good when it met every target."""
    samples = [sample(), sample(1, ttft_s=2.0), sample(2, gap_s=0.2)]
    found = figures(samples, SLO, warmup_s=0)
    assert found.tpot is not None
    assert found.tpot.maximum == pytest.approx(0.2)
    assert found.tpot.at(50) == pytest.approx(0.05)
    assert found.met == 1
    assert found.duration_s == pytest.approx(3.3)
    assert found.goodput == pytest.approx(1 / 3.3)


def test_the_warm_up_counts_for_nothing() -> None:
    """Neither its latencies nor its time."""
    found = figures([sample(0, ttft_s=9), sample(5), sample(6)], SLO, warmup_s=5)
    assert (found.requests, found.warmup_excluded) == (2, 1)
    assert found.ttft is not None
    assert found.ttft.maximum == 0.5
    assert found.duration_s == pytest.approx(1.7)


def test_a_request_that_failed_meets_no_target_and_has_no_latency() -> None:
    """It counts as asked; an answer of one token has no TPOT to miss."""
    lost = Sample(0, 10, 0, 0.0, (), "Traceback …\nConnectionError: gone")
    found = figures([lost, sample(1, gaps=0)], SLO, warmup_s=0)
    assert (found.requests, found.failed, found.met) == (2, 1, 1)
    assert found.tpot is None
    assert found.errors == {"ConnectionError: gone": 1}
    assert figures([sample()], Slo(), warmup_s=0).goodput is None


def test_a_spread_holds_values_that_were_seen_and_nothing_has_none() -> None:
    """In any order."""
    found = spread([0.4, 0.1, 0.3, 0.2])
    assert found is not None
    assert [found.at(percent) for percent in (50, 90, 99)] == [0.2, 0.4, 0.4]
    assert spread([]) is None


def test_a_stream_that_broke_off_is_a_failure_although_the_generator_calls_it_a_success() -> None:
    """vLLM's generator takes one token for success; usage that is missing gives it away."""
    one = {"error": "", "output_tokens": 1, "input_tokens": 3, "ttft_s": 0.1, "itl_s": [0.1],
           "start_s": 0.0}  # fmt: skip
    assert "broke off" in _sample(one, {"output_tokens": 5}).error
    assert not _sample(one, {"output_tokens": 1}).error


def test_blocks_of_one_name_hold_the_same_tokens_and_another_salt_others() -> None:
    """On both sides of a comparison, and anew in each round."""
    request = Planned(0, (Block("shared", 40), Block("own", 3)), 1)
    first, second = (prompt_of(request, ENDPOINT, salt) for salt in ("round-0", "round-1"))
    assert first == prompt_of(request, ENDPOINT, "round-0")
    assert first != second
    assert len(first) == 43
    text = prompt_of(request, Endpoint("http://x", "m", None, tokens_per_word=2.0), "a")
    assert isinstance(text, str)
    assert len(text.split()) == 22


def test_a_job_carries_ids_times_and_lengths() -> None:
    """The id finds the request again in the gateway's timelines."""
    (job,) = job_of([Planned(1.5, (Block("a", 4),), 7)], ENDPOINT, salt="s", run_id="bench-1")
    assert (job["id"], job["at_s"], job["output_tokens"]) == ("bench-1-0", 1.5, 7)


async def test_a_run_knows_its_classes_and_its_ways(told: dict[str, Any]) -> None:
    """The counts before are taken off those after."""
    told["counts"] = [counts_of(PAGE.format(pd="1.0")), counts_of(PAGE.format(pd="3.0"))]
    told["phases"] = {"prefill": (0.1, 0.2)}
    traffic = [*planned(2, "chat"), *planned(1, "long")]
    found = await measure(ENDPOINT, traffic, Fake([sample()] * 3), slo=SLO)
    assert {kind: f.requests for kind, f in found.by_kind.items()} == {"chat": 2, "long": 1}
    assert found.served.disaggregated == 2
    data = json.loads(json.dumps(found.as_data()))
    assert data["routes"] == {"pd": 2.0}
    assert data["phases"]["prefill"]["count"] == 2


async def test_a_run_in_which_most_requests_fail_has_no_figures() -> None:
    """The latencies of the survivors are not those of the endpoint."""
    lost = Sample(0, 1, 0, 0, (), "Internal Server Error")
    with pytest.raises(BenchFailed, match=r"2 of 3 requests failed.*Internal Server Error"):
        await measure(ENDPOINT, planned(3), Fake([lost, lost, sample()]), slo=SLO)


async def test_a_run_that_is_all_warm_up_is_refused_before_anything_is_sent() -> None:
    """With what to change."""
    fake = Fake([])
    with pytest.raises(BenchFailed, match="after a warm-up"):
        await measure(ENDPOINT, planned(3), fake, slo=SLO, warmup_s=60)
    assert fake.jobs == []


def _measured(
    attained: int = 10, itl_s: float = 0.01, ttft_s: float = 0.1, pd: int | None = 5
) -> Measured:
    samples = [sample(n, ttft_s, gap_s=itl_s) for n in range(attained)]
    samples += [sample(n, ttft_s=5.0, gap_s=itl_s) for n in range(attained, 10)]
    counts = None if pd is None else Counts({"pd": float(pd)}, {"pd: always": float(pd)})
    return Measured(figures(samples, SLO, warmup_s=0), Served(counts), samples)


def test_a_run_in_which_prefill_served_nobody_fails() -> None:
    """Not known is no pass either."""
    check_disaggregated(_measured(pd=1))
    with pytest.raises(BenchFailed, match="prefill served none of 10 requests"):
        check_disaggregated(_measured(pd=0))
    with pytest.raises(BenchFailed, match="does not say"):
        check_disaggregated(_measured(pd=None))
    assert counts_of("vllm:num_requests_running 0\n") is None


async def test_a_sweep_ends_where_the_targets_break_and_looks_between() -> None:
    """The best rate is the last one that held."""

    async def at(rate: float) -> Measured:
        if rate > 6:
            raise BenchFailed("most requests failed")
        return _measured(10 if rate < 3.2 else 5)

    steps = await sweep(at, start=2.0)
    assert [round(step.rate, 2) for step in steps] == [2.0, 3.0, 3.67, 4.5]
    assert [step.held for step in steps] == [True, True, False, False]
    found = best(steps)
    assert found is not None
    assert found.rate == 3.0
    assert "broke" in str(report.sweep_table(steps))


async def test_a_sweep_whose_first_rate_cannot_be_measured_fails() -> None:
    """Later ones that cannot are rates that broke."""

    async def never(_: float) -> Measured:
        raise BenchFailed("gone")

    async def once(rate: float) -> Measured:
        return await never(rate) if rate > 1 else _measured()

    with pytest.raises(BenchFailed):
        await sweep(never, start=1.0)
    steps = await sweep(once, start=1.0)
    assert steps[-1].problem == "gone"
    assert best([Step(1.0, None, held=False)]) is None


async def test_sides_are_measured_in_turn_and_the_order_turns_round() -> None:
    """So that what the machine does meanwhile falls on both."""
    order: list[tuple[Side, int]] = []

    async def side(name: Side, number: int) -> Measured:
        order.append((name, number))
        return _measured(pd=0 if name == "together" else 5)

    await compare(side, rounds=2)
    assert order == [
        ("together", 0), ("disaggregated", 0), ("disaggregated", 1), ("together", 1),
    ]  # fmt: skip


async def test_a_comparison_without_disaggregation_or_with_it_on_both_sides_fails() -> None:
    """There would be nothing to compare."""

    async def never(_: Side, __: int) -> Measured:
        return _measured(pd=0)

    async def always(_: Side, __: int) -> Measured:
        return _measured(pd=5)

    with pytest.raises(BenchFailed, match="prefill served none"):
        await compare(never, rounds=1)
    with pytest.raises(BenchFailed, match="baseline was disaggregated"):
        await compare(always, rounds=1)


def _comparison(together: list[Measured], disaggregated: list[Measured]) -> Comparison:
    return Comparison(rounds={"together": together, "disaggregated": disaggregated})


def test_the_sentence_says_who_wins_by_how_much_and_at_what_cost() -> None:
    """First by the share of requests within the targets."""
    won = _comparison([_measured(5), _measured(6)], [_measured(9), _measured(10)])
    assert "disaggregation wins by 40 points: 95 % against 55 %" in sentence(won)
    lost = _comparison([_measured(9), _measured(10)], [_measured(5), _measured(6)])
    assert "disaggregation loses by 40 points" in sentence(lost)


def test_where_both_keep_the_targets_the_gaps_decide() -> None:
    """And what it costs in TTFT stands beside it."""
    slow, fast = _measured(itl_s=0.05), _measured(itl_s=0.01, ttft_s=0.3)
    words = sentence(_comparison([slow, slow], [fast, fast]))
    assert "wins by a factor of 5.0 in ITL p99: 10.0 ms against 50.0 ms" in words
    assert "TTFT p50 300.0 ms against 100.0 ms" in words
    assert "loses by a factor of 5.0" in sentence(_comparison([fast, fast], [slow, slow]))


def test_where_the_rounds_overlap_nobody_wins() -> None:
    """Whatever the medians say."""
    one, two = _measured(itl_s=0.01), _measured(itl_s=0.05)
    found = _comparison([one, two, two], [one, one, two])
    assert "neither wins nor loses" in sentence(found)
    assert all(row.better is None for row in rows(found) if row.name.startswith("ITL"))


def test_the_baseline_gets_the_chunk_that_suits_it_best() -> None:
    """Most requests within the targets first, then the shortest stalls."""
    tried = [
        Tried(None, _measured(10, itl_s=0.09)),
        Tried(512, _measured(10, itl_s=0.02)),
        Tried(128, _measured(8, itl_s=0.01)),
    ]
    assert tuned(tried).chunk_tokens == 512


def test_a_page_needs_nothing_from_elsewhere_and_is_escaped() -> None:
    """One file: no script, no link, and what an endpoint said is text."""
    found = _comparison([_measured(5)] * 2, [_measured(10)] * 2)
    found.tuning = [Tried(None, _measured())]
    found.facts = {"model": "<script>alert(1)</script>"}
    written = report.Report(
        "T", report.compare_lead(found), report.compare_tables(found),
        report.compare_notes(found), report.compare_plots(found), found.as_data(),
    )  # fmt: skip
    html = written.html()
    assert "<script" not in html
    assert "http" not in html
    assert html.count("<svg") == 2
    for start in html.split("<svg")[1:]:
        ET.fromstring("<svg" + start.split("</svg>")[0] + "</svg>")
    assert written.markdown().splitlines()[2] == sentence(found)
    json.dumps(written.data)


def test_a_run_reads_as_a_report() -> None:
    """Failures, ways and stages are in it."""
    found = Measured(
        figures([sample(), Sample(1, 1, 0, 0, (), "boom")], SLO, warmup_s=0),
        Served(Counts({"pd": 2.0}, {"pd: always": 2.0}), {"prefill": (0.1,)}),
        [sample()],
    )
    text = str((report.run_lead(found), report.run_tables(found), report.run_notes(found)))
    for words in ("1 of 2 failed", "prefill, ms", "2 requests were disaggregated", "boom"):
        assert words in text
    assert "does not tell" in str(report.run_notes(_measured(pd=None)))


async def test_an_endpoint_without_metrics_is_not_known_to_disaggregate() -> None:
    """Nobody answers there."""
    assert await served.counts_at("http://127.0.0.1:1", {}) is None
    assert await served.phases_at("http://127.0.0.1:1", {}, "x") == {}
    assert not await served.has_prefill("http://127.0.0.1:1", {})
