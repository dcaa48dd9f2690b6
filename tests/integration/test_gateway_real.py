"""The gateway before two real vLLM engines, without Ray, asked as clients ask."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    import openai

    from tests.real_engines import RealPair

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

LONG = "one runner hands the baton to the next and the crowd counts the steps. " * 12
NEVER = {"x-baton-disaggregate": "never"}
ALWAYS = {"x-baton-disaggregate": "always", "x-baton-timing": "1"}


def complete(gateway: str, headers: dict[str, str], **changes: Any) -> httpx.Response:
    body = {
        "model": "tiny", "prompt": LONG, "max_tokens": 24, "temperature": 0,
        "cache_salt": uuid.uuid4().hex, **changes,
    }  # fmt: skip
    return httpx.post(f"{gateway}/v1/completions", json=body, headers=headers, timeout=120)


def metric(url: str, name: str) -> float:
    total = 0.0
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        if line.startswith(name) and not line.startswith("#"):
            total += float(line.rsplit(" ", 1)[1])
    return total


def test_the_text_with_a_handoff_equals_the_text_without(gateway: str) -> None:
    """Greedy, and salted, so that no prefix cache can answer for the handoff."""
    handed = complete(gateway, ALWAYS)
    alone = complete(gateway, NEVER)
    assert handed.headers["x-baton-route"] == "pd"
    assert alone.headers["x-baton-route"] == "decode_only"
    assert handed.json()["choices"][0]["text"] == alone.json()["choices"][0]["text"]
    assert handed.json()["usage"] == alone.json()["usage"]


def test_kv_really_crosses_and_prefill_really_works(gateway: str, real_pair: RealPair) -> None:
    """Decode's own counter of NIXL bytes grows, and prefill's of prompt tokens."""
    name = "vllm:nixl_bytes_transferred_sum"
    before = metric(real_pair.decode_url, name)
    prompts = metric(real_pair.prefill_url, "vllm:prompt_tokens_total")
    assert complete(gateway, ALWAYS).status_code == 200
    assert metric(real_pair.prefill_url, "vllm:prompt_tokens_total") > prompts
    deadline_s = time.monotonic() + 30
    while metric(real_pair.decode_url, name) <= before and time.monotonic() < deadline_s:
        time.sleep(0.5)  # vLLM logs these stats every few seconds of work
        complete(gateway, NEVER, max_tokens=1)
    assert metric(real_pair.decode_url, name) > before


def test_the_stages_of_a_streamed_request_add_up(gateway: str) -> None:
    """Each stage is there, none is longer than the whole, and their sum is not either."""
    body = {"model": "tiny", "prompt": LONG, "max_tokens": 8, "stream": True, "temperature": 0}
    with httpx.stream(
        "POST", f"{gateway}/v1/completions", json=body, headers=ALWAYS, timeout=120
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    comment = next(line for line in lines if line.startswith(": baton-timing "))
    timeline = json.loads(comment.removeprefix(": baton-timing "))
    stages = timeline["stages"]
    assert set(stages) == {
        "admit_s", "route_s", "prefill_s", "handoff_s", "first_token_s", "decode_s",
    }  # fmt: skip
    assert stages.pop("first_token_s") <= stages["decode_s"]  # of which it is a part
    assert sum(stages.values()) <= timeline["total_s"] * 1.001
    assert timeline["ttft_s"] <= timeline["total_s"]


def test_the_openai_client_streams_a_chat(client: openai.OpenAI) -> None:
    """Role, deltas, finish reason, usage once; joined it is what a plain answer says."""
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": LONG}],
        "max_tokens": 12,
        "temperature": 0,
    }
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    text, usages, reasons = "", [], []
    for chunk in stream:
        if chunk.usage is not None:
            usages.append(chunk.usage)
        for choice in chunk.choices:
            text += choice.delta.content or ""
            if choice.finish_reason:
                reasons.append(choice.finish_reason)
    plain = client.chat.completions.create(**asked)
    assert text == plain.choices[0].message.content
    assert reasons == ["length"]
    assert len(usages) == 1
    assert plain.usage is not None
    assert usages[0].completion_tokens == plain.usage.completion_tokens == 12


@pytest.mark.parametrize(
    ("changes", "choices"),
    [
        ({"n": 2, "temperature": 0.8}, 2),
        ({"prompt": ["first " * 60, "second " * 60]}, 2),
        ({"echo": True}, 1),
    ],
    ids=["n", "several-prompts", "echo"],
)
def test_what_pd_cannot_do_right_is_done_by_decode_alone(
    gateway: str, changes: dict[str, Any], choices: int
) -> None:
    """The answer is right, and says which way it went."""
    answer = complete(gateway, {}, **changes)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-baton-route"] == "decode_only"
    assert [one["index"] for one in answer.json()["choices"]] == list(range(choices))


def test_logprobs_go_through_pd_and_equal_those_of_decode_alone(gateway: str) -> None:
    """Prefill's leg drops them, decode's keeps them."""
    handed = complete(gateway, ALWAYS, logprobs=3, max_tokens=4)
    alone = complete(gateway, NEVER, logprobs=3, max_tokens=4)
    assert handed.headers["x-baton-route"] == "pd"
    tokens = [one.json()["choices"][0]["logprobs"]["tokens"] for one in (handed, alone)]
    assert tokens[0] == tokens[1]
    assert len(tokens[0]) == 4


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_responses_and_messages_are_served(gateway: str, path: str) -> None:
    """vLLM's other generating routes answer in their own shape."""
    body: dict[str, Any] = {"model": "tiny", "temperature": 0}
    if path == "/v1/responses":
        body |= {"input": LONG, "max_output_tokens": 8}
    else:
        body |= {"messages": [{"role": "user", "content": LONG}], "max_tokens": 8}
    answer = httpx.post(f"{gateway}{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.json()["output" if path == "/v1/responses" else "content"]


def test_client_errors_keep_their_status_and_the_next_request_is_unharmed(gateway: str) -> None:
    """Unknown model, too long a prompt, a bad schema, KV parameters from outside."""
    asked = [
        (complete(gateway, {}, model="nobody"), 404),
        (complete(gateway, {}, prompt="word " * 3000), 400),
        (complete(gateway, {}, kv_transfer_params={"remote_host": "198.51.100.7"}), 400),
        (complete(gateway, {}, max_tokens=-1), 400),
    ]
    for answer, status in asked:
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    assert complete(gateway, ALWAYS).status_code == 200


def _hang_up(gateway: str, moment_s: float) -> None:
    body = {"model": "tiny", "prompt": LONG * 2, "max_tokens": 1200, "stream": True}
    deadline_s = time.monotonic() + moment_s
    patience = httpx.Timeout(60, read=moment_s)
    with (
        contextlib.suppress(httpx.TimeoutException),
        httpx.stream(
            "POST", f"{gateway}/v1/completions", json=body, headers=ALWAYS, timeout=patience
        ) as answer,
    ):
        for _ in answer.iter_raw():
            if time.monotonic() > deadline_s:
                return


def test_a_caller_who_hangs_up_frees_kv_on_both_engines(gateway: str, real_pair: RealPair) -> None:
    """At four moments of a long answer; afterwards both KV caches are empty again."""
    for moment_s in (0.01, 0.1, 0.4, 1.0):
        _hang_up(gateway, moment_s)
    for url in (real_pair.prefill_url, real_pair.decode_url):
        deadline_s = time.monotonic() + 20
        while metric(url, "vllm:kv_cache_usage_perc") > 0 and time.monotonic() < deadline_s:
            time.sleep(0.2)
        assert metric(url, "vllm:kv_cache_usage_perc") == 0, url
        assert metric(url, "vllm:num_requests_running") == 0, url


def test_routes_that_must_never_be_open_are_unknown(gateway: str) -> None:
    """Loading, scaling, sleeping, raw token interfaces: not from outside."""
    for path in (
        "/v1/load_lora_adapter", "/scale_elastic_ep", "/sleep", "/invocations",
        "/inference/v1/generate", "/start_profile", "/collective_rpc", "/reset_prefix_cache",
    ):  # fmt: skip
        answer = httpx.post(f"{gateway}{path}", json={}, timeout=30)
        assert answer.status_code == 404, path
        assert answer.json()["error"]["code"] == "unknown_url"
