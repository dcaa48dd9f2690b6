"""`disaggregate: auto` end to end: simulated engines, a gateway before them, HTTP between all.

The engines take real time, tens of milliseconds; the model's clock is moved on between requests, so
that each of them is news. What is asserted is which way requests went and what was said of it.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from baton.gateway.directory import FixedDirectory
from baton.gateway.eligibility import PromptSize, prompt_size
from baton.gateway.ways import FIRST_GUESS, STREAMS_LIVE_S, TokenRatio, Ways
from tests.unit.gateway.fakes import FakeEngine, serving, stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WORDS = "Hand the baton over, and never let it fall. " * 6
LATENCY = LatencyProfile(prefill_tokens_per_s=5000)


@dataclass
class Rig:
    """Two simulated engines and a gateway."""

    prefill: SimulatedEngine
    decode: SimulatedEngine
    app: Any
    url: str
    session: aiohttp.ClientSession
    skipped_s: float = 0.0
    draws: random.Random = field(default_factory=lambda: random.Random(5))

    def clock(self) -> float:
        return time.monotonic() + self.skipped_s

    async def ask(self, **more: Any) -> dict[str, Any]:
        """One request; returns its timeline."""
        self.skipped_s += 0.25
        headers = {k: v for k, v in more.items() if k.startswith("x-")}
        body = {
            "model": "simulated",
            # Of nearly one length: a busy machine's noise must not be taken for a slope.
            "prompt": WORDS[: self.draws.randint(190, 240)],
            "max_tokens": 2,
            "stream": True,
            **{k: v for k, v in more.items() if not k.startswith("x-")},
        }
        async with self.session.post(
            self.url + "/v1/completions", json=body, headers=headers
        ) as answer:
            raw = await answer.read()
            assert answer.status == 200, raw
        async with self.session.get(self.url + "/baton/requests") as answer:
            return (await answer.json())["requests"][-1]

    async def until(self, way: str, most: int, reason: str | None = None) -> list[dict[str, Any]]:
        """Requests until one that is no probe goes this way."""
        lines = []
        for _ in range(most):
            lines.append(await self.ask())
            choice = lines[-1]["way"]
            wanted = reason in (None, choice["reason"]) and choice["reason"] != "explore"
            if choice["way"] == way and wanted:
                return lines
        raise AssertionError([line["way"] for line in lines[-10:]])

    async def metric(self, name: str) -> float:
        async with self.session.get(self.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name))


@contextlib.asynccontextmanager
async def rig() -> AsyncIterator[Rig]:
    async with (
        SimulatedEngine(role="prefill", engine_id="p", latency=LATENCY) as prefill,
        SimulatedEngine(role="decode", engine_id="d", latency=LATENCY) as decode,
        serving(FixedDirectory([prefill.url], [decode.url], interval_s=30.0)) as (app, url),
        aiohttp.ClientSession() as session,
    ):
        made = Rig(prefill, decode, app, url, session)
        app.ways = Ways(app.directory, app.inflight, app.metrics.costs, now=made.clock, seed=1)
        yield made


async def test_a_throttled_transport_turns_it_to_local_and_a_sound_one_back():
    """The whole way: measured, turned, returned; the timeline and `/metrics` say why."""
    async with rig() as r:
        lines = await r.until("pd", 80, reason="cheaper")
        before = {line["way"]["reason"] for line in lines[:-1]}
        assert {"unmeasured", "explore"} <= before
        assert {line["route"] for line in lines} == {"pd", "decode_only"}
        choice = lines[-1]["way"]
        assert choice["pd_s"] < choice["local_s"] + choice["stall_s"]
        assert (lines[-1]["route"], lines[-1]["reason"]) == ("pd", "cheaper")
        assert not math.isnan(await r.metric("baton_cost_break_even_tokens"))

        r.decode.app.faults.set(["kv_delay_s=0.25"])
        turned = await r.until("local", 40)
        assert (turned[-1]["route"], turned[-1]["reason"]) == ("decode_only", "cheaper")
        assert "prefill_s" not in turned[-1]["stages"]
        choice = turned[-1]["way"]
        assert choice["pd_s"] > choice["local_s"] + choice["stall_s"]
        assert await r.metric("baton_cost_handoff_failed_share") == 0

        r.decode.app.faults.set([])
        r.skipped_s += 10.0
        back = await r.until("pd", 80)
        assert back[-1]["route"] == "pd"
        explored = [line for line in back if line["reason"] == "explore"]
        assert explored
        assert await r.metric('baton_ways_total{reason="explore",way="pd"}') >= len(explored)
        assert await r.metric('baton_ways_total{reason="cheaper",way="local"}') >= 1


async def test_handoffs_that_fail_turn_it_to_local_and_no_caller_sees_it():
    """Two failures are enough; each of them was made good."""
    async with rig() as r:
        await r.ask()
        r.decode.app.faults.set(["fail_kv_load"])
        r.skipped_s += 60.0
        lines = await r.until("local", 8)
        assert lines[-1]["reason"] == "handoff_failing"
        assert {line["outcome"] for line in lines} == {"ok"}
        r.decode.app.faults.set([])
        await r.until("pd", 80)


async def test_the_prompts_tokens_are_prefills_own_count():
    """The simulated tokenizer makes a token of each byte, and one more at the start."""
    async with rig() as r:
        line = await r.ask(prompt=WORDS)
        assert line["prompt_tokens"] in (len(WORDS), len(WORDS) + 1)
        assert r.app.ways.ratio.value == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("said", "route"), [("always", "pd"), ("never", "decode_only")])
async def test_the_callers_header_goes_before_the_model(said, route):
    """And what it took is learned all the same."""
    async with rig() as r:
        line = await r.ask(**{"x-baton-disaggregate": said})
        assert (line["route"], line["reason"], line["way"]) == (route, f"mode_{said}", None)
        assert await r.metric("baton_ways_total") == 1
        assert len(r.app.ways.model._prefill) == (said == "always")


async def test_every_request_leaves_nothing_open():
    """Callers that hang up in a handoff included: nothing is believed to be under way for ever."""
    async with rig() as r:
        r.decode.app.faults.set(["hang"])
        body = {"model": "simulated", "prompt": WORDS, "stream": True}
        with contextlib.suppress(TimeoutError):
            async with r.session.post(
                r.url + "/v1/completions", json=body, timeout=aiohttp.ClientTimeout(total=0.3)
            ) as answer:
                await answer.read()
        r.decode.app.faults.set([])
        await r.ask()
        assert r.app.ways.model._open == {}


async def test_engines_that_say_nothing_of_tokens_are_asked_as_before():
    """Offers without a count: no ratio, P/D for whatever is long enough."""
    async with stack() as s:
        await s.complete()
        assert isinstance(s.prefill[0], FakeEngine)
        line = json.loads((await s.get("/baton/requests"))[1])["requests"][-1]
        assert (line["reason"], line["prompt_tokens"]) == ("unmeasured", None)
        assert not s.app.ways.ratio.is_known


@pytest.mark.parametrize(
    ("body", "size"),
    [
        ({"prompt": "abc"}, PromptSize(3)),
        ({"prompt": "é€"}, PromptSize(5)),
        ({"prompt": ["abc"]}, PromptSize(3)),
        ({"prompt": [1, 2, 3]}, PromptSize(3, 3)),
        ({"prompt": [[1, 2, 3]]}, PromptSize(3, 3)),
        ({"messages": [{"role": "user", "content": "abc"}]}, PromptSize(3)),
        ({"messages": [{"role": "u", "content": [{"type": "text", "text": "ab"}]}]}, PromptSize(2)),
        ({"input": "abc", "instructions": "de"}, PromptSize(5)),
        ({"system": "ab", "messages": [], "tools": [{"name": "t", "strict": True}]}, PromptSize(4)),
        ({"max_tokens": 5}, PromptSize(0)),
    ],
)
def test_a_prompt_is_measured_in_bytes_and_token_ids_exactly(body, size):
    """Whatever of the body shapes the prompt."""
    assert prompt_size(body) == size


def test_the_ratio_follows_the_traffic_and_no_single_prompt():
    """One book in another language is not everybody's ratio."""
    ratio = TokenRatio()
    assert (ratio.value, ratio.is_known) == (FIRST_GUESS, False)
    for _ in range(50):
        ratio.learn(1000, 4000)
    assert ratio.value == pytest.approx(0.25)
    ratio.learn(10_000_000, 10_000_000)
    assert ratio.value < 0.3
    for _ in range(100):
        ratio.learn(1000, 2000)
    assert ratio.value == pytest.approx(0.5, rel=0.05)
    ratio.learn(0, 10)
    assert ratio.value == pytest.approx(0.5, rel=0.05)


async def test_decodes_load_is_counted_a_few_times_a_second_and_not_for_each_request():
    """A thousand engines are walked over once for all requests of the moment."""
    async with stack(decode=2) as s:
        now, looks = [100.0], []
        directory = s.app.directory
        real = directory.decode_engines

        def counted():
            looks.append(now[0])
            return real()

        directory.decode_engines = counted
        ways = Ways(directory, s.app.inflight, s.app.metrics.costs, now=lambda: now[0], seed=1)
        for _ in range(100):
            ways.choose(PromptSize(1000), streamed=True)
        assert len(looks) == 1
        now[0] += STREAMS_LIVE_S
        ways.choose(PromptSize(1000), streamed=True)
        assert len(looks) == 2
