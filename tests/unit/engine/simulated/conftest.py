"""Simulated engines in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton.engine.simulated import LatencyProfile, SimulatedEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PROMPT = "user: tell me of the river\nassistant:"


class Caller:
    """Asks one engine, as a gateway would."""

    def __init__(self, engine: SimulatedEngine, http: httpx.AsyncClient) -> None:
        self.engine = engine
        self.http = http

    async def complete(self, *, prompt: Any = PROMPT, **more: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": 40, "temperature": 0, **more}
        headers = body.pop("headers", None)
        return await self.http.post(f"{self.engine.url}/v1/completions", json=body, headers=headers)

    async def text(self, **more: Any) -> str:
        answer = await self.complete(**more)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    async def prefill(self, **more: Any) -> dict[str, Any]:
        """Run the prefill leg; what it hands on."""
        more = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}, **more}
        answer = await self.complete(**more)
        assert answer.status_code == 200, answer.text
        return answer.json()["kv_transfer_params"]

    async def set_faults(self, *specs: str) -> None:
        answer = await self.http.post(f"{self.engine.url}/sim/faults", json={"faults": list(specs)})
        assert answer.status_code == 200, answer.text


def events(body: str) -> list[Any]:
    """The data of server-sent events; `[DONE]` stays a text."""
    data = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds; fails after five seconds."""
    for _ in range(500):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to hold")


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Any]]:
    """Starts engines that end with the test; keyword arguments are `SimulatedEngine`'s."""
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=10, verify=False))

        async def start(role: str = "decode", **more: Any) -> Caller:
            latency = {
                key: more.pop(key) for key in list(more) if key in LatencyProfile.model_fields
            }
            engine = SimulatedEngine(role=role, latency=LatencyProfile(**latency), **more)
            return Caller(await stack.enter_async_context(engine), http)

        yield start
