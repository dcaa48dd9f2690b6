"""What an answer says of the prompt's cache is what prefill had cached, whichever way it went.

Simulated engines count as vLLM does: decode calls everything cached that it was handed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton.gateway.prompt_usage import PromptUsage
from baton.spec.schema import Recovery
from tests.unit.gateway.test_first_token import twins
from tests.unit.gateway.test_resume import CHAT, GREEDY, PROMPT, pair

BLOCK = 16
USAGE = {"stream_options": {"include_usage": True}}
PATHS = {"/v1/completions": {"prompt": PROMPT}, "/v1/chat/completions": CHAT}
ALWAYS = {"x-baton-disaggregate": "always"}


async def ask(pair: Any, url: str, path: str, *, stream: bool, **headers: str) -> dict[str, Any]:
    """The usage of an answer."""
    body = {**GREEDY, **PATHS[path], **({"stream": True, **USAGE} if stream else {})}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with pair.session.post(url + path, json=body, headers={**ALWAYS, **names}) as answer:
        raw = await answer.read()
    if not stream:
        return json.loads(raw)["usage"]
    (usage,) = [
        json.loads(event[6:])["usage"]
        for event in raw.split(b"\n\n")
        if event.startswith(b'data: {"') and b'"usage":{' in event
    ]
    return usage


def cached(usage: dict[str, Any]) -> int | None:
    return (usage["prompt_tokens_details"] or {})["cached_tokens"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", PATHS)
async def test_nothing_was_cached_of_a_new_prompt_and_whole_blocks_of_an_old_one(path, stream):
    """The same figures as one engine gives that does both."""
    async with (
        pair(1, prompt_tokens_details=True, block_size=BLOCK) as p,
        pair(1, prompt_tokens_details=True, block_size=BLOCK) as other,
    ):
        told = [await ask(p, p.url, path, stream=stream) for _ in range(2)]
        plain = [await ask(p, other.prefill.url, path, stream=stream) for _ in range(2)]
        assert told == plain
        assert [cached(usage) for usage in told] == [0, told[0]["prompt_tokens"] // BLOCK * BLOCK]
        timelines = p.app.timelines.as_list()
        assert [one["route"] for one in timelines[-2:]] == ["pd", "pd"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_first_token_from_prefill_changes_nothing(path):
    """Decode is asked for the rest, by token ids, and would call all of it cached."""
    async with twins(prompt_tokens_details=True) as t:
        for number in range(2):
            usages = [await ask(t, t.urls[how], path, stream=True) for how in ("early", "ordinary")]
            assert t.went() == "early: from_prefill"
            known = usages[0]["prompt_tokens"] // BLOCK * BLOCK
            assert cached(usages[0]) == (known if number else 0)
            assert cached(usages[1]) == known, "the first of the two has put it there"
            assert usages[0].keys() == usages[1].keys()


@pytest.mark.parametrize("path", PATHS)
async def test_an_answer_of_one_token_from_prefill_says_it_too(path):
    """Nobody asks decode then: the gateway writes the usage itself."""
    one = {**GREEDY, **PATHS[path], **USAGE, "max_tokens": 1}
    async with twins(prompt_tokens_details=True) as t:
        told = [
            (await t.told(how, path, one)).usage or {} for how in ("ordinary", "early", "ordinary")
        ]
        assert t.went() == "early: complete"
        assert [cached(usage or {}) for usage in told] == [
            0,
            *[told[0]["prompt_tokens"] // BLOCK * BLOCK] * 2,
        ]
        assert told[1] == told[2]


@pytest.mark.parametrize("body", [{}, {"temperature": 0.5}, {"logprobs": 1}], ids=str)
async def test_a_resumed_stream_says_what_its_first_engine_would_have_said(body):
    """Continued by token ids, or repeated: another prefill finds the prompt in its cache."""
    async with pair(3, prompt_tokens_details=True, block_size=BLOCK) as p:
        for at in (1, 20):
            prompt = {**GREEDY, "prompt": f"{at} {PROMPT}", **USAGE, **body}
            p.break_decode(f"drop_at={at}")
            told = await p.told("/v1/completions", prompt, x_baton_disaggregate="always")
            assert told.error is None
            assert cached(told.usage or {}) == 0
            p.app.directory.breakers.keep(())
        assert len(p.resumes()) >= 2


async def test_a_stream_that_only_lacked_its_usage_says_it_as_well():
    """All was said but the usage: the gateway writes it."""
    async with pair(2, prompt_tokens_details=True, block_size=BLOCK) as p:
        p.break_decode(f"drop_at={GREEDY['max_tokens']}")
        body = {**GREEDY, "prompt": PROMPT, **USAGE}
        told = await p.told("/v1/completions", body, x_baton_disaggregate="always")
        assert p.resumes() == ["finish"]
        assert cached(told.usage or {}) == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_decode_alone_speaks_for_itself(stream):
    """What it has read itself it counts right."""
    async with pair(1, prompt_tokens_details=True, block_size=BLOCK) as p:
        usages = [
            await ask(p, p.url, "/v1/completions", stream=stream, x_baton_disaggregate="never")
            for _ in range(2)
        ]
        assert [cached(usage) for usage in usages] == [
            0,
            usages[0]["prompt_tokens"] // BLOCK * BLOCK,
        ]


async def test_streams_without_a_transcript_are_put_right_as_well():
    """`resume_streams: false`: each chunk passes through one search."""
    recovery = Recovery(resume_streams=False)
    async with pair(1, recovery=recovery, prompt_tokens_details=True) as p:
        assert cached(await ask(p, p.url, "/v1/chat/completions", stream=True)) == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_what_prefill_does_not_tell_is_not_told(stream):
    """Decode runs with the argument, prefill without: null, or no key in a stream."""
    async with pair(1, prompt_tokens_details=True) as p:
        p.prefill.core._prefixes = None
        usage = await ask(p, p.url, "/v1/completions", stream=stream)
        assert usage.get("prompt_tokens_details") is None
        assert ("prompt_tokens_details" in usage) is not stream


# -- bytes ---------------------------------------------------------------------------------------


def put(dialect: Any, said: dict[str, Any], answer: bytes, *, streamed: bool = False) -> bytes:
    return PromptUsage.of({"usage": said}, dialect).put_into(answer, streamed=streamed)


def test_only_the_figure_changes_and_every_other_byte_stays():
    """Spaces inside texts, escaped keys, numbers as they were written."""
    answer = (
        b'{"choices":[{"text":"\\",\\"prompt_tokens_details\\":{\\"cached_tokens\\":1}",'
        b'"logprob":-1e-05}],"usage":{"prompt_tokens":9,"total_tokens":10,"completion_tokens":1,'
        b'"prompt_tokens_details":{"cached_tokens":9,"created_cache_tokens":null},'
        b'"completion_tokens_details":null}}'
    )
    said = {"prompt_tokens_details": {"cached_tokens": 4, "created_cache_tokens": None}}
    assert put("openai", said, answer) == answer.replace(b'"cached_tokens":9', b'"cached_tokens":4')


def test_a_tool_whose_schema_has_the_same_key_stays_as_the_caller_wrote_it():
    """`/v1/responses` repeats the request's tools; its usage comes last."""
    tools = b'"tools":[{"parameters":{"input_tokens_details":{"cached_tokens":5}}}]'
    answer = b"{" + tools + b',"usage":{"input_tokens":7,"input_tokens_details":{%b}}}'
    theirs, ours = b'"cached_tokens":7,"cached_tokens_per_turn":[7]', b'"cached_tokens":0'
    said = {"input_tokens_details": {"cached_tokens": 0}}
    assert put("responses", said, answer % theirs) == answer % ours


def test_messages_count_what_is_cached_apart_from_what_is_not():
    """Anthropic's input_tokens are those that no cache had; the answer's own count stays."""
    event = b'event: message_delta\ndata: {"type":"message_delta","usage":{%b}}\n\n'
    theirs = b'"input_tokens":0,"output_tokens":12,"cache_read_input_tokens":90'
    said = {"input_tokens": 26, "output_tokens": 1, "cache_read_input_tokens": 64}
    ours = b'"input_tokens":26,"output_tokens":12,"cache_read_input_tokens":64'
    assert put("anthropic", said, event % theirs, streamed=True) == event % ours
    start = b'data: {"message":{"usage":{"input_tokens":90,"output_tokens":0}}}\n\n'
    assert put("anthropic", said, start, streamed=True) == start
    untold = {"input_tokens": 90, "output_tokens": 1}
    ours = b'"input_tokens":90,"output_tokens":12'
    assert put("anthropic", untold, event % theirs, streamed=True) == event % ours


@pytest.mark.parametrize("said", [None, [], "x", {"prompt_tokens_details": 3}, {}], ids=str)
def test_a_usage_that_is_none_tells_nothing(said):
    """Prefill's answer is not trusted to be what it should."""
    answer = b'{"usage":{"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":9}}}'
    told = PromptUsage.of({"usage": said}, "openai").put_into(answer, streamed=False)
    assert json.loads(told)["usage"]["prompt_tokens_details"] is None
