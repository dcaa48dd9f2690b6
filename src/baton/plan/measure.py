"""Measures one engine over HTTP: prefill by length and batch, decode by batch and context, handoff.

Prompts are random token ids between 10 and 250, which every vocabulary of bytes or more has, and
never the same twice, so that no prefix cache answers. The first round of each shape is thrown away:
it compiles, and a first handoff of a size is up to three times slower. Medians of the others count.
The engine must have nothing else to do meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiohttp

from baton import __version__
from baton.errors import MeasurementFailed
from baton.plan.profile_file import (
    FORMAT,
    DecodePoint,
    EngineFacts,
    HandoffPoint,
    PrefillPoint,
    Profile,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_OK = 200
_TIMEOUT_S = 300.0
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_BYTES = re.compile(r"^vllm:nixl_bytes_transferred_sum(?:\{.*\})? (\S+)", re.MULTILINE)
_METRICS_WAIT_S = 10.0
DECODE_STEPS = 32
_FEWEST = 4


@dataclass(frozen=True)
class Grid:
    """What is measured. Lengths in tokens; what does not fit the engine is left out."""

    lengths: tuple[int, ...] = (64, 256, 1024, 2048, 4096, 8192, 16384, 32768)
    prefill_batches: tuple[int, ...] = (1, 4)
    decode_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rounds: int = 3
    pause_s: float = 0.5
    """How long an engine is left alone before it is asked how soon it wakes."""
    longest: int | None = None

    def lengths_for(self, max_model_len: int | None) -> list[int]:
        """Those that fit, and nearly the longest that does."""
        limit = max_model_len or self.lengths[-1]
        limit = min(limit, self.longest or limit) - 2 * DECODE_STEPS
        found = [length for length in self.lengths if length <= limit]
        if limit > 0 and (not found or limit > 1.5 * found[-1]):
            found.append(limit)
        return found


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

    async def token_times(self, body: dict[str, Any]) -> list[float]:
        """When each token of a stream came, by the clock; the begin is first."""
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
        return times

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


async def measure(
    url: str, *, decode_url: str | None = None, secret: str | None = None, grid: Grid | None = None,
    gpu: str | None = None, tensor_parallel_size: int = 1, max_num_batched_tokens: int = 2048,
    kv_bytes_per_token: float | None = None, say: Callable[[str], None] = lambda _: None,
) -> Profile:  # fmt: skip
    """Measure an engine, and with `decode_url` the handoff to another.

    Raises:
        MeasurementFailed: An engine cannot be reached, or refuses.
    """
    grid = grid or Grid()
    headers = {"x-baton-engine-secret": secret} if secret else {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        prober = Prober(session, url.rstrip("/"), "", headers)
        models = json.loads(await prober.get("/v1/models"))["data"][0]
        prober.model = models["id"]
        longest = models.get("max_model_len")
        lengths = grid.lengths_for(longest)
        minimum = 2
        if len(lengths) < minimum:
            raise MeasurementFailed(
                f"max_model_len is {longest}: two lengths cannot be measured", place=url
            )
        try:
            prefill = await _prefill(prober, grid, lengths, say)
            wake_s = await _wake(prober, grid, prefill[0], say)
            decode = await _decode(prober, grid, lengths, longest, say)
            handoff: tuple[HandoffPoint, ...] = ()
            if decode_url is not None:
                other = Prober(session, decode_url.rstrip("/"), prober.model, headers)
                handoff, bytes_seen = await _handoff(prober, other, grid, lengths, decode, say)
                kv_bytes_per_token = bytes_seen or kv_bytes_per_token
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise MeasurementFailed(f"the engine is gone: {type(exc).__name__}", place=url) from exc
        facts = EngineFacts(
            model=prober.model,
            max_model_len=longest,
            kv_capacity_tokens=_capacity(await prober.get("/metrics")),
            kv_bytes_per_token=kv_bytes_per_token,
            gpu=gpu,
            tensor_parallel_size=tensor_parallel_size,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        version = json.loads(await prober.get("/version")).get("version", "unknown")
    return Profile(
        format=FORMAT,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"vllm": version, "baton": __version__},
        engine=facts,
        prefill=prefill,
        decode=decode,
        handoff=handoff,
        wake_s=wake_s,
    )


async def _prefill(
    prober: Prober, grid: Grid, lengths: Sequence[int], say: Callable[[str], None]
) -> tuple[PrefillPoint, ...]:
    points = []
    for batch, tokens in itertools.product(grid.prefill_batches, lengths):
        if batch > 1 and tokens > lengths[-1] // 2:
            continue
        seconds = []
        for _ in range(grid.rounds + 1):
            begun = time.perf_counter()
            await asyncio.gather(
                *(prober.answer(prober.body(prober.prompt(tokens), 1)) for _ in range(batch))
            )
            seconds.append(time.perf_counter() - begun)
        points.append(_prefill_point(tokens, batch, seconds[1:]))
        say(f"prefill {batch} x {tokens} tokens: {1e3 * points[-1].seconds:.1f} ms")
    return tuple(points)


def _prefill_point(tokens: int, batch: int, seconds: Sequence[float]) -> PrefillPoint:
    return PrefillPoint(
        tokens=tokens, batch=batch, seconds=statistics.median(seconds), samples=len(seconds)
    )


async def _wake(
    prober: Prober, grid: Grid, shortest: PrefillPoint, say: Callable[[str], None]
) -> float:
    """The same prompt length as `shortest`, but after a pause: engines and CPUs fall asleep."""
    seconds = []
    for _ in range(2 * grid.rounds):
        await asyncio.sleep(grid.pause_s)
        body = prober.body(prober.prompt(shortest.tokens), 1)
        seconds.append((await prober.answer(body))[0])
    wake_s = max(statistics.median(seconds) - shortest.seconds, 0.0)
    say(f"after a pause of {grid.pause_s:g} s: {1e3 * wake_s:.1f} ms more")
    return wake_s


async def _decode(
    prober: Prober, grid: Grid, lengths: Sequence[int], longest: int | None,
    say: Callable[[str], None],
) -> tuple[DecodePoint, ...]:  # fmt: skip
    points = []
    for batch, tokens in itertools.product(grid.decode_batches, (lengths[0], lengths[-1] // 2)):
        steps = DECODE_STEPS
        room = (longest or 1 << 30) - tokens
        found: list[float] = []
        while not found and steps <= min(room, 16 * DECODE_STEPS):
            streams = await asyncio.gather(
                *(prober.token_times(prober.body(prober.prompt(tokens), steps))
                  for _ in range(batch))
            )  # fmt: skip
            found = gaps_together(streams)
            used, steps = steps, 2 * steps
        if not found:
            continue
        point = DecodePoint(
            batch=batch, context=tokens + used // 2, step_s=statistics.median(found),
            samples=len(found),
        )  # fmt: skip
        points.append(point)
        say(f"decode {batch} x {point.context} tokens: {1e3 * point.step_s:.2f} ms a step")
    if not points:
        raise MeasurementFailed("no step of decode could be measured", place=prober.url)
    return tuple(points)


def gaps_together(streams: Sequence[Sequence[float]]) -> list[float]:
    """Of each stream the mean gap between tokens while all of them were running.

    Only the second half of that time counts, and only if it all took as long as the streams took to
    begin: tokens that were held up by the others' prompts come in bursts. Nothing otherwise.
    """
    if any(len(times) < _FEWEST for times in streams):
        return []
    firsts = [times[1] for times in streams]
    begins, ends = max(firsts), min(times[-1] for times in streams)
    if ends - begins < begins - min(times[0] for times in streams):
        return []
    middle = (begins + ends) / 2
    gaps = []
    for times in streams:
        late = [at for at in times[1:] if middle <= at <= ends]
        if len(late) < _FEWEST:
            return []
        gaps.append((late[-1] - late[0]) / (len(late) - 1))
    return gaps


async def _handoff(  # noqa: PLR0917 - two engines, what to ask, what is known
    prefill: Prober, decode: Prober, grid: Grid, lengths: Sequence[int],
    steps: Sequence[DecodePoint], say: Callable[[str], None],
) -> tuple[tuple[HandoffPoint, ...], float | None]:  # fmt: skip
    """Points, and the bytes a token by NIXL's own counter where the engine has it."""
    alone_s = min((p.step_s for p in steps if p.batch == 1), default=0.0)
    before, moved = _bytes(await decode.get("/metrics")) or 0.0, 0
    points = []
    for tokens in lengths:
        seconds = []
        for _ in range(grid.rounds + 1):
            prompt = prefill.prompt(tokens)
            body = prefill.body(prompt, 1, kv_transfer_params=_ASK)
            params = (await prefill.answer(body))[1].get("kv_transfer_params")
            if not params:
                raise MeasurementFailed(
                    "the engine hands no KV over: no kv_transfer_params came back",
                    place=prefill.url, cure="leave --decode-url out, or start it for P/D",
                )  # fmt: skip
            times = await decode.token_times(decode.body(prompt, 2, kv_transfer_params=params))
            seconds.append(max(times[1] - times[0] - alone_s, 0.0))
            moved += tokens
        points.append(
            HandoffPoint(
                tokens=tokens, seconds=statistics.median(seconds[1:]), samples=len(seconds) - 1
            )
        )
        say(f"handoff {tokens} tokens: {1e3 * points[-1].seconds:.1f} ms")
    return tuple(points), await _bytes_a_token(decode, before, moved)


_ASK = {"do_remote_decode": True, "do_remote_prefill": False}


async def _bytes_a_token(decode: Prober, before: float, tokens: int) -> float | None:
    """The counter is written a while after a transfer: wait until it stands still."""
    last, deadline = before, time.monotonic() + _METRICS_WAIT_S
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        now = _bytes(await decode.get("/metrics")) or before
        if now > before and now == last:
            return (now - before) / tokens
        last = now
    return None


def _bytes(page: str) -> float | None:
    found = _BYTES.findall(page)
    return sum(float(value) for value in found) if found else None


def _capacity(page: str) -> int | None:
    """Tokens of KV that the engine has room for."""
    found = _CACHE_CONFIG.search(page)
    if found is None:
        return None
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found.group(1)))
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else None
