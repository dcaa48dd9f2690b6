"""The handoff, as NIXL does it and as the simulated engine's side channel does."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from baton.engine.lease_deadline import EXTENSION_KEY
from baton.gateway.lease_guard import parse_reading
from tests.contract import shapes
from tests.contract.conftest import MESSAGES, PREFILL_PARAMS, PROMPT, eventually
from tests.real_engines import BLOCK_SIZE, KV_BLOCKS, MODEL_ID


async def _lease_is_over(pair) -> None:
    async def free() -> bool:
        return await pair.metric("kv_cache_usage_perc") == 0

    await eventually(free)


def _unread(prompt: str) -> dict[str, object]:
    return {
        "model": MODEL_ID,
        "prompt": prompt,
        "max_tokens": 1,
        "kv_transfer_params": PREFILL_PARAMS,
    }


async def test_prefill_answers_where_its_kv_waits(pair):
    """The same keys and types, and numbers that say what is there."""
    params = await pair.prefill()
    asked = dict(params)
    if params.pop(EXTENSION_KEY, None) is not None:  # a real engine in an environment with Baton
        assert type(params["remote_blocks_expiry_time"]) is float
        params["remote_blocks_expiry_time"] = None
    assert {key: type(value) for key, value in params.items()} == shapes.KV_TRANSFER_PARAMS
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert params["remote_engine_id"].startswith("prefill-0")  # and this start, with Baton
    assert params["remote_num_tokens"] == len(PROMPT)
    (blocks,) = params["remote_block_ids"]
    assert len(blocks) == -(-len(PROMPT) // BLOCK_SIZE)
    assert params["transfer_mode"] == "pull"
    held = await pair.metric("kv_cache_usage_perc")
    assert held == pytest.approx(len(blocks) / (KV_BLOCKS - 1))
    await pair.complete(kv_transfer_params=asked)


@pytest.mark.parametrize("length", [1, 100, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 700])
async def test_text_after_a_handoff_is_the_text_without_one(pair, length):
    """Below, at and above the border of a block; afterwards nobody holds anything."""
    prompt = (PROMPT * 5)[:length]
    plain = await pair.complete(prompt=prompt, max_tokens=16)
    params = await pair.prefill(prompt=prompt)
    handed = await pair.complete(prompt=prompt, max_tokens=16, kv_transfer_params=params)
    assert handed["choices"][0]["text"] == plain["choices"][0]["text"]
    # Decode counts what it was handed as cached; the gateway says prefill's figure instead.
    cached = handed["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert cached == (length if length > 1 else 0)
    del plain["usage"]["prompt_tokens_details"]
    assert handed["usage"] == plain["usage"]
    assert handed["kv_transfer_params"] is None
    await _lease_is_over(pair)


async def test_a_chat_stream_after_a_handoff_is_the_one_without(pair):
    """The usual request of a gateway."""
    body = {"model": MODEL_ID, "messages": MESSAGES, "max_tokens": 1, "temperature": 0}
    answer = await pair.post(
        "/v1/chat/completions",
        {**body, "kv_transfer_params": PREFILL_PARAMS},
        url=pair.prefill_url,
    )
    params = answer.json()["kv_transfer_params"]
    *chunks, _ = await pair.stream(
        "/v1/chat/completions", messages=MESSAGES, kv_transfer_params=params
    )
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == (await pair.chat())["choices"][0]["message"]["content"]


async def test_decode_continues_from_somebody_elses_kv_if_it_is_told_to(pair):
    """No engine notices: it answers 200 with other text."""
    plain = await pair.complete(max_tokens=16)
    params = await pair.prefill(prompt=PROMPT.swapcase())
    handed = await pair.complete(max_tokens=16, kv_transfer_params=params)
    assert handed["choices"][0]["text"] != plain["choices"][0]["text"]


async def test_the_first_token_can_leave_from_prefill(pair):
    """Decode gets the prompt and prefill's token, and goes on from there."""
    tokens = list(PROMPT.encode())
    plain = (await pair.complete(prompt=tokens, max_tokens=16, return_token_ids=True))["choices"][0]
    answer = await pair.complete(
        url=pair.prefill_url,
        prompt=tokens,
        max_tokens=1,
        return_token_ids=True,
        kv_transfer_params=PREFILL_PARAMS,
    )
    (first,) = answer["choices"][0]["token_ids"]
    rest = await pair.complete(
        prompt=[*tokens, first],
        max_tokens=15,
        return_token_ids=True,
        kv_transfer_params=answer["kv_transfer_params"],
    )
    assert [first, *rest["choices"][0]["token_ids"]] == plain["token_ids"]


async def test_a_prefill_without_do_remote_decode_offers_nothing(pair):
    """Empty params are no params."""
    answer = await pair.complete(url=pair.prefill_url, kv_transfer_params={})
    assert answer["kv_transfer_params"] is None


async def test_a_longer_prefill_offers_the_kv_of_all_tokens_but_the_last(pair):
    """The token that was sampled last has not been read."""
    params = await pair.prefill(max_tokens=5)
    assert params["remote_num_tokens"] == len(PROMPT) + 4
    await pair.complete(kv_transfer_params=params)


@pytest.mark.parametrize(
    "change",
    [{"model": "nope"}, {"prompt": "x" * 3000}, {"n": 0}],
    ids=["unknown model", "too long", "n is 0"],
)
async def test_a_refused_decode_request_frees_prefills_blocks(pair, change):
    """`notify_kv_transfer_request_rejected`, long before the lease ends.

    The two have met before; test_wrong_params.py has what strangers do.
    """
    await pair.complete(kv_transfer_params=await pair.prefill())
    params = await pair.prefill()
    assert await pair.metric("kv_cache_usage_perc") > 0
    body = {"model": MODEL_ID, "prompt": PROMPT, "kv_transfer_params": params, **change}
    answer = await pair.post("/v1/completions", body)
    assert answer.status_code in (400, 404)
    await _lease_is_over(pair)


async def test_a_caller_that_hangs_up_before_prefill_ends_leaves_nothing(pair):
    """Behind others in the queue, so that it cannot have ended."""
    long = (PROMPT * 20)[:1990]
    url, body = f"{pair.prefill_url}/v1/completions", {"model": MODEL_ID, "max_tokens": 1}
    async with httpx.AsyncClient(timeout=60, verify=False) as others:
        ahead = [
            asyncio.create_task(others.post(url, json={**body, "prompt": f"{number}{long}"}))
            for number in range(4)
        ]
        work = asyncio.create_task(
            pair.post("/v1/completions", _unread(f"last{long}"), url=pair.prefill_url)
        )
        await asyncio.sleep(0.02)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        answers = await asyncio.gather(*ahead)
    assert [answer.status_code for answer in answers] == [200] * 4
    await _lease_is_over(pair)


SURELY_LEASED_S = 25  # of vLLM's 30


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_engine_fails_the_request(pair, stream):
    """A 500, or a stream that ends without text, error and finish_reason."""
    params = await pair.prefill()
    offered_at = time.monotonic()
    wrong = {**params, "remote_engine_id": f"nobody-{stream}"}
    failed = await pair.metric("nixl_num_failed_transfers_total", url=pair.decode_url)
    body = {"model": MODEL_ID, "prompt": PROMPT, "max_tokens": 8, "kv_transfer_params": wrong}
    answer = await pair.post("/v1/completions", {**body, "stream": stream})
    if stream:
        assert (answer.status_code, answer.text) == (200, "data: [DONE]\n\n")
    else:
        assert answer.status_code == 500
        assert answer.json()["error"] == {
            "message": "Internal server error",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }

    async def counted() -> bool:
        now = await pair.metric("nixl_num_failed_transfers_total", url=pair.decode_url)
        return now > failed

    await eventually(counted)
    if time.monotonic() - offered_at > SURELY_LEASED_S:
        pytest.skip("this machine took longer than the KV lease: nothing can be said about it")
    # Prefill's blocks are still held: another decode engine could take them.
    assert await pair.metric("kv_cache_usage_perc") > 0
    await pair.complete(kv_transfer_params=params)


async def test_a_failed_chat_stream_has_a_role_and_nothing_else(pair):
    """What a gateway must not take for an answer."""
    params = await pair.prefill()
    wrong = {**params, "remote_engine_id": "nobody-chat"}
    role, done = await pair.stream(
        "/v1/chat/completions", messages=MESSAGES, kv_transfer_params=wrong
    )
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert done == "[DONE]"
    await pair.complete(kv_transfer_params=params)


async def test_a_peer_is_known_by_its_engine_id_alone(pair):
    """Once met, host and port in the params are not looked at."""
    await pair.complete(kv_transfer_params=await pair.prefill())
    params = {**await pair.prefill(), "remote_port": 9}
    plain = await pair.complete()
    handed = await pair.complete(kv_transfer_params=params)
    assert handed["choices"][0]["text"] == plain["choices"][0]["text"]


async def test_prefill_counts_a_lease_that_ran_out_and_says_which_process_it_is(pair):
    """What the gateway's lease guard reads: the counter moves only when an offer has expired.

    One of the two that expire is a streamed prefill's: `kv_transfer_params` stand in whole answers
    only, so its KV is offered and nobody is told. Never stream the prefill leg.
    """
    reading = parse_reading((await pair.http.get(f"{pair.prefill_url}/metrics")).content)
    assert reading is not None
    assert len(reading[1]) > 0
    params = await pair.prefill()
    await pair.complete(kv_transfer_params=params)
    again = parse_reading((await pair.http.get(f"{pair.prefill_url}/metrics")).content)
    assert again == reading
    await pair.prefill()  # nobody reads it
    streamed = {**_unread(PROMPT), "stream": True}
    answer = await pair.post("/v1/completions", streamed, url=pair.prefill_url)
    assert answer.text.endswith("data: [DONE]\n\n")
    assert "kv_transfer_params" not in answer.text

    async def counted() -> bool:
        now = parse_reading((await pair.http.get(f"{pair.prefill_url}/metrics")).content)
        return now is not None and now == (reading[0] + 2, reading[1])

    await eventually(counted, seconds=45)
