"""What `prompt_tokens_details` counts: the gateway puts right what decode says (`prompt_usage`)."""

from __future__ import annotations

import uuid

import pytest

from tests.contract.conftest import PREFILL_PARAMS, PROMPT
from tests.real_engines import BLOCK_SIZE, MODEL_ID

COMPLETE = "/v1/completions"
CHAT = "/v1/chat/completions"


def _asked(path: str) -> dict[str, object]:
    """A prompt of more than one block that nobody has sent before."""
    text = f"{uuid.uuid4().hex} {PROMPT}"
    what = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    return {"model": MODEL_ID, "temperature": 0, "max_tokens": 4, **what}


async def _usage(pair, path: str, body, *, url: str | None = None):
    answer = await pair.post(path, body, url=url)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"], answer.json()["kv_transfer_params"]


@pytest.mark.parametrize("path", [COMPLETE, CHAT])
async def test_an_engine_that_reads_the_prompt_itself_counts_its_own_cache(pair, path):
    """Nothing at first, then whole blocks; a chat also says what it has put there."""
    body = _asked(path)
    first, _ = await _usage(pair, path, body)
    again, _ = await _usage(pair, path, body)
    blocks = first["prompt_tokens"] // BLOCK_SIZE * BLOCK_SIZE
    assert blocks
    created = (blocks, 0) if path == CHAT else (None, None)
    for usage, cached, new in zip((first, again), (0, blocks), created, strict=True):
        assert usage["prompt_tokens_details"] == {
            "cached_tokens": cached,
            "created_cache_tokens": new,
            "multimodal_tokens": None,
        }


@pytest.mark.parametrize("path", [COMPLETE, CHAT])
async def test_decode_calls_everything_cached_that_it_was_handed(pair, path):
    """And prefill's own answer says what really was."""
    body = _asked(path)
    leg = {**body, "max_tokens": 1, "kv_transfer_params": PREFILL_PARAMS}
    for known in (False, True):
        prefill, params = await _usage(pair, path, leg, url=pair.prefill_url)
        decode, _ = await _usage(pair, path, {**body, "kv_transfer_params": params})
        prompt = prefill["prompt_tokens"]
        cached = prompt // BLOCK_SIZE * BLOCK_SIZE if known else 0
        assert prefill["prompt_tokens_details"]["cached_tokens"] == cached
        assert decode["prompt_tokens_details"]["cached_tokens"] == prompt


@pytest.mark.parametrize("path", [COMPLETE, CHAT])
async def test_a_stream_says_it_once_and_without_nulls(pair, path):
    """In the chunk with the usage; usage in every chunk does not have it."""
    body = _asked(path)
    for options in ({}, {"continuous_usage_stats": True}):
        *chunks, last, _ = await pair.stream(
            path, **body, stream_options={"include_usage": True, **options}
        )
        details = last["usage"]["prompt_tokens_details"]
        assert None not in details.values()
        keys = {"cached_tokens", "created_cache_tokens"} if path == CHAT else {"cached_tokens"}
        assert details.keys() == keys
        assert not any("prompt_tokens_details" in (c.get("usage") or {}) for c in chunks)
