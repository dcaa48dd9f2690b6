"""Prompts counted by the engine's own tokenizer, and refused before anything is computed."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from baton.errors import PromptTooLong
from baton.gateway import tokens
from baton.gateway.app import build_gateway_app
from baton.gateway.directory import FixedDirectory
from baton.gateway.tokens import check_length, questions
from baton.spec.schema import Admission as Limits
from baton.spec.schema import BatonBlock, Pool
from tests.unit.gateway.fakes import Behave, stack

TEXT = "x" * 200
FAST = LatencyProfile(prefill_tokens_per_s=0, tpot_s=0, handoff_fixed_s=0, handoff_bytes_per_s=0)


@contextlib.asynccontextmanager
async def simulated(**admission):
    """A gateway before simulated engines: a context of 1,000 tokens, a token is a byte."""
    async with (
        SimulatedEngine(role="prefill", max_model_len=1000, latency=FAST) as prefill,
        SimulatedEngine(role="decode", max_model_len=1000, latency=FAST) as decode,
    ):
        view = FixedDirectory([prefill.url], [decode.url], interval_s=30.0)
        app = build_gateway_app(BatonBlock(admission=Limits(**admission)), view)
        transport = httpx.ASGITransport(app)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
                yield http, app, prefill, decode
        finally:
            await app.close()


async def _computed(http, *engines):
    """Prompt tokens that engines have prefilled."""
    total = 0.0
    for engine in engines:
        async with httpx.AsyncClient() as direct:
            text = (await direct.get(f"{engine.url}/metrics")).text
        total += sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith("vllm:prompt_tokens_total")
        )
    return total


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("counted", [False, True])
async def test_a_prompt_longer_than_the_context_is_a_400_before_any_prefill(counted, stream):
    """Also without a limit that has it counted: then the prefill engine's own check refuses it."""
    limits = {"prefill": Pool(max_prompt_tokens_inflight=5000)} if counted else {}
    async with simulated(**limits) as (http, app, *engines):
        for path, body in (
            ("/v1/completions", {"prompt": "x" * 1500}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 1500}]}),
        ):
            answer = await http.post(path, json={**body, "stream": stream, "max_tokens": 2})
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["code"] == "context_length_exceeded"
        assert await _computed(http, *engines) == 0
        assert app.admission.inflight == 0
        assert (await http.post("/v1/completions", json={"prompt": TEXT})).status_code == 200
        assert await _computed(http, *engines) >= len(TEXT)


async def test_a_prompt_is_held_against_the_limit_by_its_tokens():
    """As the engine counts them, with its chat template; the border itself is let in."""
    async with simulated(max_prompt_tokens=300) as (http, *_):
        for prompt, status in (("x" * 301, 400), (list(range(1, 302)), 400), ("x" * 300, 200)):
            answer = await http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})
            assert answer.status_code == status, answer.text
        chat = {"messages": [{"role": "user", "content": "x" * 299}], "max_tokens": 2}
        direct = await http.post("/tokenize", json={"messages": chat["messages"]})
        assert direct.json()["count"] > 300
        answer = await http.post("/v1/chat/completions", json={**chat, "top_k": 0})
        # 299 bytes of text cannot be more than 300 tokens of text: let in without a question.
        assert answer.status_code == 200
        chat["messages"][0]["content"] = "x" * 301
        assert (await http.post("/v1/chat/completions", json=chat)).status_code == 400


async def test_the_same_prompt_is_counted_once():
    """And remembered by its hash."""
    async with simulated(prefill=Pool(max_prompt_tokens_inflight=5000)) as (http, app, *_):
        for _ in range(3):
            await http.post("/v1/completions", json={"prompt": TEXT, "max_tokens": 1})
        text = app.metrics.render().decode()
        assert 'baton_prompt_counts_total{how="counted"} 1.0' in text
        assert 'baton_prompt_counts_total{how="remembered"} 2.0' in text
        assert app.admission.prefill.tokens == 0


async def test_without_such_a_limit_no_engine_is_asked_to_count():
    """It costs a round trip."""
    async with stack() as s:
        await s.complete()
        assert [seen.path for seen in s.prefill[0].seen] == ["/v1/completions"]


@pytest.mark.parametrize(
    "behave", [Behave(status=500), Behave(status=404), Behave(drop=True), Behave(delay_s=30)]
)
async def test_what_cannot_be_counted_is_let_in(monkeypatch, behave):
    """A limit never refuses by guess, and a tokenizer that hangs holds nobody up for long."""
    monkeypatch.setattr(tokens, "TIMEOUT_S", 0.2)
    settings = BatonBlock(admission=Limits(max_prompt_tokens=10))
    async with stack(settings=settings) as s:
        s.prefill[0].plan.append(behave)
        status, _, headers = await s.complete()
        assert (status, headers["x-baton-route"]) == (200, "pd")
        assert [seen.path for seen in s.prefill[0].seen] == ["/tokenize", "/v1/completions"]


async def test_prompt_tokens_in_flight_are_bounded():
    """The second long prompt waits until the first prefill is over."""
    settings = {"prefill": Pool(max_prompt_tokens_inflight=300)}
    async with simulated(**settings) as (http, app, *_):
        body = {"prompt": TEXT, "max_tokens": 2}
        most = 0

        async def watch():
            nonlocal most
            while True:
                most = max(most, app.admission.prefill.tokens)
                await asyncio.sleep(0)

        watcher = asyncio.create_task(watch())
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json={**body, "user": str(n)}) for n in range(6))
        )
        watcher.cancel()
        assert [a.status_code for a in answers] == [200] * 6
        assert 0 < most <= 300


def test_only_what_shapes_the_prompt_is_asked_about():
    """Media are left to the engine: their text alone is counted, which is never too much."""
    chat = {"messages": [{"role": "user", "content": "hi"}], "tools": [], "temperature": 1,
            "documents": [{"a": "b"}]}  # fmt: skip
    assert questions("/v1/chat/completions", chat) == [
        ("/tokenize", {"messages": chat["messages"], "tools": [],
                       "chat_template_kwargs": {"documents": [{"a": "b"}]}})
    ]  # fmt: skip
    media = {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "http://x"}},
    ]}]}  # fmt: skip
    assert questions("/v1/chat/completions", media) == [
        ("/tokenize", {"prompt": "see", "add_special_tokens": False})
    ]
    assert questions("/v1/responses", {"input": "a", "instructions": "b", "model": "m"})[0][1] == {
        "prompt": "ab", "add_special_tokens": False
    }  # fmt: skip
    assert questions("/v1/messages", {"messages": [], "max_tokens": 3})[0] == (
        "/v1/messages/count_tokens", {"messages": []}
    )  # fmt: skip
    assert questions("/v1/completions", {"prompt": [[1, 2], "abc"]}) == [
        ("", 2), ("/tokenize", {"prompt": "abc", "add_special_tokens": True})
    ]  # fmt: skip
    assert len(questions("/v1/completions", {"prompt": ["a"] * 1000})) == tokens.MOST_PROMPTS
    assert questions("/v1/completions", {"prompt": 7}) == []


def test_each_prompt_of_several_is_held_against_the_limits():
    """Not their sum."""
    check_length([90, 90], limit=100, context=100)
    check_length([], limit=1, context=1)
    check_length([100], limit=None, context=0)
    for counts, limit, context in (([90, 101], 100, 0), ([101], None, 100)):
        with pytest.raises(PromptTooLong):
            check_length(counts, limit=limit, context=context)
