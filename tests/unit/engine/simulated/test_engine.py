"""The simulated engine over HTTP: answers, limits, faults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from baton.engine.guard import SECRET_HEADER
from baton.engine.simulated import SimulatedEngine
from baton.errors import ConfigRefused, PortTaken
from tests.unit.engine.simulated.conftest import PROMPT, events, eventually

MESSAGES = [{"role": "user", "content": "tell me of the river"}]


async def test_the_same_prompt_gives_the_same_text_in_any_engine(start):
    """Whatever the way in: text, tokens, chat."""
    one, other = await start("prefill"), await start("decode", block_size=128)
    text = await one.text()
    assert await other.text(prompt=list(PROMPT.encode())) == text
    chat = await other.http.post(
        f"{other.engine.url}/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 40}
    )
    assert chat.json()["choices"][0]["message"]["content"] == text


async def test_a_stream_has_the_text_of_the_whole_answer(start):
    """Chunk by chunk, and `[DONE]` at the end."""
    engine = await start()
    whole = await engine.text(max_tokens=300)
    got = events((await engine.complete(max_tokens=300, stream=True)).text)
    assert got[-1] == "[DONE]"
    chunks = got[:-1]
    assert len(chunks) == 300
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 299 + ["length"]


async def test_prompt_plus_text_so_far_goes_on_with_the_rest(start):
    """What resuming relies on."""
    one, other = await start("decode"), await start("decode", engine_id="other")
    text = await one.text(max_tokens=200)
    head = text[:77]
    rest = await other.text(prompt=PROMPT + head, max_tokens=200 - len(head.encode()))
    assert head + rest == text


async def test_several_prompts_and_choices_are_numbered_as_vllm_numbers_them(start):
    """Prompt by prompt, choice by choice, in both ways of answering."""
    engine = await start()
    ask = {"prompt": ["one", "two"], "n": 2, "temperature": 1, "max_tokens": 5}
    whole = (await engine.complete(**ask)).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["usage"] == {
        "prompt_tokens": 6,
        "total_tokens": 26,
        "completion_tokens": 20,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    texts = ["", "", "", ""]
    for chunk in events((await engine.complete(**ask, stream=True)).text)[:-1]:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_before_the_answer(start, stream):
    """`max_tokens: 0` gives the prompt alone, at the price of one token."""
    engine = await start()
    answer = await engine.text(max_tokens=5)

    async def text(**more):
        got = await engine.complete(stream=stream, **more)
        if not stream:
            return got.json()["choices"][0]["text"]
        return "".join(chunk["choices"][0]["text"] for chunk in events(got.text)[:-1])

    assert await text(echo=True, max_tokens=5) == PROMPT + answer
    assert await text(echo=True, max_tokens=0) == PROMPT


async def test_token_ids_come_where_they_are_wanted(start):
    """Prompt ids in the first chunk, each chunk's own in all: what a safe resume needs."""
    engine = await start()
    got = events((await engine.complete(max_tokens=9, stream=True, return_token_ids=True)).text)
    choices = [chunk["choices"][0] for chunk in got[:-1]]
    assert choices[0]["prompt_token_ids"] == list(PROMPT.encode())
    assert all(choice["prompt_token_ids"] is None for choice in choices[1:])
    tokens = [token for choice in choices for token in choice["token_ids"]]
    assert bytes(tokens).decode() == "".join(choice["text"] for choice in choices)


async def test_a_character_that_max_tokens_cuts_gives_no_text(start):
    """Tokens and text need not agree at the end: usage counts the token."""
    engine = await start()
    text = await engine.text(max_tokens=3000)
    before = next(
        text[:place].encode() for place, sign in enumerate(text) if len(sign.encode()) > 1
    )
    answer = (await engine.complete(max_tokens=len(before) + 1)).json()
    assert answer["choices"][0]["text"].encode() == before
    assert answer["usage"]["completion_tokens"] == len(before) + 1


@pytest.mark.parametrize(
    ("path", "method"),
    [("/nope", "GET"), ("/sim/kv", "GET"), ("/v1/load_lora_adapter", "POST")],
)
async def test_other_paths_are_unknown(start, path, method):
    """The side channel is not on the public port."""
    engine = await start()
    answer = await engine.http.request(method, engine.engine.url + path)
    assert (answer.status_code, answer.json()) == (404, {"detail": "Not Found"})


async def test_the_secret_guards_the_public_port(start):
    """As in front of a real engine."""
    engine = await start(secret="s3")
    assert (await engine.complete()).status_code == 401
    assert (await engine.complete(headers={SECRET_HEADER: "s3"})).status_code == 200


async def test_a_request_too_many_waits(start):
    """Waiting and running are what `/metrics` says, under vLLM's names."""
    engine = await start(max_num_seqs=1, tpot_s=0.02)
    first = asyncio.create_task(engine.text(max_tokens=100))
    counts = engine.engine.core.counts
    await eventually(lambda: counts.running == 1)
    second = asyncio.create_task(engine.text(max_tokens=1))
    await eventually(lambda: counts.waiting_capacity == 1)
    metrics = (await engine.http.get(f"{engine.engine.url}/metrics")).text
    assert 'vllm:num_requests_running{engine="0",model_name="simulated"} 1.0' in metrics
    assert 'vllm:num_requests_waiting{engine="0",model_name="simulated"} 1.0' in metrics
    assert (await engine.http.get(f"{engine.engine.url}/load")).json() == {"server_load": 2}
    first.cancel()
    await second
    await eventually(lambda: counts.running == 0)
    assert engine.engine.core.pool.usage == 0


async def test_requests_that_do_not_fit_wait_for_blocks(start):
    """And answers that outgrow the pool wait for room."""
    engine = await start(kv_blocks=5, block_size=16, max_model_len=64)
    texts = await asyncio.gather(
        *(engine.text(prompt=str(i) * 20, max_tokens=30) for i in range(4))
    )
    assert [len(text) > 20 for text in texts] == [True] * 4
    assert engine.engine.core.pool.usage == 0


async def test_a_pool_that_holds_no_request_is_refused():
    """As vLLM refuses to start with too little KV cache."""
    with pytest.raises(ConfigRefused, match="cannot hold one request"):
        async with SimulatedEngine(role="prefill", kv_blocks=3):
            pass


async def test_a_taken_port_is_refused():
    """In one line, before anything runs."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortTaken):
        async with SimulatedEngine(role="prefill", port=taken.getsockname()[1]):
            pass


# Faults


async def test_refuse_says_503_until_it_is_switched_off(start):
    """At runtime, by `POST /sim/faults`."""
    engine = await start()
    await engine.set_faults("refuse")
    assert (await engine.complete()).status_code == 503
    await engine.set_faults()
    assert (await engine.complete()).status_code == 200


async def test_refuse_close_closes_the_connection(start):
    """The caller gets no HTTP at all."""
    engine = await start(faults=["refuse=close*1"])
    with pytest.raises(httpx.TransportError):
        await engine.complete()
    assert (await engine.complete()).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_hang_answers_nothing_and_ends_with_the_caller(start, stream):
    """Only a deadline helps."""
    engine = await start()
    with pytest.raises(httpx.TimeoutException):
        await engine.http.post(
            f"{engine.engine.url}/v1/completions",
            json={"prompt": PROMPT, "stream": stream},
            headers={"x-sim-fault": "hang"},
            timeout=httpx.Timeout(5, read=0.2),
        )
    assert (await engine.complete()).status_code == 200


async def test_drop_cuts_the_stream_after_that_many_tokens(start):
    """Without a last chunk."""
    engine = await start()
    got: list[bytes] = []

    async def read() -> None:
        async with engine.http.stream(
            "POST",
            f"{engine.engine.url}/v1/completions",
            json={"prompt": PROMPT, "stream": True, "max_tokens": 50},
            headers={"x-sim-fault": "drop_at=3"},
        ) as answer:
            got.extend([part async for part in answer.aiter_raw()])

    with pytest.raises(httpx.TransportError):
        await read()
    assert b"".join(got).count(b"data: ") <= 3
    await eventually(lambda: engine.engine.core.pool.usage == 0)


async def test_slow_stretches_time(start):
    """Prefill and tokens alike: seen by order, not by the clock."""
    slow = await start(tpot_s=0.01, faults=["slow=20"])
    fast = await start("decode", engine_id="fast", tpot_s=0.01)
    one = asyncio.create_task(slow.text(max_tokens=20))
    two = asyncio.create_task(fast.text(max_tokens=20))
    done, _ = await asyncio.wait({one, two}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {two}
    one.cancel()


async def test_garbage_is_no_json(start):
    """What a broken proxy in between may give."""
    engine = await start(faults=["garbage"])
    answer = await engine.complete()
    assert answer.status_code == 200
    with pytest.raises(ValueError, match=r"decode|Expecting"):
        answer.json()


async def test_fail_kv_load_fails_handoffs_only(start):
    """Requests without a handoff go on."""
    prefill, decode = await start("prefill"), await start("decode", faults=["fail_kv_load"])
    assert (await decode.complete()).status_code == 200
    params = await prefill.prefill()
    assert (await decode.complete(kv_transfer_params=params)).status_code == 500


async def test_unhealthy_shows_in_health_alone(start):
    """A health check that fails while requests work."""
    engine = await start(faults=["unhealthy"])
    assert (await engine.http.get(f"{engine.engine.url}/health")).status_code == 503
    assert (await engine.complete()).status_code == 200


async def test_a_misspelt_fault_is_a_400(start):
    """Also in the header, before anything is done."""
    engine = await start()
    answer = await engine.http.post(
        f"{engine.engine.url}/sim/faults", json={"faults": ["dye_at=3"]}
    )
    assert answer.status_code == 400
    assert (await engine.complete(headers={"x-sim-fault": "dye_at=3"})).status_code == 400


def _start_process(*options: str) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "baton.cli", "engine", "--simulated", "--role", "decode"]
    process = subprocess.Popen(
        [*command, "--port", "0", *options], stderr=subprocess.PIPE, text=True
    )
    line = process.stderr.readline()
    assert "listens on" in line, line
    return process, line.split()[-1]


def test_die_kills_the_process_in_mid_stream():
    """SIGKILL: no last chunk, no shutdown."""
    process, url = _start_process("--fault", "die_at=5", "--tpot-ms", "1")
    try:
        got: list[bytes] = []

        def read() -> None:
            body = {"prompt": PROMPT, "stream": True, "max_tokens": 50}
            with httpx.stream("POST", f"{url}/v1/completions", json=body) as answer:
                got.extend(answer.iter_raw())

        with pytest.raises(httpx.TransportError):
            read()
        assert process.wait(10) == -signal.SIGKILL
        assert b"".join(got).count(b"data: ") <= 5
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


def test_a_signal_ends_the_process_quietly():
    """Ctrl-C and `kill` leave no traceback."""
    process, url = _start_process()
    try:
        assert httpx.get(f"{url}/health").status_code == 200
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=10)
        assert "Traceback" not in said
    finally:
        process.kill()
        process.wait(10)


def test_chunks_are_json_whatever_the_model_is_called():
    """Names are quoted."""

    async def run() -> str:
        async with (
            SimulatedEngine(role="decode", model_id='a "quoted" née') as engine,
            httpx.AsyncClient() as http,
        ):
            body = {"messages": MESSAGES, "stream": True, "max_tokens": 3}
            return (await http.post(f"{engine.url}/v1/chat/completions", json=body)).text

    first = events(asyncio.run(run()))[0]
    assert first["model"] == 'a "quoted" née'
    assert json.dumps(first)
