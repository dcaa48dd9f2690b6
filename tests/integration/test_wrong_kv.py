"""No answer is made from wrong KV: a hybrid model on real engines, and everything goes wrong.

One prefill engine and two decode engines: one as Baton installs it, one without Baton's plugins for
this. The second shows that each of these tests can fail: what vLLM alone does is answer 200.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton.demo.tiny_model import make_tiny_model
from baton.drill.kv import EXPIRED, value_in
from tests.integration.gateway_process import running_gateway
from tests.real_engines import EngineSpec, RealEngine, start_again, start_engines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real_engine, pytest.mark.slow, pytest.mark.timeout(600)]

LEASE_S = 6
IDLE_S = 6.5
"""uvicorn closes a connection that was idle for 5 s."""
WINDOW = 256
# What an environment without this part of Baton has.
BARE = (("VLLM_PLUGINS", "baton_amx,baton_nixl_pace,baton_orphans,baton_shm_pace"),)
FOR_PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
ALWAYS = {"x-baton-disaggregate": "always"}


@dataclass
class Reply:
    status: int
    text: str
    finished: bool
    headers: dict[str, str] = field(default_factory=dict)


def prompt_of(name: str) -> str:
    return f"case {name}: one runner hands the baton to the next and the crowd counts. " * 14


def ask(url: str, prompt: str, *, stream: bool = False, **more: Any) -> Reply:
    """One greedy completion. Salted, so that no prefix cache answers for the handoff."""
    headers = more.pop("headers", {})
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": 24, "temperature": 0, "stream": stream,
        "cache_salt": uuid.uuid4().hex, **more,
    }  # fmt: skip
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=120)
    seen = dict(answer.headers)
    if answer.status_code != 200:
        return Reply(answer.status_code, "", finished=False, headers=seen)
    if not stream:
        choice = answer.json()["choices"][0]
        return Reply(200, choice["text"], choice["finish_reason"] is not None, seen)
    text, finished = "", False
    for line in answer.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", []):
                text += choice["text"]
                finished = finished or choice["finish_reason"] is not None
    return Reply(200, text, finished, seen)


def offer_of(prefill: RealEngine, prompt: str) -> dict[str, Any]:
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": 1, "temperature": 0,
        "cache_salt": uuid.uuid4().hex, "kv_transfer_params": FOR_PREFILL,
    }  # fmt: skip
    answer = httpx.post(f"{prefill.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    params: dict[str, Any] = answer.json()["kv_transfer_params"]
    return params


def fill(prefill: RealEngine) -> None:
    """Prefill other prompts until every block has been used again."""
    for _ in range(14):
        ask(prefill.url, f"filler {uuid.uuid4()} " * 42, max_tokens=1)


@dataclass
class Stage:
    prefill: RealEngine
    guarded: RealEngine
    bare: RealEngine
    guarded_gateway: str = ""
    bare_gateway: str = ""
    again: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def right(self, prompt: str) -> str:
        """What the model says without P/D."""
        return ask(self.guarded.url, prompt).text

    def start_prefill_again(self) -> None:
        self.prefill = self.again.enter_context(start_again(self.prefill))


@pytest.fixture(scope="module")
def stage(real_engines_wanted: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    installed = {one.name for one in entry_points(group="vllm.general_plugins")}
    if not installed >= {"baton_failed_loads", "baton_identity", "baton_lease_deadline"}:
        pytest.fail("vLLM does not find Baton's plugins (hint: run make env)")
    folder: Path = tmp_path_factory.mktemp("wrong-kv")
    model = make_tiny_model(folder / "model", sliding_window=WINDOW)
    config = folder / "gateway.yaml"
    config.write_text(f"baton: {{recovery: {{kv_lease_s: {LEASE_S}}}}}\n", encoding="utf-8")
    specs = [
        EngineSpec("prefill", "prefill-0", (), LEASE_S),
        EngineSpec("decode", "decode-guarded", (), LEASE_S),
        # `recompute` changes nothing here: without the plugins nobody looks.
        EngineSpec("decode", "decode-bare", (), LEASE_S, environment=BARE),
    ]
    with contextlib.ExitStack() as stack:
        prefill, guarded, bare = stack.enter_context(start_engines(specs, folder, model=model))
        stage = Stage(prefill, guarded, bare)
        stack.enter_context(stage.again)
        stage.guarded_gateway, stage.bare_gateway = (
            stack.enter_context(
                running_gateway(
                    [prefill.url], [decode.url], folder / f"{decode.engine_id}-gw.log", config
                )
            )
            for decode in (guarded, bare)
        )
        yield stage


@pytest.fixture(autouse=True)
def every_engine_is_used(stage: Stage) -> None:
    """The tests come in any order, and one of them has prefill die and come back."""
    for gateway in (stage.guarded_gateway, stage.bare_gateway):
        deadline = time.monotonic() + 90
        while ask(gateway, prompt_of("a try"), headers=ALWAYS).headers["x-baton-route"] != "pd":
            assert time.monotonic() < deadline, f"{gateway} does not use prefill again"
            time.sleep(0.2)


def test_this_model_is_hybrid_and_a_handoff_of_it_is_right(stage: Stage) -> None:
    """The offer has blocks of two groups: one of the sliding window, one of the whole context."""
    prompt = prompt_of("sound")
    for decode in (stage.guarded, stage.bare):
        offer = offer_of(stage.prefill, prompt)
        window, whole = (len(group) for group in offer["remote_block_ids"])
        assert 0 < window < whole
        assert ask(decode.url, prompt, kv_transfer_params=offer).text == stage.right(prompt)


def test_an_offer_whose_lease_has_ended_is_not_read(stage: Stage) -> None:
    """Straight at the engine, its blocks used again: an error, and from the bare engine garbage."""
    prompt = prompt_of("expired")
    right = stage.right(prompt)
    offers = [offer_of(stage.prefill, prompt) for _ in range(3)]
    time.sleep(LEASE_S)
    fill(stage.prefill)
    plain = ask(stage.guarded.url, prompt, kv_transfer_params=offers[0])
    streamed = ask(stage.guarded.url, prompt, stream=True, kv_transfer_params=offers[1])
    bare = ask(stage.bare.url, prompt, kv_transfer_params=offers[2])
    assert plain.status == 500
    assert streamed.text == ""
    assert not streamed.finished
    assert bare.status == 200
    assert bare.text != right, "vLLM alone gets it right: is the guard still needed?"


def test_the_kv_of_a_prefill_that_died_is_never_made_up(stage: Stage) -> None:
    """Killed between its answer and decode's request, then started again in the same place."""
    prompts = [prompt_of(f"dead {n}") for n in range(5)]
    rights = [stage.right(prompt) for prompt in prompts]
    for decode in (stage.guarded, stage.bare):  # both know this prefill engine
        ask(decode.url, prompts[0], kv_transfer_params=offer_of(stage.prefill, prompts[0]))
    offers = [offer_of(stage.prefill, prompt) for prompt in prompts]
    stage.guarded.freeze()
    through: list[Reply] = []
    callers = [
        threading.Thread(
            target=lambda s=stream: through.append(
                ask(stage.guarded_gateway, prompts[3], stream=s, headers=ALWAYS)
            )
        )
        for stream in (False, True)
    ]
    try:
        for caller in callers:
            caller.start()
        time.sleep(2)  # prefill has answered, decode has not heard of it
        stage.prefill.kill()
    finally:
        stage.guarded.thaw()
        for caller in callers:
            caller.join(120)
    plain = ask(stage.guarded.url, prompts[0], kv_transfer_params=offers[0])
    streamed = ask(stage.guarded.url, prompts[1], stream=True, kv_transfer_params=offers[1])
    bare = ask(stage.bare.url, prompts[2], kv_transfer_params=offers[2])
    stage.start_prefill_again()
    old = ask(stage.guarded.url, prompts[4], kv_transfer_params=offers[4])
    new = offer_of(stage.prefill, prompts[4])
    fresh = ask(stage.guarded.url, prompts[4], kv_transfer_params=new)

    assert [reply.text for reply in through] == [rights[3], rights[3]]
    assert plain.status == 500
    assert streamed.text == ""
    assert not streamed.finished
    assert bare.status == 200
    assert bare.text != rights[2], "vLLM alone gets it right: is the guard still needed?"
    assert old.status == 500
    assert new["remote_engine_id"] != offers[4]["remote_engine_id"]
    assert fresh.text == rights[4]


@pytest.mark.parametrize("which", ["guarded", "bare"])
def test_a_decode_that_was_frozen_for_longer_than_the_lease_answers_right(
    stage: Stage, which: str
) -> None:
    """Through the gateway. The bare engine reads wrong KV: then the gateway alone notices.

    What it keeps of that in its prefix cache must not be found by the next try either.
    """
    decode = stage.guarded if which == "guarded" else stage.bare
    gateway = stage.guarded_gateway if which == "guarded" else stage.bare_gateway
    prompt = prompt_of(f"frozen {which}")
    right = stage.right(prompt)
    assert ask(gateway, prompt, headers=ALWAYS).headers["x-baton-route"] == "pd"
    # Connections to decode that are idle would be reset as it wakes, and nothing would be read.
    time.sleep(IDLE_S)
    before, expired = stale(gateway), expired_leases(stage)
    replies: list[Reply] = []
    callers = [
        threading.Thread(
            target=lambda s=stream: replies.append(ask(gateway, prompt, stream=s, headers=ALWAYS))
        )
        for stream in (False, True)
    ]
    decode.freeze()
    try:
        for caller in callers:
            caller.start()
        time.sleep(LEASE_S + 1.5)
        fill(stage.prefill)
    finally:
        decode.thaw()
    for caller in callers:
        caller.join(120)
    # Otherwise there was nothing wrong to be read.
    assert expired_leases(stage) > expired
    assert [reply.text for reply in replies] == [right, right]
    if which == "bare":
        assert stale(gateway) > before


def expired_leases(stage: Stage) -> float:
    """Offers that prefill took back because nobody had read them in time."""
    return value_in(httpx.get(f"{stage.prefill.url}/metrics", timeout=30).text, EXPIRED)


def stale(gateway: str) -> float:
    """Answers that this gateway threw away because their KV was suspect."""
    total = 0.0
    for line in httpx.get(f"{gateway}/metrics", timeout=30).text.splitlines():
        if line.startswith("baton_retries_total") and 'kind="stale_kv"' in line:
            total += float(line.rsplit(" ", 1)[1])
    return total
