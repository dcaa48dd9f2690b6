"""The pure parts: parser, prefill's copy, decisions, event cutter, eligibility."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.errors import PrefillFailed, RequestRefused
from baton.gateway.decode import decode_body, engine_tag, error_in, tag_in
from baton.gateway.eligibility import UNFIT, why_decode_alone
from baton.gateway.handoff import FOR_PREFILL, Handoff, parse_params
from baton.gateway.prefill import prefill_body
from baton.gateway.recovery import RetryBudget, after_decode_failure, after_prefill_failure
from baton.gateway.releases import release_body
from baton.gateway.request_body import MAX_DEPTH, encode_body, parse_body
from baton.gateway.routes import TABLE, local_path, lookup
from baton.gateway.sse import WholeEvents
from baton.spec.lease import EngineLease

CHAT = lookup("/v1/chat/completions")[0]
COMPLETIONS = lookup("/v1/completions")[0]
RESPONSES = lookup("/v1/responses")[0]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def _depth(value):
    if isinstance(value, dict):
        return 1 + max((_depth(v) for v in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((_depth(v) for v in value), default=0)
    return 0


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_what_the_parser_takes_it_gives_on_unchanged(body):
    """Decoded, encoded anew and decoded by another parser: the same values."""
    raw = json.dumps(body).encode()
    if '"kv_transfer_params"' in raw.decode() or '"ec_transfer_params"' in raw.decode():
        return
    assert json.loads(encode_body(parse_body(raw))) == body


@given(st.binary(max_size=200))
def test_the_parser_answers_any_bytes_with_a_dict_or_a_refusal(raw):
    """Never with another exception."""
    with contextlib.suppress(RequestRefused):
        assert isinstance(parse_body(raw), dict)


@given(st.integers(1, 3 * MAX_DEPTH), st.booleans())
def test_depth_is_limited_exactly(depth, lists):
    """Deeper than the limit is refused, whatever it is made of."""
    inner = 1
    for _ in range(depth - 1):
        inner = [inner] if lists else {"a": inner}
    raw = json.dumps({"a": inner}).encode()
    if depth <= MAX_DEPTH:
        assert _depth(parse_body(raw)) == depth
    else:
        with pytest.raises(RequestRefused, match="deeper"):
            parse_body(raw)


@given(st.lists(st.sampled_from(["kv_transfer_params", "ec_transfer_params", "a", "b"]),
                min_size=1, max_size=6), st.booleans())  # fmt: skip
def test_a_forbidden_key_is_found_at_any_depth_and_however_it_is_escaped(keys, escape):
    """Escaping a letter hides nothing."""
    body = 1
    for key in keys:
        body = {"x": [{key: body}]}
    raw = json.dumps(body).encode()
    if escape:
        raw = raw.replace(b"_transfer", b"\\u005ftransfer")
    if any("transfer" in key for key in keys):
        with pytest.raises(RequestRefused, match="not accepted"):
            parse_body(raw)
    else:
        parse_body(raw)


def _lease(name):
    return EngineLease(
        replica_id=name, role="decode", url=f"http://{name}", engine_id=name, model_id="m"
    )


@given(st.lists(st.text(alphabet="ab\n:", max_size=12), max_size=8), st.data())
def test_events_stay_whole_however_their_bytes_are_split(texts, data):
    """What comes out is what went in, cut only behind events."""
    stream = b"".join(b"data: " + t.strip("\n").encode() + b"\n\n" for t in texts) + b"data: ha"
    cutter, out, at = WholeEvents(), b"", 0
    while at < len(stream):
        step = data.draw(st.integers(1, 9))
        piece = cutter.feed(stream[at : at + step])
        assert piece == b"" or piece.endswith(b"\n\n")
        out += piece
        at += step
    assert out + cutter.rest() == stream
    assert b"\n\n" not in cutter.rest()


def test_the_prefill_leg_is_a_copy_that_makes_one_token():
    """The caller's body is not touched; the prompt and what shapes it stay."""
    body = {
        "messages": [{"role": "user", "content": "x"}], "stream": True,
        "stream_options": {"include_usage": True}, "max_tokens": 9, "min_tokens": 4, "n": 1,
        "logprobs": True, "top_logprobs": 3, "stop": ["x"], "tools": [{}], "tool_choice": "none",
        "response_format": {"type": "json_object"}, "chat_template_kwargs": {"a": 1},
    }  # fmt: skip
    before = json.dumps(body)
    leg = prefill_body(body, CHAT)
    assert json.dumps(body) == before
    assert leg == {
        "messages": body["messages"], "stream": False, "max_tokens": 1, "n": 1,
        "max_completion_tokens": 1, "tools": [{}], "tool_choice": "none",
        "response_format": {"type": "json_object"}, "chat_template_kwargs": {"a": 1},
        "kv_transfer_params": FOR_PREFILL,
    }  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, "5", 1.5, True, [1]])
def test_a_token_limit_that_vllm_refuses_stays_so_that_prefill_refuses_it(value):
    """Before anything was computed, and not after."""
    assert prefill_body({"max_tokens": value}, COMPLETIONS)["max_tokens"] == value


def test_stream_options_without_stream_stay_so_that_prefill_refuses_them():
    """Decode's parser would, and strand the KV."""
    assert "stream_options" in prefill_body({"stream_options": {}}, CHAT)


def test_the_prefill_leg_of_a_response_stores_nothing():
    """The response belongs to the decode engine."""
    assert prefill_body({"input": "x"}, RESPONSES)["store"] is False


def test_a_null_that_vllm_has_no_room_for_in_its_answer_is_left_out_of_both_legs():
    """It would compute everything, answer 400, and keep the KV. Other nulls are the engine's."""
    body = {"input": "x", "background": None, "truncation": None, "user": None}
    for leg in (prefill_body(body, RESPONSES), decode_body(body, RESPONSES, _lease("d"), None)):
        assert "background" not in leg
        assert "truncation" not in leg
        assert leg["user"] is None
    assert prefill_body({"background": None}, CHAT)["background"] is None
    assert prefill_body({"background": False}, RESPONSES)["background"] is False


def test_a_response_id_tells_its_engine():
    """And ids of others tell none."""
    body = decode_body({"input": "x", "request_id": "mine"}, RESPONSES, _lease("d7"), None)
    assert tag_in(body["request_id"]) == engine_tag("d7")
    assert tag_in("resp_123") is None
    assert "request_id" not in decode_body({"request_id": "mine"}, CHAT, _lease("d"), None)


GOOD = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "p",
    "remote_request_id": "r", "remote_block_ids": [[3]], "remote_host": "h", "remote_port": 1,
    "tp_size": 2, "something_new": 7,
}  # fmt: skip


def test_prefills_offer_reaches_decode_whole():
    """With what a newer vLLM may add."""
    offer = Handoff("p", "id")
    offer.answered(parse_params({"kv_transfer_params": GOOD}, "p"))
    assert (
        decode_body({"prompt": "x"}, COMPLETIONS, _lease("d"), offer)["kv_transfer_params"] == GOOD
    )


def test_a_cache_that_is_not_trusted_is_asked_under_another_salt() -> None:
    """The caller's is a part of it, as far as there is room."""
    for said, sent in (({}, "new"), ({"cache_salt": "a"}, "anew"), ({"cache_salt": None}, "new")):
        body = decode_body({"prompt": "x", **said}, COMPLETIONS, _lease("d"), None, salt="new")
        assert body["cache_salt"] == sent
    long = decode_body({"cache_salt": "b" * 1024}, COMPLETIONS, _lease("d"), None, salt="new")
    assert long["cache_salt"] == "b" * 1021 + "new"
    assert decode_body({"cache_salt": "a"}, COMPLETIONS, _lease("d"), None)["cache_salt"] == "a"


@pytest.mark.parametrize(
    "change",
    [{"remote_block_ids": []}, {"remote_block_ids": [[]]}, {"remote_block_ids": None},
     {"remote_engine_id": ""}, {"do_remote_prefill": False}, {"remote_host": None}],
)  # fmt: skip
def test_an_offer_that_could_kill_decode_is_not_sent(change):
    """vLLM asserts on params without blocks, and the assertion ends its core."""
    with pytest.raises(PrefillFailed):
        parse_params({"kv_transfer_params": {**GOOD, **change}}, "p")


def test_a_release_is_a_request_that_no_engine_takes():
    """Refused for its model, and for its suffix should names not be checked."""
    body = release_body(parse_params({"kv_transfer_params": GOOD}, "p"))
    assert body["kv_transfer_params"] == GOOD
    assert "suffix" in body


@pytest.mark.parametrize(
    ("held", "status"),
    [
        (b'data: {"error": {"message": "x", "code": 500}}\n\n', 500),
        (b'data: {"a": 1}\n\ndata: {"error": {"message": "x", "code": 400}}\n\n', 400),
        (b'event: error\ndata: {"type": "error"}\n\n', 500),
        (b'data: {"text": "data: {\\"error\\": {"}\n\n', None),
        (b"data: hello\n\n", None),
    ],
)
def test_an_engines_error_event_is_known_by_its_bytes(held, status):
    """Text that only looks like one is not."""
    assert error_in(held) == status


def test_a_deadline_that_passed_leaves_no_time_for_another_prefill():
    """Everything else is worth another engine while there is one."""
    kinds = {"attempt": 1, "max_attempts": 3, "others": True, "budget": True}
    assert after_prefill_failure("timeout", **kinds) == "decode_alone"
    assert after_prefill_failure("refused", **kinds) == "another_prefill"
    assert after_prefill_failure("refused", **{**kinds, "others": False}) == "decode_alone"
    assert after_prefill_failure("refused", **{**kinds, "attempt": 3}) == "decode_alone"
    assert after_prefill_failure("refused", **{**kinds, "budget": False}) == "decode_alone"


def test_the_same_decode_is_asked_again_only_when_it_may_answer():
    """Not when it refuses, is busy, or let the time pass."""
    kinds = {"attempt": 1, "max_attempts": 3, "others": False, "resting": False, "budget": True}
    for kind in ("error_event", "unreachable"):
        assert after_decode_failure(kind, **kinds) == "same_decode"
        assert after_decode_failure(kind, **{**kinds, "resting": True}) == "same_decode"
    for kind in ("refused", "busy", "timeout"):
        assert after_decode_failure(kind, **kinds) == "give_up"
        # An engine that has just failed is better than an error.
        assert after_decode_failure(kind, **{**kinds, "resting": True}) == "another_decode"
        assert after_decode_failure(kind, **{**kinds, "others": True}) == "another_decode"
    assert after_decode_failure("error_event", **{**kinds, "attempt": 3}) == "give_up"


def test_retries_cannot_storm():
    """The budget empties, and requests fill it slowly."""
    budget = RetryBudget(size=2, per_request=0.5)
    budget.spend()
    budget.spend()
    assert not budget.left
    budget.request()
    budget.request()
    assert budget.left


@pytest.mark.parametrize("unfit", UNFIT, ids=lambda u: u.name)
def test_every_kind_of_unfit_request_has_a_reason(unfit):
    """The list is for people, too."""
    assert len(unfit.reason) > 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "media"),
        ({"messages": [{"role": "user", "content": [{"image_url": "x"}]}]}, "media"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [
            {"type": "image", "source": {}}]}]}]}, "media"),
        ({"input": [{"type": "message", "content": [{"type": "input_image"}]}]}, "media"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 99}]}]}, None),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "function"}]},
                       {"role": "tool", "content": "x" * 99}]}, None),
        ({"input": "x" * 99, "tools": [{"type": "code_interpreter"}]}, "engine_tools"),
        ({"input": "x" * 99, "tools": [{"type": "function"}]}, None),
        ({"prompt": "x" * 99, "n": "2"}, "n"),
        ({"prompt": ["x" * 99]}, None),
        ({"prompt": "x" * 99, "n": 1, "echo": False}, None),
        ({"prompt": list(range(99))}, None),
        ({"prompt": list(range(9))}, "short_prompt"),
        ({"prompt": "é" * 40}, None),
        ({"prompt": "hi there"}, "short_prompt"),
        ({"messages": [{"role": "user", "content": "hi"}]}, "short_prompt"),
        ({"messages": [{"role": "user", "content": "hi"}], "tools": [{"d": "x" * 99}]}, None),
    ],
)  # fmt: skip
def test_the_parsed_request_says_whether_pd_can_do_it(body, reason):
    """Never its text."""
    assert why_decode_alone(body, "auto") == reason


def test_every_route_has_a_reason_and_stands_once():
    """The table is the documentation."""
    assert len({r.path for r in TABLE}) == len(TABLE)
    assert all(r.reason for r in TABLE)


@pytest.mark.parametrize(
    ("path", "root", "prefix", "expected"),
    [
        ("/v1/models", "", "/", "/v1/models"),
        ("/q/v1/models", "", "/q", "/v1/models"),
        ("/q/v1/models", "/q", "/q", "/v1/models"),
        ("/v1/models", "/q", "/q", "/v1/models"),
        ("/outer/q/v1/models", "/outer", "/q", "/v1/models"),
        ("/v1/models", "", "/q", None),
        ("/qx/v1/models", "", "/q", None),
        ("/v1/models", "/v1", "/v1", "/v1/models"),
        ("/models", "/v1", "/v1", "/v1/models"),
        ("/v1/models", "/v1", "/", "/v1/models"),
        ("/models", "/v1", "/", "/v1/models"),
        ("/q/v1/models", "/q", "/", "/v1/models"),
        ("/v1/models", "/q", "/", "/v1/models"),
        ("/v1/health", "", "/v1", "/health"),
        ("/v1/v1/models", "", "/v1", None),
    ],
)
def test_the_path_below_the_prefix(path, root, prefix, expected):
    """Whether or not the server has stripped it."""
    assert local_path(path, root, prefix) == expected


def test_a_refusal_does_not_quote_the_prefill_legs_body():
    """vLLM quotes the body that it refuses; the caller's own words are not in there."""
    from baton.gateway.prefill import without_our_words

    raw = (
        b"{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'missing', 'loc': ('body', "
        b"'messages'), 'msg': 'Field required', 'input': {'model': 'm', 'stream': False, "
        b"'x': {'y': 1}, 'kv_transfer_params': {'do_remote_decode': True, "
        b"'remote_host': None}}}\"}}"
    )
    kept = without_our_words(raw)
    assert b"kv_transfer_params" not in kept
    assert b"stream" not in kept
    assert b"'msg': 'Field required'}" in kept
    assert without_our_words(b"plain") == b"plain"
