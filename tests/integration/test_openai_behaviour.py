"""What OpenAI's own client library sees of two real engines behind the gateway, streamed and not.

Each test is a request that got a wrong answer, or none, from P/D deployments in the field.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from baton.demo.tiny_model import EOS_ID
from tests.integration.gateway_process import running_gateway
from tests.integration.test_gateway_real import metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.real_engines import RealPair

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(600)]

LONG = "one runner hands the baton to the next and the crowd counts the steps. " * 6
ROUTE = "x-baton-route"
HOW = {
    "pd": {"x-baton-disaggregate": "always"},
    "decode_only": {"x-baton-disaggregate": "never"},
}
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
PATHS = pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])


@dataclass
class Told:
    """An answer, joined if it was streamed. `texts` by choice."""

    route: str | None = None
    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usages: list[Any] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)
    """Name and arguments of each tool call."""
    last_has_usage: bool = False

    @property
    def text(self) -> str:
        (text,) = self.texts.values()
        return text

    @property
    def counts(self) -> tuple[int, int]:
        """Tokens of the prompt and of the answer; usage came once."""
        (usage,) = self.usages
        return usage.prompt_tokens, usage.completion_tokens


def tell(
    client: openai.OpenAI,
    *,
    chat: bool,
    stream: bool,
    how: str = "",
    prompt: Any = LONG,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> Told:
    """Ask greedily and without the help of a prefix cache, unless `more` says otherwise."""
    extra: dict[str, Any] = {"cache_salt": uuid.uuid4().hex, **more.pop("extra_body", {})}
    asked: dict[str, Any] = {"model": "tiny", "temperature": 0, **more}
    if "max_completion_tokens" not in asked:
        asked.setdefault("max_tokens", 16)
    if chat:
        asked.setdefault("messages", [{"role": "user", "content": prompt}])
    else:
        asked["prompt"] = prompt
    if stream:
        asked["stream_options"] = {"include_usage": True}
    create = (client.chat.completions if chat else client.completions).with_raw_response.create
    raw: Any = create(
        **asked,
        stream=stream,
        extra_body=extra,
        extra_headers={**HOW.get(how, {}), **(headers or {})},
    )
    told = Told(raw.headers.get(ROUTE))
    parsed = raw.parse()
    for piece in parsed if stream else [parsed]:
        told.last_has_usage = piece.usage is not None and (not stream or not piece.choices)
        if piece.usage is not None:
            told.usages.append(piece.usage)
        _take(told, piece.choices, chat=chat, stream=stream)
    if how:
        assert told.route == how
    return told


def _take(told: Told, choices: Iterable[Any], *, chat: bool, stream: bool) -> None:
    for choice in choices:
        said = (choice.delta if stream else choice.message) if chat else choice
        text = (said.content if chat else said.text) or ""
        told.texts[choice.index] = told.texts.get(choice.index, "") + text
        if choice.finish_reason:
            assert choice.index not in told.reasons
            told.reasons[choice.index] = choice.finish_reason
        for place, call in enumerate((chat and said.tool_calls) or ()):
            at = call.index if stream else place
            name_and_arguments = told.calls.setdefault(at, ["", ""])
            name_and_arguments[0] += call.function.name or ""
            name_and_arguments[1] += call.function.arguments or ""


def eventually_idle(pair: RealPair) -> None:
    """Nothing runs and no KV is held, on both engines, before the lease would have ended."""
    for url in (pair.prefill_url, pair.decode_url):
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            held = metric(url, "vllm:kv_cache_usage_perc")
            if held == 0 and metric(url, "vllm:num_requests_running") == 0:
                break
            time.sleep(0.1)
        assert metric(url, "vllm:kv_cache_usage_perc") == 0, url
        assert metric(url, "vllm:num_requests_running") == 0, url


@WAYS
@PATHS
def test_two_choices_are_both_complete(client: openai.OpenAI, chat: bool, stream: bool) -> None:
    """`n: 2`: each with its index and reason; usage counts the prompt once."""
    one = tell(client, chat=chat, stream=stream)
    two = tell(client, chat=chat, stream=stream, n=2, temperature=0.8)
    assert two.route == "decode_only"
    assert sorted(two.texts) == [0, 1]
    assert all(two.texts.values())
    assert two.reasons == {0: "length", 1: "length"}
    assert two.counts == (one.counts[0], 2 * one.counts[1])


@WAYS
def test_each_of_several_prompts_gets_its_own_answer(client: openai.OpenAI, stream: bool) -> None:
    """`prompt: [...]`: as if each had been asked alone."""
    prompts = ["first runner " * 20, "second lane " * 20, "third bend " * 20]
    together = tell(client, chat=False, stream=stream, prompt=prompts)
    alone = [tell(client, chat=False, stream=stream, prompt=p, how="pd").text for p in prompts]
    assert together.route == "decode_only"
    assert [together.texts[number] for number in range(3)] == alone
    assert len(set(alone)) == 3


@WAYS
def test_echo_is_right_and_the_next_request_unharmed(client: openai.OpenAI, stream: bool) -> None:
    """`echo: true`: the prompt, then the same answer."""
    plain = tell(client, chat=False, stream=stream, how="pd")
    echoed = tell(client, chat=False, stream=stream, echo=True)
    assert echoed.text == LONG + plain.text
    assert tell(client, chat=False, stream=stream, how="pd").text == plain.text


@WAYS
@PATHS
def test_logprobs_are_those_of_decode_alone(
    client: openai.OpenAI, chat: bool, stream: bool
) -> None:
    """Prefill's leg drops them, decode's keeps them, one for each token."""
    wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": 3} if chat else {"logprobs": 3}
    seen = []
    for how, headers in HOW.items():
        messages = {"messages": [{"role": "user", "content": LONG}]} if chat else {"prompt": LONG}
        resource = client.chat.completions if chat else client.completions
        answer: Any = resource.create(
            model="tiny", temperature=0, max_tokens=6, stream=stream, extra_headers=headers,
            extra_body={"cache_salt": uuid.uuid4().hex}, **messages, **wanted,
        )  # fmt: skip
        tokens: list[str] = []
        for piece in answer if stream else [answer]:
            for choice in piece.choices:
                if choice.logprobs is not None:
                    tokens += (
                        [entry.token for entry in choice.logprobs.content or ()]
                        if chat
                        else choice.logprobs.tokens
                    )
        assert len(tokens) == 6, how
        seen.append(tokens)
    assert seen[0] == seen[1]


@PATHS
def test_a_stop_string_over_two_tokens_ends_the_answer(client: openai.OpenAI, chat: bool) -> None:
    """Each character is a token here; none of the string is ever sent, streamed or not."""
    undisturbed = tell(client, chat=chat, stream=False, max_tokens=80, how="pd").text
    at = next(at for at in range(20, 70) if undisturbed.find(undisturbed[at : at + 2]) == at)
    stop = undisturbed[at : at + 2]
    whole, streamed, alone = (
        tell(client, chat=chat, stream=stream, max_tokens=80, stop=[stop, "\n\n!"], how=how)
        for stream, how in ((False, "pd"), (True, "pd"), (True, "decode_only"))
    )
    assert whole.text == streamed.text == alone.text == undisturbed[:at]
    assert whole.reasons == streamed.reasons == alone.reasons == {0: "stop"}
    assert whole.counts == streamed.counts == alone.counts


@PATHS
def test_usage_comes_once_and_last(client: openai.OpenAI, chat: bool) -> None:
    """`include_usage`: in a chunk without choices, with the counts of the plain answer."""
    streamed = tell(client, chat=chat, stream=True, how="pd")
    assert streamed.last_has_usage
    assert streamed.counts == tell(client, chat=chat, stream=False, how="pd").counts


@WAYS
def test_max_completion_tokens_is_honoured(client: openai.OpenAI, stream: bool) -> None:
    """Prefill's leg asks for one token, and the caller gets four."""
    told = tell(client, chat=True, stream=stream, max_completion_tokens=4, how="pd")
    assert told.counts[1] == 4
    assert told.reasons == {0: "length"}


@WAYS
@PATHS
@pytest.mark.parametrize(
    ("changes", "kind", "code"),
    [
        ({"model": "nobody"}, openai.NotFoundError, None),
        ({"prompt": "word " * 3000}, openai.BadRequestError, "context_length_exceeded"),
        ({"max_tokens": -1}, openai.BadRequestError, None),
        ({"temperature": 9}, openai.BadRequestError, None),
        (
            {"extra_body": {"kv_transfer_params": {"remote_host": "h"}}},
            openai.BadRequestError,
            None,
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "nonsense"}},
                }
            },
            openai.BadRequestError,
            None,
        ),
    ],
    ids=["model", "too-long", "max-tokens", "temperature", "kv-params", "schema"],
)
def test_a_callers_mistake_is_an_error_that_the_client_raises(  # noqa: PLR0917
    client: openai.OpenAI,
    real_pair: RealPair,
    chat: bool,
    stream: bool,
    changes: dict[str, Any],
    kind: type[openai.APIStatusError],
    code: str | None,
) -> None:
    """With all four fields, before anything is prefilled, and the next request is unharmed."""
    if "response_format" in changes and not chat:
        changes = {"extra_body": changes}
    before = metric(real_pair.prefill_url, "vllm:prompt_tokens_total")
    with pytest.raises(kind) as raised:
        tell(client, chat=chat, stream=stream, headers=HOW["pd"], **changes)
    error = raised.value.body
    assert isinstance(error, dict)
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["message"]
    if code is not None:
        assert error["code"] == code
        assert metric(real_pair.prefill_url, "vllm:prompt_tokens_total") == before
    assert tell(client, chat=chat, stream=stream, how="pd").reasons == {0: "length"}


@WAYS
def test_the_same_request_id_twice_at_once_never_crosses(
    client: openai.OpenAI, stream: bool
) -> None:
    """vLLM builds its own ids from the header."""
    prompts = ["the first lane " * 20, "the second lane " * 20]
    alone = [tell(client, chat=False, stream=stream, prompt=p).text for p in prompts]
    got: dict[int, str] = {}

    def ask(number: int) -> None:
        headers = {"X-Request-Id": "the-same"}
        got[number] = tell(
            client, chat=False, stream=stream, prompt=prompts[number % 2], how="pd", headers=headers
        ).text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[number] for number in range(8)] == alone * 4


NONSENSE = {
    "no JSON": (b"{", {400}),
    "50 MB": (b'{"model": "tiny", "prompt": "' + b"x" * 50_000_000 + b'"}', {413}),
    "deep": (b'{"model": "tiny", "prompt": ' + b"[" * 90_000 + b"]" * 90_000 + b"}", {400}),
    "NaN": (b'{"model": "tiny", "prompt": "a", "temperature": NaN}', {400}),
    "lone surrogate": (b'{"model": "tiny", "prompt": "\\ud800", "max_tokens": 1}', {200, 400}),
    "bytes": (b'{"model": "tiny", "prompt": "\xff\xfe"}', {400}),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_and_a_stream_beside_it_goes_on(
    client: openai.OpenAI, gateway: str, name: str
) -> None:
    """400 or 413, in OpenAI's shape, while another answer is being streamed."""
    body, statuses = NONSENSE[name]
    undisturbed = tell(client, chat=False, stream=False, max_tokens=60, how="pd")
    beside: list[Told] = []
    thread = threading.Thread(
        target=lambda: beside.append(tell(client, chat=False, stream=True, max_tokens=60, how="pd"))
    )
    thread.start()
    answer = httpx.post(
        f"{gateway}/v1/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=60,
    )
    thread.join()
    assert answer.status_code in statuses, answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    assert beside[0].text == undisturbed.text


@PATHS
def test_a_caller_who_goes_away_leaves_nothing_behind(
    client: openai.OpenAI, real_pair: RealPair, chat: bool
) -> None:
    """Before prefill ends, between prefill and decode, at the third token, and not streamed."""
    for patience_s in (0.005, 0.02, 0.05, 0.1, 0.2):
        impatient = client.with_options(timeout=patience_s)
        for stream in (False, True):
            with contextlib.suppress(openai.APITimeoutError, httpx.TimeoutException):
                tell(impatient, chat=chat, stream=stream, max_tokens=600, prompt=LONG * 3, how="pd")
    create: Any = (client.chat.completions if chat else client.completions).create
    prompt = {"messages": [{"role": "user", "content": LONG}]} if chat else {"prompt": LONG}
    with create(
        model="tiny", max_tokens=900, stream=True, extra_headers=HOW["pd"], **prompt
    ) as answer:
        for number, _ in enumerate(answer):
            if number == 2:
                break
    eventually_idle(real_pair)


@WAYS
def test_a_prompt_that_is_short_or_known_costs_no_handoff_for_nothing(
    client: openai.OpenAI, real_pair: RealPair, stream: bool
) -> None:
    """Four tokens; and a prompt that decode's prefix cache holds already."""
    assert tell(client, chat=False, stream=stream, prompt="walk").route == "decode_only"
    salt = {"cache_salt": uuid.uuid4().hex}
    texts = [
        tell(client, chat=False, stream=stream, prompt=LONG * 2, extra_body=salt, how="pd").text
        for _ in range(3)
    ]
    assert len(set(texts)) == 1
    eventually_idle(real_pair)


@WAYS
def test_a_conversation_that_grows_is_answered_as_without_pd(
    client: openai.OpenAI, stream: bool
) -> None:
    """The same long prompt with longer and longer tails, each partly known to both engines."""
    salt = {"cache_salt": uuid.uuid4().hex}
    for turns in range(1, 5):
        prompt = LONG * 2 + "and then another lap. " * turns * 4
        grown = tell(client, chat=False, stream=stream, prompt=prompt, extra_body=salt, how="pd")
        fresh = tell(client, chat=False, stream=stream, prompt=prompt, how="decode_only")
        assert (grown.text, grown.counts) == (fresh.text, fresh.counts)


TOOL = {
    "type": "function",
    "function": {
        "name": "hand_over",
        "parameters": {
            "type": "object",
            "properties": {
                "lane": {"type": "integer", "enum": [3, 5]},
                "fast": {"type": "boolean"},
            },
            "required": ["lane", "fast"],
            "additionalProperties": False,
        },
    },
}


@WAYS
def test_a_tool_call_that_is_required_has_whole_arguments(
    client: openai.OpenAI, stream: bool
) -> None:
    """Joined they are JSON of the asked shape. Left to itself, the tiny model never ends."""
    bias = {**{str(ord(sign)): -100 for sign in " \t\r\n"}, str(EOS_ID): 100}
    told = tell(
        client, chat=True, stream=stream, tools=[TOOL], tool_choice="required",
        max_tokens=300, headers=HOW["pd"], logit_bias=bias,
    )  # fmt: skip
    assert told.calls
    for name, arguments in told.calls.values():
        assert name == "hand_over"
        assert json.loads(arguments)["lane"] in (3, 5)
    assert told.reasons == {0: "tool_calls"}


@WAYS
def test_responses_are_disaggregated_and_found_again(client: openai.OpenAI, stream: bool) -> None:
    """`/v1/responses`, with its own events when it is streamed."""
    with client.responses.with_streaming_response.create(
        model="tiny", input=LONG, max_output_tokens=8, temperature=0, stream=stream,
        extra_headers=HOW["pd"],
    ) as raw:  # fmt: skip
        assert raw.headers[ROUTE] == "pd"
        if stream:
            kinds = [event.type for event in raw.parse()]
            assert kinds[0] == "response.created"
            assert kinds[-1] in ("response.completed", "response.incomplete")
        else:
            assert raw.parse().usage.output_tokens == 8


def test_what_generates_nothing_is_served_by_decode(client: openai.OpenAI, gateway: str) -> None:
    """One model by its name, token ids, and a plain answer where the model cannot do it."""
    assert client.models.retrieve("tiny").id == "tiny"
    assert [model.id for model in client.models.list()] == ["tiny"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")
    answer = httpx.post(f"{gateway}/tokenize", json={"model": "tiny", "prompt": "walk"}, timeout=30)
    assert answer.json()["tokens"] == list(b"walk")
    with pytest.raises(openai.APIStatusError) as raised:
        client.embeddings.create(model="tiny", input="walk")
    assert raised.value.status_code in (400, 404, 501)
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["message"]


def test_beyond_what_is_let_in_the_client_gets_429_at_once(
    real_pair: RealPair, tmp_path: Path
) -> None:
    """100 streams at once, 10 at a time and 10 that wait: 20 are served and none hangs."""
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "baton:\n  admission: {max_inflight: 10, max_queue: 10, queue_timeout_s: 200}\n",
        encoding="utf-8",
    )
    engines = [real_pair.prefill_url], [real_pair.decode_url]
    with running_gateway(*engines, tmp_path / "gateway.log", config) as url:
        ends = asyncio.run(_hundred(f"{url}/v1"))
    refused = [end for end in ends if isinstance(end, openai.RateLimitError)]
    assert len(refused) == 80
    assert all(int(end.response.headers["retry-after"]) > 0 for end in refused)
    assert sorted(end for end in ends if not isinstance(end, Exception)) == [400] * 20


async def _hundred(base_url: str) -> list[Any]:
    async with openai.AsyncOpenAI(
        base_url=base_url,
        api_key="none",
        max_retries=0,
        timeout=300,
        http_client=httpx.AsyncClient(limits=httpx.Limits(max_connections=None)),
    ) as client:

        async def one(number: int) -> int:
            stream = await client.completions.create(
                model="tiny",
                prompt=f"{number} {LONG}",
                max_tokens=400,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            usages = [chunk.usage async for chunk in stream if chunk.usage is not None]
            return usages[-1].completion_tokens

        return await asyncio.gather(*(one(n) for n in range(100)), return_exceptions=True)
