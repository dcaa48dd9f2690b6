"""How many KV blocks engines hold, by their own metrics."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.spec.lease import EngineLease

USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
_BLOCKS = re.compile(r'num_gpu_blocks="(\d+)"')
_TIMEOUT_S = 5.0
_READS = 3


class Unreadable(Exception):
    """An engine's metrics cannot be read: what it holds is unknown."""


class Gauges:
    """Reads engines' `/metrics`, and pokes an engine so that it writes them anew.

    Args:
        headers: What opens the engines' ports.
    """

    def __init__(self, session: aiohttp.ClientSession, headers: Mapping[str, str]) -> None:
        self._session = session
        self._headers = headers

    async def page(self, engine: EngineLease) -> str:
        """The text of `/metrics`. Raises Unreadable."""
        try:
            async with self._session.get(
                f"{engine.url}/metrics",
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            ) as answer:
                if answer.status != 200:  # noqa: PLR2004
                    raise Unreadable(f"{engine.url}/metrics answers {answer.status}")
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise Unreadable(f"{engine.url}/metrics: {type(exc).__name__}") from exc

    async def busy(self, engine: EngineLease) -> float:
        """Requests that run or wait there."""
        page = await self.page(engine)
        return value_in(page, RUNNING) + value_in(page, WAITING)

    async def blocks_held(self, engines: Sequence[EngineLease]) -> int:
        """Blocks that these engines hold.

        Raises:
            Unreadable: An engine does not say, or none is known: that is not zero blocks.
        """
        if not engines:
            raise Unreadable("no engine is known")
        return sum([await self._held_by(engine) for engine in engines])

    async def _held_by(self, engine: EngineLease) -> int:
        held = 0
        for _ in range(_READS):
            held = blocks_in(await self.page(engine))
            if not held:
                return 0
            # vLLM writes the gauge with each step of the engine. Blocks that were freed after the
            # last step show only when there is another one.
            await self._poke(engine)
        return held

    async def _poke(self, engine: EngineLease) -> None:
        body = {"model": engine.model_id, "prompt": "x", "max_tokens": 1}
        try:
            async with self._session.post(
                f"{engine.url}/v1/completions",
                json=body,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            ) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise Unreadable(f"{engine.url}: {type(exc).__name__}") from exc


def value_in(page: str, name: str) -> float:
    """The sum of a metric's samples; 0 when it is not there."""
    total = 0.0
    for line in page.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")):
            total += float(line.rsplit(" ", 1)[1])
    return total


def blocks_in(page: str) -> int:
    """Blocks held, by the share and the number of blocks on the page.

    vLLM 0.29 leaves its null block out of both (`BlockPool.get_usage`). A share above nothing is
    never rounded to none.
    """
    share = value_in(page, USAGE)
    if share <= 0:
        return 0
    found = _BLOCKS.search(page)
    usable = int(found.group(1)) - 1 if found else 0
    return max(1, round(share * usable)) if usable > 0 else max(1, math.ceil(share))
