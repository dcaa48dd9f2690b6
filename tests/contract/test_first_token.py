"""What a gateway relies on that says prefill's token at once and has decode go on behind it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from baton.gateway.ask import Ask
from baton.gateway.first_token import FirstToken, Ordinary, ends_inside_a_block, plan, read
from baton.gateway.handoff import KVTransferParams
from baton.gateway.releases import release_body
from baton.gateway.resumable import means_of
from baton.gateway.routes import lookup
from baton.gateway.sources import _BEHIND, _TEXT
from baton.spec.lease import EngineLease
from tests.contract.conftest import PREFILL_PARAMS, PROMPT
from tests.real_engines import BLOCK_SIZE, MAX_MODEL_LEN, MODEL_ID

COMPLETE = "/v1/completions"
CHAT = "/v1/chat/completions"


def _lease(role: str) -> EngineLease:
    return EngineLease.model_validate(
        {
            "replica_id": role, "role": role, "url": "http://x", "engine_id": role,
            "model_id": MODEL_ID, "max_model_len": MAX_MODEL_LEN, "block_size": BLOCK_SIZE,
            "continues": "chat",
        }
    )  # fmt: skip


@dataclass
class _First:
    """The gateway's own reading of prefill's answer, the offer, and what was asked."""

    token: FirstToken
    params: dict[str, Any]
    what: dict[str, Any]


async def _first(pair, path: str, what: Any = None, **body: Any) -> _First:
    """Of a prompt whose answer begins with a whole character: a tiny model writes any byte."""
    for number in range(20):
        prompt = f"{PROMPT} {number}"
        own = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {}
        asked = what or own or {"prompt": prompt}
        try:
            token, params = await _ask(pair, path, {**asked, **body})
        except Ordinary as why:
            if why.reason not in ("text", "block"):
                raise
            continue
        return _First(token, params, asked)
    raise AssertionError("no prompt of twenty has an answer that begins with a character")


async def _ask(pair, path: str, body: dict[str, Any]) -> tuple[FirstToken, dict[str, Any]]:
    asked = {"model": MODEL_ID, "temperature": 0, "max_tokens": 12, **body}
    found = lookup(path)
    assert found is not None
    ask = Ask(found[0], "POST", path, {**asked, "stream": True}, True, {}, None)
    planned = plan(ask, means_of(ask.body or {}, ask.route, None), keeps_ids=True, mode="auto")
    answer = await pair.post(path, planned.prefill_body(), url=pair.prefill_url)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    params = said["kv_transfer_params"]
    offer = KVTransferParams.model_validate(params)
    try:
        return read(planned, said, offer, _lease("prefill"), _lease("decode")), params
    except Ordinary:
        await _let_go(pair, params)
        raise


async def _let_go(pair, params: dict[str, Any]) -> None:
    """As a gateway releases what nobody wants."""
    body = release_body(KVTransferParams.model_validate(params))
    assert (await pair.post(COMPLETE, body)).status_code in (400, 404)
    await pair.complete(prompt="a step", max_tokens=1)  # should the two never have met


async def _go_on(pair, first: _First) -> dict[str, Any]:
    rest = {**(first.token.rest or {}), "stream": False, "return_token_ids": True}
    return await pair.complete(**rest, kv_transfer_params=first.params)


async def _raw(pair, path: str, **body: Any) -> list[bytes]:
    """The events of an ordinary stream with token ids."""
    asked = {"model": MODEL_ID, "temperature": 0, "max_tokens": 12, **body}
    answer = await pair.post(path, {**asked, "stream": True, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    return answer.content.split(b"\n\n")[:-1]


async def _one_by_one(pair, path: str, **body: Any) -> list[bytes]:
    """The same of a stream whose first token came alone.

    vLLM's API server sends tokens together that came while it was busy with something else.
    """
    for _ in range(20):
        stream = await _raw(pair, path, **body)
        choices = (c for event in map(_document, stream) for c in event.get("choices", ()))
        if len(next(ids for c in choices if (ids := c.get("token_ids")))) == 1:
            return stream
    raise AssertionError("no first token of twenty streams came alone")


def _document(event: bytes) -> dict[str, Any]:
    return json.loads(event[6:]) if event.startswith(b"data: {") else {}


def _behind_the_head(event: bytes) -> bytes:
    return event.partition(b'"choices"')[2] or event


def _without_stamp(event: bytes) -> Any:
    """The two engines have a fingerprint each."""
    if not event.startswith(b"data: {"):
        return event
    document = json.loads(event[6:])
    for key in ("id", "created", "system_fingerprint"):
        document[key] = key in document
    return document


@pytest.mark.parametrize("path", [COMPLETE, CHAT])
async def test_the_events_made_of_prefills_answer_are_those_of_a_stream(pair, path):
    """To the byte, but for id and time."""
    first = await _first(pair, path)
    own = first.token.events.split(b"\n\n")[:-1]
    stream = await _one_by_one(pair, path, **first.what)
    assert [_behind_the_head(e) for e in own] == [_behind_the_head(e) for e in stream[: len(own)]]
    await _go_on(pair, first)


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("path", [COMPLETE, CHAT])
async def test_an_answer_of_one_token_is_the_stream_of_one_token(pair, path, usage):
    """With its reason to end, its usage, and the last event."""
    more: dict[str, Any] = {"max_tokens": 1}
    if usage:
        more["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    first = await _first(pair, path, **more)
    assert first.token.rest is None
    own = first.token.events.split(b"\n\n")[:-1]
    stream = await _raw(pair, path, **first.what, **more)
    assert [_without_stamp(e) for e in own] == [_without_stamp(e) for e in stream]
    await _let_go(pair, first.params)


@pytest.mark.parametrize("path", [COMPLETE, CHAT])
async def test_decode_goes_on_from_token_ids_as_the_answer_would_have(pair, path):
    """Ids, text and reason; a chat's answer through `/v1/completions`."""
    first = await _first(pair, path)
    rest = await _go_on(pair, first)
    stream = await _raw(pair, path, **first.what)
    whole = [json.loads(e[6:]) for e in stream if e.startswith(b"data: {")]
    choices = [choice for event in whole for choice in event["choices"]]
    ids = [one for choice in choices for one in choice.get("token_ids") or ()]
    text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
    (choice,) = rest["choices"]
    prompt = first.token.rest["prompt"]
    assert [prompt[-1], *choice["token_ids"]] == ids
    if "\ufffd" not in text:
        assert first.token.text + choice["text"] == text
    assert choice["finish_reason"] == choices[-1]["finish_reason"]
    assert rest["usage"]["prompt_tokens"] == len(prompt)


@pytest.mark.parametrize("length", [2, 100, BLOCK_SIZE - 2, BLOCK_SIZE + 1, 2 * BLOCK_SIZE - 2])
async def test_the_rest_is_the_same_wherever_a_block_does_not_end(pair, length):
    """Up to one token before the border that is left out."""
    assert ends_inside_a_block(length, BLOCK_SIZE)
    tokens = list((PROMPT * 5).encode()[:length])
    body = {"prompt": tokens, "max_tokens": 12, "return_token_ids": True}
    plain = (await pair.complete(**body))["choices"][0]
    answer = await pair.complete(
        url=pair.prefill_url, **{**body, "max_tokens": 1}, kv_transfer_params=PREFILL_PARAMS
    )
    params, (choice,) = answer["kv_transfer_params"], answer["choices"]
    assert params["remote_num_tokens"] == length
    assert [len(blocks) for blocks in params["remote_block_ids"]] == [-(-length // BLOCK_SIZE)]
    assert choice["prompt_token_ids"] == tokens
    rest = await pair.complete(
        **{**body, "prompt": [*tokens, *choice["token_ids"]], "max_tokens": 11},
        kv_transfer_params=params,
    )
    assert [*choice["token_ids"], *rest["choices"][0]["token_ids"]] == plain["token_ids"]


async def test_chunks_are_cut_where_their_bytes_are_known(pair):
    """The text of a chunk in the middle stands between these bytes, or each is parsed."""
    for _ in range(5):  # tokens that came while the API server was busy are sent together
        first = await _first(pair, COMPLETE)
        rest = first.token.rest
        stream = await _raw(pair, COMPLETE, **rest, kv_transfer_params=first.params)
        middle = [event for event in stream[1:] if b'"finish_reason":null' in event]
        if len(middle) > 5:
            break
    assert len(middle) > 5
    for event in middle:
        assert event.count(_TEXT) == 1
        assert event.count(_BEHIND) == 1
        assert event.endswith(b"]}]}")


async def test_prefill_knows_what_ends_an_answer(pair):
    """Stop tokens and stop strings end it at the first token; `min_tokens` forbids the tokens."""
    first = await _first(pair, COMPLETE)
    await _go_on(pair, first)
    token, what = first.token.rest["prompt"][-1], first.what
    for stop in ({"stop_token_ids": [token]}, {"stop": [first.token.text]}):
        ended = await _first(pair, COMPLETE, what, **stop)
        assert (ended.token.rest, ended.token.text) == (None, "")
        assert b'"finish_reason":"stop"' in ended.token.events
        await _let_go(pair, ended.params)
    answer = await pair.complete(**what, max_tokens=1, stop_token_ids=[token], min_tokens=1)
    assert answer["choices"][0]["finish_reason"] == "length"
