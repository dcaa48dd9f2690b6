"""What engines refuse: status, kind, parameter."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract import shapes
from tests.contract.conftest import MESSAGES
from tests.real_engines import MAX_MODEL_LEN, MODEL_ID

COMPLETION: dict[str, Any] = {"model": MODEL_ID, "prompt": "Say", "max_tokens": 1}
CHAT: dict[str, Any] = {"model": MODEL_ID, "messages": MESSAGES, "max_tokens": 1}

# What is wrong, the body, and the error's type, param and code.
CASES: dict[str, tuple[dict[str, Any], str, str | None, int]] = {
    "unknown model": ({**COMPLETION, "model": "nope"}, "NotFoundError", "model", 404),
    "unknown model, chat": ({**CHAT, "model": "nope"}, "NotFoundError", "model", 404),
    "too long": (
        {**COMPLETION, "prompt": "x" * (MAX_MODEL_LEN + 1)},
        "BadRequestError",
        "input_tokens",
        400,
    ),
    "too long with its answer": (
        {**COMPLETION, "prompt": "x" * 2000, "max_tokens": 100},
        "BadRequestError",
        "input_tokens",
        400,
    ),
    "n is 0": ({**CHAT, "n": 0}, "BadRequestError", None, 400),
    "n is -1": ({**COMPLETION, "n": -1}, "BadRequestError", None, 400),
    "n is a word": ({**CHAT, "n": "x"}, "Bad Request", "body.n", 400),
    "n and greedy": ({**CHAT, "n": 2, "temperature": 0}, "BadRequestError", None, 400),
    "max_tokens is 0": ({**CHAT, "max_tokens": 0}, "BadRequestError", "max_tokens", 400),
    "max_tokens is -1": ({**COMPLETION, "max_tokens": -1}, "BadRequestError", "max_tokens", 400),
    "max_tokens is a word": (
        {**COMPLETION, "max_tokens": "many"},
        "Bad Request",
        "body.max_tokens",
        400,
    ),
    "max_tokens has a fraction": (
        {**COMPLETION, "max_tokens": 1.5},
        "Bad Request",
        "body.max_tokens",
        400,
    ),
    "temperature below 0": ({**CHAT, "temperature": -1}, "BadRequestError", "temperature", 400),
    "temperature is a word": (
        {**CHAT, "temperature": "hot"},
        "Bad Request",
        "body.temperature",
        400,
    ),
    "top_p above 1": ({**CHAT, "top_p": 2}, "BadRequestError", "top_p", 400),
    "min_tokens above max_tokens": ({**COMPLETION, "min_tokens": 5}, "BadRequestError", None, 400),
    "messages are null": ({"model": MODEL_ID, "messages": None}, "BadRequestError", None, 400),
    "empty messages": ({**CHAT, "messages": []}, "BadRequestError", None, 400),
    "messages are a text": ({**CHAT, "messages": "hi"}, "Bad Request", "body.messages", 400),
    "no prompt": ({"model": MODEL_ID}, "BadRequestError", "prompt", 400),
    "empty prompt": ({**COMPLETION, "prompt": ""}, "BadRequestError", "prompt", 400),
    "no prompts": ({**COMPLETION, "prompt": []}, "BadRequestError", None, 400),
    "prompt is a number": ({**COMPLETION, "prompt": 5}, "Bad Request", "body.prompt", 400),
    "token out of vocabulary": ({**COMPLETION, "prompt": [600]}, "BadRequestError", None, 400),
    "empty stop": ({**COMPLETION, "stop": ""}, "BadRequestError", None, 400),
    "too many stops": ({**COMPLETION, "stop": ["a"] * 5}, "Bad Request", "body.stop", 400),
    "stream_options without stream": (
        {**COMPLETION, "stream_options": {"include_usage": True}},
        "BadRequestError",
        "stream_options",
        400,
    ),
    "suffix": ({**COMPLETION, "suffix": "x"}, "BadRequestError", None, 400),
    "too many logprobs": ({**COMPLETION, "logprobs": 100}, "BadRequestError", "logprobs", 400),
    "empty tools": ({**CHAT, "tools": []}, "BadRequestError", "tools", 400),
    "kv_transfer_params is a number": (
        {**COMPLETION, "kv_transfer_params": 5},
        "Bad Request",
        "body.kv_transfer_params",
        400,
    ),
}


# Refused at the engine's door: a stream has been answered with 200 by then.
LATE = {"token out of vocabulary", "too many logprobs"}


def _path(body: dict[str, Any]) -> str:
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def _expected(case: str) -> dict[str, Any]:
    _, kind, param, code = CASES[case]
    return {"type": kind, "param": param, "code": code}


def _seen(error: dict[str, Any]) -> dict[str, Any]:
    assert error.keys() == shapes.ERROR
    return {key: value for key, value in error.items() if key != "message"}


@pytest.mark.parametrize("case", CASES)
async def test_a_wrong_request_is_refused_as_vllm_refuses_it(pair, case):
    """The same status, type, parameter and code."""
    body = CASES[case][0]
    answer = await pair.post(_path(body), body)
    assert _seen(answer.json()["error"]) == _expected(case)
    assert answer.status_code == CASES[case][3]


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"stream_options without stream"}))
async def test_a_wrong_stream_is_refused_before_it_begins_or_in_its_first_event(pair, case):
    """Most are no streams at all; what the engine's own door refuses stands inside a 200."""
    body = {**CASES[case][0], "stream": True}
    answer = await pair.post(_path(body), body)
    if case in LATE:
        assert answer.status_code == 200
        event, done, _ = answer.text.split("\n\n")
        assert done == "data: [DONE]"
        error = json.loads(event.removeprefix("data: "))["error"]
    else:
        assert answer.status_code == CASES[case][3]
        error = answer.json()["error"]
    assert _seen(error) == _expected(case)


async def test_a_chat_without_messages_is_a_400(pair):
    """A field that is missing is named."""
    error = (await pair.post("/v1/chat/completions", {"model": MODEL_ID})).json()["error"]
    assert _seen(error) == {"type": "Bad Request", "param": "body.messages", "code": 400}


# What stands in the body, and the param that is named. The content type is JSON's.
BODIES = {
    '{"model": "tiny", ': "body.18",
    "": "body",
    "[1]": "body",
    '"x"': "body",
}


@pytest.mark.parametrize("content", BODIES)
async def test_a_body_that_is_no_json_object_is_a_400(pair, content):
    """Nothing that a caller sends is a 500."""
    answer = await pair.http.post(
        f"{pair.decode_url}/v1/completions",
        content=content,
        headers={"content-type": "application/json"},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (400, "Bad Request", 400)
    assert error["param"] == BODIES[content]


async def test_another_content_type_is_a_400(pair):
    """vLLM wants JSON to be called so."""
    answer = await pair.http.post(
        f"{pair.decode_url}/v1/completions",
        content=json.dumps(COMPLETION),
        headers={"content-type": "text/plain"},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "Bad Request", None)


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ('{"prompt": "\\ud800", "max_tokens": 1}', None),
        ('{"prompt": "x", "max_tokens": 1, "temperature": NaN}', "temperature"),
    ],
    ids=["half a surrogate pair", "NaN"],
)
async def test_json_that_python_takes_and_nobody_should_send(pair, content, param):
    """Still a 400, and not of a type check."""
    answer = await pair.http.post(
        f"{pair.decode_url}/v1/completions",
        content=content,
        headers={"content-type": "application/json"},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "BadRequestError", param)


@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
async def test_wrong_methods_and_paths_get_fastapis_answer(pair, method):
    """Not the OpenAI shape: gateways must not count on it."""
    known = await pair.http.request(method, f"{pair.decode_url}/v1/completions")
    assert (known.status_code, known.json()) == (405, {"detail": "Method Not Allowed"})
    unknown = await pair.http.request(method, f"{pair.decode_url}/nope")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})


async def test_unknown_fields_are_ignored(pair):
    """As OpenAI-compatible clients expect."""
    assert (await pair.post("/v1/completions", {**COMPLETION, "frobnicate": 1})).status_code == 200
