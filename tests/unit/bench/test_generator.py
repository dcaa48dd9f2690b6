"""The generator's process: its jobs, its failures, and a machine that has none."""

from __future__ import annotations

import importlib.util

import pytest

from baton.bench import generator
from baton.bench.generator import VllmGenerator
from baton.bench.prompts import Endpoint, job_of, look_at
from baton.bench.traffic import Block, Planned
from baton.engine.simulated import SimulatedEngine
from baton.errors import BenchFailed, EndpointUnfit, EnvironmentUnfit
from tests.unit.conformance.endpoints import MODELS, answer, as_json, serving

ENDPOINT = Endpoint("http://x", "m", None, stock=(1, 2))
JOB = job_of([Planned(0.0, (Block("a", 4),), 2)], ENDPOINT, salt="s", run_id="r")


async def test_jobs_go_to_one_process_and_its_failures_are_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result, a problem that it tells, and an end with its last word."""
    monkeypatch.setattr(generator, "_MODULE", "tests.unit.bench.fake_generator")
    async with VllmGenerator() as made:
        (sample,) = await made.measure(ENDPOINT, JOB)
        assert (sample.input_tokens, sample.output_tokens, sample.total_s) == (4, 2, 0.2)
        with pytest.raises(BenchFailed, match="no luck"):
            await made.measure(ENDPOINT, JOB)
        with pytest.raises(BenchFailed, match="out of everything"):
            await made.measure(ENDPOINT, JOB)


async def test_a_machine_without_vllm_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is sent."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentUnfit, match="vllm is not installed"):
        async with VllmGenerator():
            pass


async def test_an_endpoint_with_a_tokenizer_gives_token_ids() -> None:
    """And its context, so that what does not fit is known beforehand."""
    async with SimulatedEngine(role="decode", max_model_len=2048) as engine:
        found = await look_at(f"{engine.url}/v1/")
    assert (found.model, found.context) == ("simulated", 2048)
    assert set(found.stock) <= set(range(256))
    assert len(found.stock) > 10


async def test_an_endpoint_without_one_tells_tokens_by_its_usage() -> None:
    """Text is as long as its words are; where usage is missing too, lengths cannot be kept."""
    usage = as_json({"usage": {"prompt_tokens": 800}})
    routes = {"/v1/models": as_json(MODELS), "/v1/completions": usage}
    async with serving(lambda path: routes.get(path, answer(404, b"{}"))) as url:
        found = await look_at(url)
        assert (found.stock, found.tokens_per_word) == ((), 2.0)
        routes["/v1/completions"] = as_json({})
        with pytest.raises(EndpointUnfit, match="neither tokenizes"):
            await look_at(url)


async def test_what_is_no_endpoint_is_refused() -> None:
    """Not there, another protocol, another model."""
    with pytest.raises(EndpointUnfit, match="no endpoint answers"):
        await look_at("http://127.0.0.1:1")
    async with serving(lambda _: answer(200, b"<html>")) as url:
        with pytest.raises(EndpointUnfit, match="speaks no OpenAI"):
            await look_at(url)
    async with serving(lambda _: as_json(MODELS)) as url:
        with pytest.raises(EndpointUnfit, match="serves no model"):
            await look_at(url, model="other")
