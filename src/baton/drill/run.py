"""Plays scenarios one after the other, each on a stage that is whole again."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp

from baton.drill.asks import mix, undisturbed
from baton.drill.client import Client
from baton.drill.kv import Gauges, Unreadable
from baton.drill.stage import NothingProved, Result, Stage
from baton.errors import BatonError, DrillFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from baton.drill.asks import Case
    from baton.drill.injector import Injector
    from baton.drill.scenarios import Scenario


@dataclass(frozen=True)
class Options:
    """How large a drill is.

    Args:
        streams: Streams that are open when a decode engine dies.
        spare: How many more are kept going for that, as a share.
        seed: Of the requests and of all that is random.
        cases: Different requests.
        prompt_words: The shortest and the longest prompt.
        tokens: The smallest and the largest `max_tokens`.
        headers: Of every request; a key, perhaps.
    """

    streams: int = 50
    spare: float = 0.4
    seed: int = 1
    cases: int = 36
    prompt_words: tuple[int, int] = (30, 150)
    tokens: tuple[int, int] = (30, 90)
    headers: Mapping[str, str] = field(default_factory=dict)


async def run(
    injector: Injector,
    scenarios: Sequence[Scenario],
    options: Options,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Play the scenarios; `tell` hears of each before it begins.

    Raises:
        DrillFailed: The endpoint does not answer rightly before anything is broken.
    """
    tell("asking every request once, undisturbed")
    cases = await _cases(injector, options)
    results = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        gauges = Gauges(session, injector.engine_headers)
        for scenario in scenarios:
            stage = Stage(
                injector,
                gauges,
                cases,
                name=scenario.name,
                streams=options.streams,
                spare=options.spare,
                seed=options.seed,
                headers=options.headers,
            )
            results.append(stage.result)
            stage.result.skipped = await _why_not(injector, scenario) or ""
            if not stage.result.skipped:
                tell(f"{scenario.name}: {scenario.story}")
                await _play(stage, scenario)
    return results


async def _play(stage: Stage, scenario: Scenario) -> None:
    started = time.monotonic()
    try:
        await scenario.act(stage)
    except (NothingProved, Unreadable, BatonError, aiohttp.ClientError, TimeoutError) as exc:
        stage.result.problem = str(exc) or type(exc).__name__
    await stage.conclude()
    try:
        await stage.injector.restore()
    except BatonError as exc:
        stage.result.problem = stage.result.problem or f"not whole again afterwards: {exc}"
    stage.note("took_s", time.monotonic() - started)


async def _why_not(injector: Injector, scenario: Scenario) -> str | None:
    """Why the scenario cannot be played here; None when it can."""
    for fault in scenario.needs:
        if (reason := injector.cannot(fault)) is not None:
            return reason
    roles = Counter(engine.role for engine in await injector.engines())
    for role in scenario.others:
        if roles[role] < 2:  # noqa: PLR2004
            return f"needs a second {role} engine that lives on; {roles[role]} is there"
    return None


async def _cases(injector: Injector, options: Options) -> list[Case]:
    async with Client([injector.endpoint], headers=options.headers) as client:
        try:
            models = await client.get_json("/v1/models")
            model = str(models["data"][0]["id"])
        except (aiohttp.ClientError, TimeoutError, OSError, LookupError, TypeError) as exc:
            raise DrillFailed(
                f"the endpoint names no model: {type(exc).__name__} {exc}",
                place=f"{injector.endpoint}/v1/models",
                cure="check that the deployment is up: baton status",
            ) from exc
        asks = mix(
            model,
            count=options.cases,
            seed=options.seed,
            prompt_words=options.prompt_words,
            tokens=options.tokens,
        )
        return await undisturbed(client, asks)
