"""What asks an engine and takes the time: `baton profile` and bench/plan_validate.py share it.

Prompts are random token ids between 10 and 250, which every vocabulary of bytes or more has, and
never the same twice, so that no prefix cache answers.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.errors import MeasurementFailed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

import aiohttp

_OK = 200
REST_S = 0.02
"""Before a first token that is timed: an engine is not done with a request when its last token has
come, and traffic seldom asks in that moment."""
SPREAD = 0.12
"""Lengths of prompts lie so far around the one that is measured."""
ASK = {"do_remote_decode": True, "do_remote_prefill": False}
"""What a prefill engine is asked, so that it keeps its KV for another."""


def places(rounds: int) -> list[float]:
    """Evenly over -1 to 1, the middle ones last: what comes out of all of them is unbiased."""
    even = [2 * (number + 0.5) / rounds - 1 for number in range(rounds)]
    return sorted(even, key=lambda place: (-abs(place), place))


@dataclass
class Prober:
    """Asks one engine. `headers` open its port."""

    session: aiohttp.ClientSession
    url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311
    _count: itertools.count[int] = field(default_factory=itertools.count)

    def prompt(self, tokens: int) -> list[int]:
        """Token ids that were never asked for before."""
        return [self.chance.randrange(10, 251) for _ in range(tokens)]

    def near(self, tokens: int, place: float) -> list[int]:
        """A prompt of about so many tokens: `place` from -1 to 1 says where around them.

        Real prompts have a length each, and an engine takes longer for one that it has not seen
        lately: kernels are chosen, or built, by shape. One length over and over would hide that.
        """
        return self.prompt(max(1, round(tokens * (1 + SPREAD * place))))

    def body(self, prompt: Sequence[int], max_tokens: int, **more: Any) -> dict[str, Any]:
        """A completion of exactly so many tokens."""
        return {
            "model": self.model, "prompt": list(prompt), "max_tokens": max_tokens,
            "min_tokens": max_tokens, "ignore_eos": True, "temperature": 0, **more,
        }  # fmt: skip

    async def answer(self, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
        """Seconds until the whole answer, and the answer."""
        begun = time.perf_counter()
        async with self._post(body) as answer:
            text = await answer.text()
            self._check(answer.status, text)
            return time.perf_counter() - begun, json.loads(text)

    async def token_times(
        self, body: dict[str, Any], begun: asyncio.Event | None = None
    ) -> list[float]:
        """When each token of a stream came, by the clock; the begin is first.

        `begun` is set with the first token.
        """
        times = [time.perf_counter()]
        async with self._post({**body, "stream": True}) as answer:
            if answer.status != _OK:
                self._check(answer.status, await answer.text())
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    if b'"error"' in line and b'"choices"' not in line:
                        raise MeasurementFailed(f"the stream broke: {line.decode()[:200]}",
                                                place=self.url)  # fmt: skip
                    times.append(time.perf_counter())
                    if begun is not None:
                        begun.set()
        if len(times) == 1:
            raise MeasurementFailed(
                "a stream brought no token", place=self.url,
                cure="name an engine that streams completions, as vLLM does",
            )  # fmt: skip
        return times

    async def first_token(self, prompt: Sequence[int]) -> float:
        """Seconds until a stream's first token, of one; as a caller sees it."""
        times = await self.token_times(self.body(prompt, 1))
        return times[1] - times[0]

    async def handed_over(self, prompt: Sequence[int]) -> tuple[float, dict[str, Any]]:
        """Read the prompt for another engine: seconds, and what that one needs to fetch its KV.

        Raises:
            MeasurementFailed: This engine hands nothing over.
        """
        seconds, said = await self.answer(self.body(prompt, 1, kv_transfer_params=ASK))
        params = said.get("kv_transfer_params")
        if not params:
            raise MeasurementFailed(
                "the engine hands no KV over: no kv_transfer_params came back",
                place=self.url, cure="leave --decode-url out, or start it for P/D",
            )  # fmt: skip
        return seconds, params

    async def get(self, path: str) -> str:
        """The text of a route."""
        try:
            async with self.session.get(self.url + path, headers=self.headers) as answer:
                text = await answer.text()
                self._check(answer.status, text)
                return text
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise MeasurementFailed(
                f"the engine cannot be reached: {type(exc).__name__}", place=self.url + path
            ) from exc

    def _post(self, body: dict[str, Any]) -> Any:
        headers = {**self.headers, "x-request-id": f"baton-profile-{next(self._count)}"}
        return self.session.post(f"{self.url}/v1/completions", json=body, headers=headers)

    def _check(self, status: int, text: str) -> None:
        if status != _OK:
            raise MeasurementFailed(f"the engine answers {status}: {text[:200]}", place=self.url)
