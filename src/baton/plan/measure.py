"""Measures one engine over HTTP, and with a second one the handoff: what `profile.json` holds.

    prefill   a stream's first token by length, alone and four at once
    wake      the same after pauses: an engine that had nothing to do takes longer
    decode    a step by batch and context
    mixed     what a prompt costs answers that are running on the same engine
    handoff   how much later the first token comes when another engine writes it
    beside    what each of the two costs the other when both are busy
    traffic   requests as they come: how much slower, and how unevenly (`plan.calibrate`)

The first round of each shape is thrown away: it compiles, and a first handoff of a size is up to
three times slower. Of the others medians count, and of steps means. Rounds go over all shapes, so
that a machine whose speed drifts shows in all of them and not in one. Prompts whose first token is
timed lie around the length that is meant, each elsewhere (`Prober.near`). The engine must have
nothing else to do meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import aiohttp

from baton import __version__
from baton.errors import MeasurementFailed
from baton.plan.measure_mixed import mixed, schedules_ahead
from baton.plan.measure_pair import beside, handoff
from baton.plan.measure_traffic import TrafficAsked, in_traffic, warm_up
from baton.plan.probe import REST_S, SPREAD, Prober, places
from baton.plan.profile_file import (
    FORMAT,
    BesideFound,
    DecodePoint,
    EngineFacts,
    HandoffPoint,
    PrefillPoint,
    Profile,
    WakePoint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_TIMEOUT_S = 300.0
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
STEPS = 64
"""Steps of decode that are timed at least."""
_MIXED = 4
"""So many lengths, the shortest ones: the rest of the line is known from prompts alone."""
_FULL = 0.9
"""Share of the KV cache that is filled at most: beyond, sequences are preempted."""


@dataclass(frozen=True)
class Grid:
    """What is measured. Lengths in tokens; what does not fit the engine is left out."""

    lengths: tuple[int, ...] = (64, 256, 1024, 2048, 4096, 8192, 16384, 32768)
    prefill_batches: tuple[int, ...] = (1, 4)
    decode_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rounds: int = 5
    pauses_s: tuple[float, ...] = (0.1, 0.5, 2.0)
    """How long an engine is left alone before it is asked how soon it wakes."""
    traffic: TrafficAsked = field(default_factory=TrafficAsked)
    """To calibrate with."""
    longest: int | None = None
    warm: int = 800
    """Requests before it is measured, at most. A CPU engine that has just started takes up to half
    longer for long prompts."""

    def lengths_for(self, max_model_len: int | None) -> list[int]:
        """Those that fit, and nearly the longest that does."""
        limit = max_model_len or self.lengths[-1]
        # Prompts lie around their length, and answers come on top.
        limit = int((min(limit, self.longest or limit) - STEPS) * (1 - SPREAD))
        found = [length for length in self.lengths if length <= limit]
        if limit > 0 and (not found or limit > 1.5 * found[-1]):
            found.append(limit)
        return found


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
    # A connection that the server is about to close (uvicorn: after 5 s) must not be asked.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        prober = Prober(session, url.rstrip("/"), "", headers)
        models = json.loads(await prober.get("/v1/models"))["data"][0]
        prober.model = models["id"]
        longest = models.get("max_model_len")
        lengths = grid.lengths_for(longest)
        minimum = 2
        if len(lengths) < minimum:
            raise MeasurementFailed(
                f"prompts of {grid.longest or longest} tokens at most: two lengths cannot be "
                "measured",
                place=url, cure="start the engine with a larger max_model_len, or allow more",
            )  # fmt: skip
        version = json.loads(await prober.get("/version")).get("version", "unknown")
        capacity = _capacity(await prober.get("/metrics"))
        handed: tuple[HandoffPoint, ...] = ()
        found = BesideFound()
        try:
            await warm_up([prober], lengths, grid.warm, say)
            prefill = await first_tokens(prober, grid, lengths, say)
            wake = await _wake(prober, grid, lengths, say)
            decode = await _decode(prober, grid, lengths, (capacity, max_num_batched_tokens), say)
            together = await mixed(prober, lengths[:_MIXED], grid.rounds, say)
            ahead = await schedules_ahead(
                prober, together, max_num_batched_tokens, grid.rounds, say)  # fmt: skip
            if decode_url is not None:
                other = Prober(session, decode_url.rstrip("/"), prober.model, headers)
                step_s = min(point.step_s for point in decode)
                await warm_up([prober, other], lengths, grid.warm, say)
                handed, bytes_seen = await handoff(
                    prober, other, lengths, grid.rounds, step_s, wake, say)  # fmt: skip
                kv_bytes_per_token = bytes_seen or kv_bytes_per_token
                found = await beside(prober, other, lengths, grid.rounds, say)
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            raise MeasurementFailed(f"the engine is gone: {type(exc).__name__}", place=url) from exc
        facts = EngineFacts(
            model=prober.model,
            max_model_len=longest,
            kv_capacity_tokens=capacity,
            kv_bytes_per_token=kv_bytes_per_token,
            gpu=gpu,
            tensor_parallel_size=tensor_parallel_size,
            max_num_batched_tokens=max_num_batched_tokens,
            async_scheduling=ahead,
        )
        profile = Profile(
            format=FORMAT,
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"vllm": version, "baton": __version__},
            engine=facts,
            prefill=prefill,
            decode=decode,
            handoff=handed,
            mixed=together,
            wake=wake,
            beside=found,
        )
        if grid.traffic.seconds:
            try:
                engines = [prober, other] if handed else [prober]
                profile = await in_traffic(profile, engines, lengths, say, grid.traffic)
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                raise MeasurementFailed(
                    f"the engine is gone: {type(exc).__name__}", place=url
                ) from exc
    return profile


async def first_tokens(
    prober: Prober, grid: Grid, lengths: Sequence[int], say: Callable[[str], None]
) -> tuple[PrefillPoint, ...]:
    """By length and how many prompts come at once."""
    # One at a time also midway: between lengths the line bends.
    midway = [(a + b) // 2 for a, b in itertools.pairwise(lengths)]
    shapes = [
        (batch, tokens)
        for batch in grid.prefill_batches
        for tokens in (sorted([*lengths, *midway]) if batch == 1 else lengths)
        if batch == 1 or tokens <= lengths[-1] // 2
    ]
    seconds: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    for turn, place in enumerate((None, *places(2 * grid.rounds))):
        for batch, tokens in shapes:
            if (
                batch > 1 and turn and turn % 4 not in {1, 2}
            ):  # places come in pairs around a length
                continue
            await asyncio.sleep(REST_S)
            prompts = [prober.near(tokens, place or 0.0) for _ in range(batch)]
            took = max(await asyncio.gather(*(prober.first_token(one) for one in prompts)))
            if place is not None:
                seconds[batch, tokens].append(took)
    points = []
    for (batch, tokens), all_of_them in seconds.items():
        point = PrefillPoint(
            tokens=tokens, batch=batch, seconds=statistics.median(all_of_them),
            samples=len(all_of_them),
        )  # fmt: skip
        points.append(point)
        say(f"prefill {batch} x {tokens} tokens: {1e3 * point.seconds:.1f} ms")
    return tuple(points)


async def _wake(
    prober: Prober, grid: Grid, lengths: Sequence[int], say: Callable[[str], None]
) -> tuple[WakePoint, ...]:
    """At two lengths: what is slower by a time and what by a share are told apart so."""
    two = (lengths[0], lengths[min(2, len(lengths) - 1)])
    awake: dict[int, list[float]] = {tokens: [] for tokens in two}
    woken: dict[tuple[float, int], list[float]] = {}
    shapes = list(itertools.product(grid.pauses_s, two))
    # Every length once: what an engine takes longer for one that it has not seen is in both.
    everywhere = places(2 * grid.rounds * len(shapes))
    prober.chance.shuffle(everywhere)
    spots = iter(everywhere)
    for _ in range(grid.rounds):
        for pause_s, tokens in shapes:
            for pause, found in ((pause_s, woken.setdefault((pause_s, tokens), [])),
                                 (REST_S, awake[tokens])):  # fmt: skip
                await asyncio.sleep(pause)
                found.append(await prober.first_token(prober.near(tokens, next(spots))))
    usual = [statistics.median(awake[tokens]) for tokens in two]
    points = []
    for pause_s in grid.pauses_s:
        late = [statistics.median(woken[pause_s, tokens]) for tokens in two]
        fixed_s, share = wake_line(usual, late)
        points.append(WakePoint(pause_s=pause_s, fixed_s=fixed_s, share=share))
        say(f"after a pause of {pause_s:g} s: {1e3 * (late[0] - usual[0]):.1f} ms more for "
            f"{two[0]} tokens, {1e3 * (late[1] - usual[1]):.1f} ms for {two[1]}")  # fmt: skip
    return tuple(points)


def wake_line(usual: Sequence[float], late: Sequence[float]) -> tuple[float, float]:
    """(seconds, share) by which two times became longer; neither is negative."""
    more = [max(b - a, 0.0) for a, b in zip(usual, late, strict=True)]
    if usual[1] > usual[0] and more[1] > more[0]:
        share = (more[1] - more[0]) / (usual[1] - usual[0])
        if more[0] >= share * usual[0]:
            return more[0] - share * usual[0], share
        return 0.0, sum(more) / sum(usual)
    return sum(more) / len(more), 0.0


async def _decode(
    prober: Prober, grid: Grid, lengths: Sequence[int], limits: tuple[int | None, int],
    say: Callable[[str], None],
) -> tuple[DecodePoint, ...]:  # fmt: skip
    capacity, budget = limits
    room = _FULL * capacity if capacity else float("inf")
    shapes = [
        (batch, tokens)
        for batch, tokens in itertools.product(grid.decode_batches, (lengths[0], lengths[-1] // 2))
        if batch == 1 or batch * (tokens + answer_tokens(batch, tokens, budget)) <= room
    ]
    steps = await step_times(prober, shapes, grid.rounds, budget)
    points = []
    for (batch, tokens), found in steps.items():
        if not found:
            continue
        context = tokens + answer_tokens(batch, tokens, budget) - STEPS // 2
        point = DecodePoint(
            batch=batch, context=context, step_s=middle_mean(found), samples=len(found)
        )
        points.append(point)
        say(f"decode {batch} x {context} tokens: {1e3 * point.step_s:.2f} ms a step")
    if not points:
        raise MeasurementFailed("no step of decode could be measured", place=prober.url)
    return tuple(points)


async def step_times(
    prober: Prober, shapes: Sequence[tuple[int, int]], rounds: int, budget: int
) -> Mapping[tuple[int, int], list[float]]:
    """Seconds of a step with so many sequences of so many tokens, one for each round."""
    found: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    for _ in range(rounds):
        for batch, tokens in shapes:
            bodies = [
                prober.body(prober.prompt(tokens), answer_tokens(batch, tokens, budget))
                for _ in range(batch)
            ]
            streams = await asyncio.gather(*(prober.token_times(body) for body in bodies))
            step_s = together_s(streams)
            if step_s is not None:
                found[batch, tokens].append(step_s)
    return found


def answer_tokens(batch: int, tokens: int, budget: int) -> int:
    """So long that the first answer is still written `STEPS` steps after the last one began.

    Prompts are read one after the other: in steps of `budget` tokens at most, and seldom two that
    came one by one in one step. Who was first writes a token in each of them.
    """
    return STEPS + batch + math.ceil(batch * tokens / budget)


def together_s(streams: Sequence[Sequence[float]]) -> float | None:
    """Seconds a step, while all streams write: the slope of each one's times there, on average.

    A line through all its times and not its ends: a stream that hangs for a while and then brings
    many tokens at once says little then. Prompts have all been read by then; what they take is no
    part of it. None where hardly a step was together. `streams`: when each was asked, then each
    token's time, by one clock.
    """
    begun, over = max(times[1] for times in streams), min(times[-1] for times in streams)
    slopes = []
    for times in streams:
        inside = [at for at in times[1:] if begun <= at <= over]
        if len(inside) < STEPS // 2:
            continue
        slopes.append(statistics.linear_regression(range(len(inside)), inside).slope)
    return statistics.mean(slopes) if slopes else None


def middle_mean(values: Sequence[float]) -> float:
    """The mean without the extremes, where there are enough.

    A median would leave out hiccups that every answer has its share of.
    """
    enough = 5
    ordered = sorted(values)
    return statistics.mean(ordered[1:-1] if len(ordered) >= enough else ordered)


def _capacity(page: str) -> int | None:
    """Tokens of KV that the engine has room for."""
    found = _CACHE_CONFIG.search(page)
    if found is None:
        return None
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found.group(1)))
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else None
