"""What a decode engine does that knows no tools, has never met prefill, and what ends it.

Never on the shared pair.
"""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest

from tests.contract.conftest import (
    KINDS,
    MESSAGES,
    PREFILL_PARAMS,
    PROMPT,
    Pair,
    eventually,
    http_client,
    simulated,
)
from tests.real_engines import MODEL_ID, EngineSpec, start_engines


@pytest.fixture(params=KINDS)
async def doomed(request, tmp_path):
    """A pair whose decode engine may die."""
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(http_client())
        if request.param == "real":
            real = request.getfixturevalue("real_pair")
            specs = [EngineSpec("decode", "decode-doomed")]
            (decode,) = stack.enter_context(start_engines(specs, tmp_path, model=real.model_path))
            urls = real.prefill_url, decode.url
        else:
            engines = [
                await stack.enter_async_context(simulated(role)) for role in ("prefill", "decode")
            ]
            urls = engines[0].url, engines[1].url
        yield Pair(request.param, *urls, http)


async def test_a_stranger_releases_with_its_next_step_and_dies_of_too_few_blocks(doomed, request):
    """Things that gateways must know, on one engine that was started for them."""
    await _tools_without_a_parser_are_refused(doomed)
    await _a_refusal_frees_nothing_before_the_next_step(doomed)
    await _a_prompt_that_needs_more_blocks_than_are_offered_is_the_end(doomed, request)


async def _tools_without_a_parser_are_refused(doomed):
    """vLLM's own words."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    body = {"model": MODEL_ID, "messages": MESSAGES, "tools": [tool]}
    answer = await doomed.post("/v1/chat/completions", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "BadRequestError", None)


async def _a_refusal_frees_nothing_before_the_next_step(doomed):
    """Behind the handshake only a step looks for what waited for it; an idle engine has none."""
    params = await doomed.prefill()
    body = {"model": "nope", "prompt": PROMPT, "kv_transfer_params": params}
    assert (await doomed.post("/v1/completions", body)).status_code == 404
    await asyncio.sleep(1.5)
    assert await doomed.metric("kv_cache_usage_perc") > 0
    await doomed.complete(prompt="a step", max_tokens=1)
    await eventually(doomed.kv_is_free)


async def _a_prompt_that_needs_more_blocks_than_are_offered_is_the_end(doomed, request):
    """A 500, then nothing listens any more; the prefill engine lives."""
    prefill = {"model": MODEL_ID, "prompt": PROMPT, "max_tokens": 1, "temperature": 0}
    answer = await doomed.post(
        "/v1/completions",
        {**prefill, "kv_transfer_params": PREFILL_PARAMS},
        url=doomed.prefill_url,
    )
    params = answer.json()["kv_transfer_params"]
    body = {"model": MODEL_ID, "prompt": PROMPT * 3, "max_tokens": 8, "kv_transfer_params": params}
    answer = await doomed.post("/v1/completions", body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "InternalServerError")

    async def gone() -> bool:
        try:
            await doomed.http.get(f"{doomed.decode_url}/health")
        except httpx.TransportError:
            return True
        return False

    await eventually(gone, seconds=30)
    assert (await doomed.http.get(f"{doomed.prefill_url}/health")).status_code == 200

    if doomed.kind == "real":  # another decode engine lets go of it, so that no lease has to end
        other = request.getfixturevalue("real_pair").decode_url
        body = {"model": "nope", "prompt": PROMPT, "kv_transfer_params": params}
        for _ in range(2):  # these two may never have met
            assert (await doomed.post("/v1/completions", body, url=other)).status_code == 404
            await doomed.complete(url=other, prompt="a step", max_tokens=1)

    async def lease_is_over() -> bool:
        return await doomed.metric("kv_cache_usage_perc") == 0

    await eventually(lease_is_over, seconds=40)
