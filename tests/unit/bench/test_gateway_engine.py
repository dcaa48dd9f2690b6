"""The bench's engine writes what the simulated engine writes, which is held to vLLM by contract."""

from __future__ import annotations

import re

import gateway_engine as cheap
import pytest

from baton.engine.simulated.answers import ChatAnswer
from baton.engine.simulated.requests import ChatRequest
from baton.engine.simulated.sequence import Step
from baton.gateway.handoff import parse_params
from baton.gateway.request_body import parse_body


def shape(events: bytes) -> bytes:
    """Events without what differs from one answer to the next: numbers, names and text."""
    events = re.sub(rb'"(id|model|content)":"[^"]*"', rb'"\1":""', events)
    events = re.sub(rb"\[[0-9,]+\]", b"[]", events)
    return re.sub(rb'"created":[0-9]+', b'"created":0', events)


@pytest.mark.parametrize("ids", [False, True])
def test_the_cheap_engine_writes_the_simulated_engines_events(ids: bool) -> None:
    """Opening, token and last token: the same keys in the same order."""
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    request = ChatRequest.model_validate({**body, "return_token_ids": ids})
    full = ChatAnswer(request, cheap.MODEL, "a")
    light = cheap.Chunks(b"chatcmpl-a", ids=ids)
    assert shape(light.opening()) == shape(full.opening([1, 2]))
    assert shape(light.token(7)) == shape(full.chunk(0, Step(9, " a", None, None), 1))
    last = Step(9, " a", "length", None)
    assert shape(light.last_token(7)) == shape(full.chunk(0, last, 2))


def test_a_chunk_is_put_together_from_parts_made_once() -> None:
    """The stamp is all that changes, and the HTTP chunk is as long as it says."""
    light = cheap.Chunks(b"chatcmpl-%032x" % 1, ids=True)
    before, after = light.framed_token()
    assert before + b"%016d" % 42 + after == cheap.framed(light.token(42))


def test_its_offer_is_one_that_the_gateway_takes() -> None:
    """Prefill's answer carries kv_transfer_params as vLLM 0.29 spells them."""
    connection = cheap.Connection(cheap.Engine(), "prefill")
    answer = re.sub(rb'"kv_transfer_params"', b'"kv"', connection._offer())
    params = parse_params({"kv_transfer_params": parse_body(answer)["kv"]}, "prefill")
    assert params.prompt_tokens == cheap.PROMPT_TOKENS
