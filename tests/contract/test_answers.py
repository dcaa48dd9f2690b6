"""What engines answer: keys, texts, numbers."""

from __future__ import annotations

import pytest

from tests.contract import shapes
from tests.contract.conftest import MESSAGES, PROMPT
from tests.real_engines import MAX_MODEL_LEN, MODEL_ID

CHAT_TOKENS = len("user: Say something, please.\nassistant:")


async def test_a_completion_has_vllms_keys_and_numbers(pair):
    """Usage, reasons and places of everything."""
    answer = await pair.complete()
    assert answer.keys() == shapes.COMPLETION
    (choice,) = answer["choices"]
    assert choice.keys() == shapes.COMPLETION_CHOICE
    assert answer["usage"].keys() == shapes.USAGE
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["total_tokens"] == len(PROMPT) + 8
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", None)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == MODEL_ID
    assert answer["system_fingerprint"].startswith("vllm-0.29.0-")


async def test_a_chat_completion_has_vllms_keys_and_numbers(pair):
    """The same for chat, and the template that the prompt went through."""
    answer = await pair.chat()
    assert answer.keys() == shapes.CHAT
    (choice,) = answer["choices"]
    assert choice.keys() == shapes.CHAT_CHOICE
    assert choice["message"].keys() == shapes.CHAT_MESSAGE
    assert choice["message"]["role"] == "assistant"
    assert answer["usage"]["prompt_tokens"] == CHAT_TOKENS
    assert answer["id"].startswith("chatcmpl-")


async def test_the_request_id_header_names_the_answer(pair):
    """How gateways keep the legs apart."""
    body = {"model": MODEL_ID, "prompt": "x", "max_tokens": 1}
    answer = await pair.post("/v1/completions", body, headers={"X-Request-Id": "r1-decode"})
    assert answer.json()["id"] == "cmpl-r1-decode"


@pytest.mark.parametrize("usage", [False, True])
async def test_a_completion_stream_has_vllms_chunks(pair, usage):
    """Chunk by chunk, to the last with its fingerprint or the one with the usage."""
    more = {"stream_options": {"include_usage": True}} if usage else {}
    *chunks, done = await pair.stream("/v1/completions", prompt=PROMPT, **more)
    assert done == "[DONE]"
    if usage:
        last = chunks.pop()
        assert last.keys() == shapes.USAGE_CHUNK
        assert last["choices"] == []
        assert last["usage"].keys() == shapes.LAST_USAGE
        assert last["usage"]["completion_tokens"] == 8
    keys = [chunk.keys() for chunk in chunks]
    assert keys[:-1] == [shapes.CHUNK] * (len(chunks) - 1)
    assert keys[-1] == (shapes.CHUNK if usage else shapes.LAST_CHUNK)
    assert all(c["choices"][0].keys() == shapes.COMPLETION_CHUNK_CHOICE for c in chunks)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text == (await pair.complete())["choices"][0]["text"]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "length"


@pytest.mark.parametrize("usage", [False, True])
async def test_a_chat_stream_has_vllms_chunks(pair, usage):
    """The role first, alone and without text."""
    more = {"stream_options": {"include_usage": True}} if usage else {}
    role, *chunks, done = await pair.stream("/v1/chat/completions", messages=MESSAGES, **more)
    assert done == "[DONE]"
    assert role.keys() == shapes.CHAT_ROLE_CHUNK
    assert role["choices"][0].keys() == shapes.CHAT_ROLE_CHOICE
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    if usage:
        last = chunks.pop()
        assert last.keys() == shapes.USAGE_CHUNK
        assert last["usage"].keys() == shapes.LAST_USAGE
    assert all(c["choices"][0].keys() == shapes.CHAT_CHUNK_CHOICE for c in chunks[:-1])
    assert chunks[-1]["choices"][0].keys() == shapes.CHAT_LAST_CHOICE
    assert chunks[-1].keys() == (shapes.CHUNK if usage else shapes.LAST_CHUNK)
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == (await pair.chat())["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_continuous_usage_counts_up_in_every_chunk(pair, path):
    """What a gateway can resume by; chat has one key more."""
    body = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": MESSAGES}
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = await pair.stream(path, **body, stream_options=options)
    extra = set() if path == "/v1/completions" else {"completion_tokens_details"}
    assert all(chunk["usage"].keys() == shapes.STREAM_USAGE | extra for chunk in chunks)
    counted = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counted == sorted(counted)
    assert counted[-1] == last["usage"]["completion_tokens"] == 8


async def test_token_ids_come_where_they_are_wanted(pair):
    """In whole answers and in streams; the prompt's in the first chunk only."""
    whole = (await pair.complete(return_token_ids=True))["choices"][0]
    assert whole["prompt_token_ids"] == list(PROMPT.encode())
    *chunks, _ = await pair.stream("/v1/completions", prompt=PROMPT, return_token_ids=True)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [t for choice in choices for t in choice["token_ids"]] == whole["token_ids"]
    assert [c["prompt_token_ids"] for c in choices] == (
        [list(PROMPT.encode())] + [None] * (len(choices) - 1)
    )


async def test_chat_token_ids_stand_beside_the_choices(pair):
    """Prompt ids belong to the answer, not to a choice, under chat."""
    whole = await pair.chat(return_token_ids=True)
    assert len(whole["prompt_token_ids"]) == CHAT_TOKENS
    role, *chunks, _ = await pair.stream(
        "/v1/chat/completions", messages=MESSAGES, return_token_ids=True
    )
    assert role["prompt_token_ids"] == whole["prompt_token_ids"]
    got = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert got == whole["choices"][0]["token_ids"]


async def test_token_prompts_and_text_prompts_are_the_same(pair):
    """A prompt may come as ids, alone or in lists."""
    text = (await pair.complete())["choices"][0]["text"]
    tokens = list(PROMPT.encode())
    assert (await pair.complete(prompt=tokens))["choices"][0]["text"] == text
    several = await pair.complete(prompt=[tokens, tokens[:5]])
    assert [choice["index"] for choice in several["choices"]] == [0, 1]
    assert several["choices"][0]["text"] == text
    assert several["usage"]["prompt_tokens"] == len(tokens) + 5


async def test_several_choices_need_a_temperature(pair):
    """n > 1 is refused for greedy requests, and numbered otherwise."""
    answer = await pair.chat(n=2, temperature=1, seed=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 16


async def test_echo_gives_the_prompt_back(pair):
    """Before the answer; with `max_tokens: 0` alone, and one token is counted all the same."""
    text = (await pair.complete(max_tokens=2))["choices"][0]["text"]
    echoed = await pair.complete(max_tokens=2, echo=True)
    assert echoed["choices"][0]["text"] == PROMPT + text
    alone = await pair.complete(max_tokens=0, echo=True)
    assert alone["choices"][0]["text"] == PROMPT
    assert alone["usage"]["completion_tokens"] == 1


async def test_stop_strings_end_answers(pair):
    """The text before it, `stop` and which one it was; the tokens of it count."""
    text = (await pair.complete(max_tokens=16))["choices"][0]["text"]
    stop = text[5:8]
    cut = text.index(stop)
    answer = await pair.complete(max_tokens=16, stop=["@", stop])
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (text[:cut], "stop")
    assert choice["stop_reason"] == stop
    assert answer["usage"]["completion_tokens"] == len(text[: cut + 3].encode())
    kept = await pair.complete(max_tokens=16, stop=stop, include_stop_str_in_output=True)
    assert kept["choices"][0]["text"] == text[: cut + 3]


async def test_a_stream_with_stop_strings_never_takes_text_back(pair):
    """What could become one is held back, in chunks without text."""
    text = (await pair.complete(max_tokens=16))["choices"][0]["text"]
    stop = text[5:8]
    *chunks, _ = await pair.stream("/v1/completions", prompt=PROMPT, max_tokens=16, stop=stop)
    assert "".join(c["choices"][0]["text"] for c in chunks) == text[: text.index(stop)]
    last = chunks[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)


async def test_prompt_plus_answer_so_far_continues_with_the_same_answer(pair):
    """What resuming a stream relies on."""
    text = (await pair.complete(max_tokens=24))["choices"][0]["text"]
    head = text[:9]
    rest = await pair.complete(prompt=PROMPT + head, max_tokens=24 - len(head.encode()))
    assert head + rest["choices"][0]["text"] == text


async def test_logprobs_have_vllms_shapes(pair):
    """Values aside, which no simulated engine can have."""
    chat = (await pair.chat(max_tokens=2, logprobs=True, top_logprobs=1))["choices"][0]
    assert [one.keys() for one in chat["logprobs"]["content"]] == (
        [{"token", "logprob", "bytes", "top_logprobs"}] * 2
    )
    text = (await pair.complete(max_tokens=2, logprobs=1))["choices"][0]
    assert text["logprobs"].keys() == {"text_offset", "token_logprobs", "tokens", "top_logprobs"}
    assert len(text["logprobs"]["tokens"]) == 2


async def test_the_model_card_names_model_and_limit(pair):
    """What a directory reads."""
    (card,) = (await pair.http.get(f"{pair.decode_url}/v1/models")).json()["data"]
    assert card["id"] == MODEL_ID
    assert card["max_model_len"] == MAX_MODEL_LEN
    assert card.keys() == {
        "id",
        "object",
        "created",
        "owned_by",
        "root",
        "parent",
        "max_model_len",
        "permission",
    }


async def test_small_routes_answer_alike(pair):
    """Health, version and load."""
    health = await pair.http.get(f"{pair.decode_url}/health")
    assert (health.status_code, health.content) == (200, b"")
    assert (await pair.http.get(f"{pair.decode_url}/version")).json() == {"version": "0.29.0"}
    assert (await pair.http.get(f"{pair.decode_url}/load")).json().keys() == {"server_load"}


async def test_tokenize_and_detokenize_are_each_others_reverse(pair):
    """With special tokens and characters of several bytes."""
    asked = {"model": MODEL_ID, "prompt": "Hé<s>", "return_token_strs": True}
    tokens = (await pair.post("/tokenize", asked)).json()
    assert tokens == {
        "count": 4,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": [72, 195, 169, 256],
        "token_strs": ["H", "Ã", "©", "<s>"],
    }
    back = await pair.post("/detokenize", {"model": MODEL_ID, "tokens": tokens["tokens"]})
    assert back.json() == {"prompt": "Hé<s>"}
    chat = (await pair.post("/tokenize", {"messages": MESSAGES})).json()
    assert chat["count"] == CHAT_TOKENS


async def test_metrics_have_vllms_names(pair):
    """Those that gateways and dashboards read."""
    await pair.complete()
    page = (await pair.http.get(f"{pair.decode_url}/metrics")).text
    declared = {
        line.split()[2].removeprefix("vllm:")
        for line in page.splitlines()
        if line.startswith("# TYPE vllm:")
    }
    assert declared >= shapes.METRICS
    if pair.kind == "simulated":
        assert declared == shapes.METRICS, "the simulated engine has names that nobody checks"
    labels = f'{{engine="0",model_name="{MODEL_ID}"}}'
    assert f"vllm:num_requests_running{labels} 0.0" in page
