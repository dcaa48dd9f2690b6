"""Prefill here, decode there."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.unit.engine.simulated.conftest import PROMPT, events, eventually

BLOCK = 16


async def test_text_after_a_handoff_is_the_text_without_one(start):
    """Decode continues from what it has fetched, and that is right."""
    prefill, decode = await start("prefill"), await start("decode")
    plain = await decode.text()
    params = await prefill.prefill()
    assert await decode.text(kv_transfer_params=params) == plain


async def test_decode_uses_the_kv_it_fetched_and_not_the_prompt(start):
    """Somebody else's KV gives somebody else's text: nothing is recomputed in secret."""
    prefill, decode = await start("prefill"), await start("decode")
    params = await prefill.prefill(prompt=PROMPT.replace("river", "mount"))
    plain = await decode.text()
    assert await decode.text(kv_transfer_params=params) != plain


async def test_the_first_token_can_leave_from_prefill(start):
    """Decode may get prompt plus prefill's token, while prefill's last block has room for it."""
    prefill, decode = await start("prefill"), await start("decode")
    tokens = list(PROMPT.encode())
    assert len(tokens) % BLOCK
    plain = await decode.text()
    params = await prefill.prefill(prompt=tokens)
    text = await decode.text(
        prompt=[*tokens, plain.encode()[0]], max_tokens=39, kv_transfer_params=params
    )
    assert text == plain[1:]


async def test_prefill_holds_its_blocks_until_decode_has_read_them(start):
    """The lease, and its end by the transfer."""
    prefill, decode = await start("prefill"), await start("decode")
    params = await prefill.prefill()
    pool = prefill.engine.core.pool
    assert pool.usage == pytest.approx(pool.blocks_for(len(PROMPT)) / 4095)
    await decode.text(kv_transfer_params=params)
    await eventually(lambda: pool.usage == 0)
    assert decode.engine.core.pool.usage == 0


async def test_an_offer_nobody_takes_is_freed_when_the_lease_ends(start):
    """And counted as expired."""
    prefill = await start("prefill", kv_lease_s=0.1)
    await prefill.prefill()
    assert prefill.engine.core.pool.usage > 0
    await eventually(lambda: prefill.engine.core.pool.usage == 0)
    metrics = (await prefill.http.get(f"{prefill.engine.url}/metrics")).text
    assert 'vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="simulated"} 1.0' in metrics


async def test_a_decode_request_that_waits_keeps_the_lease_alive(start, monkeypatch):
    """Heartbeats come from the queue, too."""
    prefill = await start("prefill")
    decode = await start("decode", max_num_seqs=1, kv_lease_s=0.1, tpot_s=0.02)
    params = await prefill.prefill()
    beats: list[str] = []
    monkeypatch.setattr(prefill.engine.core.pool, "heartbeat", beats.extend)
    busy = asyncio.create_task(decode.text(prompt="busy", max_tokens=1000))
    await eventually(lambda: decode.engine.core.counts.running == 1)
    waiting = asyncio.create_task(decode.text(kv_transfer_params=params, max_tokens=4))
    await eventually(lambda: len(beats) > 1)
    busy.cancel()
    assert await waiting == (await decode.text(max_tokens=4))
    assert set(beats) == {params["remote_request_id"]}


@pytest.mark.parametrize(
    ("change", "status"),
    [({"model": "nope"}, 404), ({"temperature": -1}, 400), ({"prompt": "x" * 9000}, 400)],
)
async def test_a_decode_request_that_is_refused_frees_prefills_blocks(start, change, status):
    """Nobody will come for them."""
    prefill, decode = await start("prefill"), await start("decode")
    await decode.text(kv_transfer_params=await prefill.prefill())
    params = await prefill.prefill()
    answer = await decode.complete(kv_transfer_params=params, **change)
    assert answer.status_code == status
    await eventually(lambda: prefill.engine.core.pool.usage == 0)
    assert prefill.engine.core.pool.expired_requests == 0


async def test_a_refusal_by_a_stranger_frees_nothing_before_its_next_step(start):
    """Behind the handshake only a step looks for what waited for it; an idle engine has none."""
    prefill, decode = await start("prefill"), await start("decode")
    params = await prefill.prefill()
    answer = await decode.complete(kv_transfer_params=params, model="nope")
    assert answer.status_code == 404
    await asyncio.sleep(0.3)
    assert prefill.engine.core.pool.usage > 0
    await decode.text(prompt="a step", max_tokens=1)
    await eventually(lambda: prefill.engine.core.pool.usage == 0)
    assert prefill.engine.core.pool.expired_requests == 0


async def test_a_decode_caller_that_hangs_up_in_the_queue_frees_prefills_blocks(start):
    """As vLLM does for requests that were never scheduled."""
    prefill = await start("prefill")
    decode = await start("decode", max_num_seqs=1, tpot_s=0.05)
    params = await prefill.prefill()
    busy = asyncio.create_task(decode.text(prompt="busy", max_tokens=100))
    await eventually(lambda: decode.engine.core.counts.running == 1)
    waiting = asyncio.create_task(decode.text(kv_transfer_params=params))
    await eventually(lambda: decode.engine.core.counts.waiting_capacity == 1)
    waiting.cancel()
    await eventually(lambda: prefill.engine.core.pool.usage == 0)
    busy.cancel()
    await eventually(lambda: decode.engine.core.pool.usage == 0)


async def test_a_caller_that_hangs_up_during_prefill_frees_its_blocks(start):
    """An abort before the end leaves no lease."""
    prefill = await start("prefill", prefill_tokens_per_s=10)
    work = asyncio.create_task(prefill.prefill())
    pool = prefill.engine.core.pool
    await eventually(lambda: pool.usage > 0)
    work.cancel()
    await eventually(lambda: pool.usage == 0)
    assert pool.leases == 0


async def test_hanging_up_after_prefill_frees_nothing(start):
    """The lease holds: only decode, or time, ends it."""
    prefill = await start("prefill")
    async with httpx.AsyncClient() as http:
        body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        await http.post(f"{prefill.engine.url}/v1/completions", json=body)
    await asyncio.sleep(0.05)
    assert prefill.engine.core.pool.leases == 1


async def test_every_choice_of_a_prefill_leaves_an_offer_of_which_one_is_named(start):
    """Why a gateway does not send n > 1 through P/D."""
    prefill, decode = await start("prefill"), await start("decode")
    params = await prefill.prefill(n=3, temperature=1)
    assert prefill.engine.core.pool.leases == 3
    await decode.text(kv_transfer_params=params)
    await eventually(lambda: prefill.engine.core.pool.leases == 2)


@pytest.mark.parametrize("wrong", ["engine_id", "dead_port"])
async def test_kv_that_cannot_be_had_fails_the_request(start, wrong):
    """As under vLLM's `kv_load_failure_policy: fail`; prefill's lease runs on."""
    prefill = await start("prefill")
    decode = await start("decode", handshake_timeout_s=0.2)
    params = await prefill.prefill() | {"remote_engine_id": "other"}
    if wrong == "dead_port":
        params |= {"remote_port": 9}
    answer = await decode.complete(kv_transfer_params=params)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "InternalServerError"
    assert decode.engine.core.counts.failed_transfers == 1
    assert decode.engine.core.pool.usage == 0
    assert prefill.engine.core.pool.leases == 1


async def test_a_stream_whose_kv_cannot_be_had_ends_without_a_word(start):
    """A 200, `[DONE]`, and nothing that says why: no error, no finish_reason."""
    prefill, decode = await start("prefill"), await start("decode")
    params = await prefill.prefill() | {"remote_engine_id": "other"}
    answer = await decode.complete(kv_transfer_params=params, stream=True)
    assert (answer.status_code, events(answer.text)) == (200, ["[DONE]"])


async def test_a_peer_that_was_started_anew_under_its_old_name_is_not_found(start):
    """vLLM knows a peer by its `engine_id` and never asks again."""
    first, decode = await start("prefill", engine_id="p"), await start("decode")
    await decode.text(kv_transfer_params=await first.prefill())
    second = await start("prefill", engine_id="p")
    params = await second.prefill()
    first.engine.kill()
    assert (await decode.complete(kv_transfer_params=params)).status_code == 500


async def test_a_peer_of_another_version_is_refused_at_the_handshake(start):
    """As vLLM's compatibility hash does: only decode sees it, with the first request."""
    prefill, decode = await start("prefill", vllm_version="0.30.0"), await start("decode")
    params = await prefill.prefill()
    assert (await decode.complete(kv_transfer_params=params)).status_code == 500


async def test_late_decode_reads_what_others_have_written(start):
    """No error tells it: the text is another."""
    prefill = await start("prefill", kv_blocks=9, max_model_len=128)
    decode = await start("decode")
    params = await prefill.prefill()
    await prefill.set_faults("expire_leases")
    await prefill.text(prompt="q" * 100, max_tokens=20)
    answer = await decode.complete(kv_transfer_params=params)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] != await decode.text()


@pytest.mark.parametrize("how", ["more_blocks_than_offered", "no_blocks_named"])
async def test_some_wrong_params_kill_the_engine(start, how):
    """vLLM's assertions end EngineCore, and the server with it: gateways must not send these."""
    prefill, decode = await start("prefill"), await start("decode")
    params = await prefill.prefill()
    prompt = PROMPT
    if how == "no_blocks_named":
        params["remote_block_ids"] = []
    else:
        prompt = PROMPT + "x" * BLOCK
    answer = await decode.complete(prompt=prompt, kv_transfer_params=params)
    assert answer.status_code == 500
    assert decode.engine.core.dead
    await asyncio.sleep(0.3)
    with pytest.raises(httpx.TransportError):
        await decode.complete()


async def test_a_caller_that_waits_for_kv_nobody_sends_kills_the_engine_by_leaving(start):
    """Params without a host: vLLM waits, and stumbles over them when the request is aborted."""
    prefill, decode = await start("prefill"), await start("decode")
    params = await prefill.prefill()
    del params["remote_host"]
    waiting = asyncio.create_task(decode.complete(kv_transfer_params=params))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    waiting.cancel()
    await eventually(lambda: decode.engine.core.dead)


async def test_refusing_a_request_with_half_its_params_kills_the_engine(start):
    """The notice that would free the blocks has no address."""
    decode = await start("decode")
    params = {"do_remote_prefill": True, "remote_engine_id": "prefill"}
    assert (await decode.complete(model="nope", kv_transfer_params=params)).status_code == 404
    assert decode.engine.core.dead


async def test_a_notice_that_finds_nobody_is_counted(start):
    """As `nixl_num_failed_notifications`."""
    prefill, decode = await start("prefill"), await start("decode", handshake_timeout_s=0.2)
    await decode.text(kv_transfer_params=await prefill.prefill())
    params = await prefill.prefill()
    prefill.engine.kill()
    assert (await decode.complete(model="nope", kv_transfer_params=params)).status_code == 404
    await eventually(lambda: decode.engine.core.counts.failed_notifications == 1)
