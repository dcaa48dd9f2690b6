"""The same cases on simulated and on real engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from tests.real_engines import BLOCK_SIZE, KV_BLOCKS, MAX_MODEL_LEN, MODEL_ID

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

# The first real case also pays for the start of the engines: minutes, on a machine that is busy.
KINDS = [
    "simulated",
    pytest.param("real", marks=[pytest.mark.real_engine, pytest.mark.timeout(900)]),
]

PROMPT = (
    "The committee read every page of the report twice, argued about the seventh table, and went "
    "home late; nobody had noticed that the last column was empty. In the morning it was not."
)
MESSAGES = [{"role": "user", "content": "Say something, please."}]


@dataclass
class Pair:
    """A prefill and a decode engine of one kind."""

    kind: str
    prefill_url: str
    decode_url: str
    http: httpx.AsyncClient

    async def post(
        self, path: str, body: Any = None, *, url: str | None = None, **more: Any
    ) -> httpx.Response:
        """Ask the decode engine, or the one at `url`."""
        return await self.http.post((url or self.decode_url) + path, json=body, **more)

    async def complete(self, *, url: str | None = None, **body: Any) -> dict[str, Any]:
        """A greedy completion that must succeed."""
        asked = {"model": MODEL_ID, "prompt": PROMPT, "temperature": 0, "max_tokens": 8, **body}
        answer = await self.post("/v1/completions", asked, url=url)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def chat(self, **body: Any) -> dict[str, Any]:
        """A greedy chat completion that must succeed."""
        asked = {
            "model": MODEL_ID,
            "messages": MESSAGES,
            "temperature": 0,
            "max_tokens": 8,
            **body,
        }
        answer = await self.post("/v1/chat/completions", asked)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def stream(self, path: str, **body: Any) -> list[Any]:
        """The events of a greedy stream; `[DONE]` stays a text."""
        asked = {"model": MODEL_ID, "temperature": 0, "max_tokens": 8, "stream": True, **body}
        answer = await self.post(path, asked)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        data = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        return [one if one == "[DONE]" else json.loads(one) for one in data]

    async def prefill(self, **body: Any) -> dict[str, Any]:
        """The prefill leg; the `kv_transfer_params` that it answers."""
        answer = await self.complete(
            url=self.prefill_url,
            **{"max_tokens": 1, "kv_transfer_params": PREFILL_PARAMS, **body},
        )
        return answer["kv_transfer_params"]

    async def metric(self, name: str, *, url: str | None = None) -> float:
        """A metric without labels of its own, from the prefill engine or the one at `url`."""
        page = (await self.http.get(f"{url or self.prefill_url}/metrics")).text
        found = re.search(rf"^vllm:{name}{{[^}}]*}} (\S+)$", page, re.MULTILINE)
        assert found is not None, f"no metric {name}"
        return float(found[1])

    async def kv_is_free(self) -> bool:
        """Whether neither engine holds any KV."""
        return [
            await self.metric("kv_cache_usage_perc", url=url)
            for url in (self.prefill_url, self.decode_url)
        ] == [0, 0]


PREFILL_PARAMS = {"do_remote_decode": True, "do_remote_prefill": False}


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Wait until something holds; fails when it does not within `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not await holds():
        assert asyncio.get_running_loop().time() < deadline, "it never came to hold"
        await asyncio.sleep(0.1)


def http_client() -> httpx.AsyncClient:
    """A client that keeps no connection open.

    Servers close idle ones after a few seconds, and a request may meet that: where it cannot be
    sent again, it fails. Tests are not about that.
    """
    return httpx.AsyncClient(
        timeout=60, verify=False, limits=httpx.Limits(max_keepalive_connections=0)
    )


def simulated(role: str, **more: Any) -> SimulatedEngine:
    """A simulated engine with the limits of the real ones."""
    return SimulatedEngine(
        role=role,
        engine_id=f"{role}-0",
        model_id=MODEL_ID,
        max_model_len=MAX_MODEL_LEN,
        block_size=BLOCK_SIZE,
        kv_blocks=KV_BLOCKS,
        kv_lease_s=3,
        prompt_tokens_details=True,
        latency=LatencyProfile(prefill_tokens_per_s=20_000, tpot_s=0.002),
        **more,
    )


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """The engines that a case runs on. Behind it, no KV may be held."""
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(http_client())
        if request.param == "real":
            real = request.getfixturevalue("real_pair")
            urls = real.prefill_url, real.decode_url
        else:
            engines = [
                await stack.enter_async_context(simulated(role)) for role in ("prefill", "decode")
            ]
            urls = engines[0].url, engines[1].url
        pair = Pair(request.param, *urls, http)
        yield pair
        await eventually(pair.kv_is_free, seconds=40)  # a lease may have to end
