"""The work of `baton bench compare`: starts engines (`deploy`), has them measured (`bench`)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from baton.bench.compare import Comparison, Side, Tried
    from baton.bench.compare_file import CompareFile
    from baton.bench.generator import Generator
    from baton.bench.run import Measured
    from baton.bench.traffic import Planned
    from baton.deploy.bench_stacks import Engines

_TUNING = "tuning"


class Comparer:
    """Measures a side when asked, on engines that are up already or are started for it.

    Args:
        asked: The file.
        planned: Its traffic.
        engines: How engines are started.
        generator: Sends the load.
    """

    def __init__(
        self,
        asked: CompareFile,
        planned: list[Planned],
        engines: Engines,
        generator: Generator,
    ) -> None:
        self._asked = asked
        self._planned = planned
        self._engines = engines
        self._generator = generator
        self._up: dict[Side, str] = {}
        self.chunk: int | None = None

    async def tune(self) -> list[Tried]:
        """Measure the baseline once with each size of prefill chunks, and keep the best."""
        from baton.bench.compare import Tried, tuned
        from baton.deploy.bench_stacks import Stack

        tried = []
        for chunk in (None, *self._asked.baseline.chunk_tokens):
            name = "the engine's own" if chunk is None else f"{chunk} tokens"
            _tell(f"baseline with prefill chunks of {name}")
            async with Stack(self._engines.of("together", chunk), "together") as stack:
                measured = await self._measure_at(stack.endpoint, f"{_TUNING}-{chunk}")
            tried.append(Tried(chunk, measured))
        self.chunk = tuned(tried).chunk_tokens
        return tried

    async def rounds(self) -> Comparison:
        """Measure both sides in turn."""
        from baton.bench.compare import SIDES, compare
        from baton.deploy.bench_stacks import Stack

        async with contextlib.AsyncExitStack() as both:
            if self._engines.side_by_side:
                for side in SIDES:
                    _tell(f"starting the engines of the side {side}")
                    stack = Stack(self._of(side), side)
                    self._up[side] = (await both.enter_async_context(stack)).endpoint
            return await compare(self._measure, rounds=self._asked.rounds, tell=_tell_round)

    def _of(self, side: Side) -> Any:
        return self._engines.of(side, self.chunk if side == "together" else None)

    async def _measure(self, side: Side, number: int) -> Measured:
        from baton.deploy.bench_stacks import Stack

        if (endpoint := self._up.get(side)) is not None:
            return await self._measure_at(endpoint, f"round-{number}", side)
        async with Stack(self._of(side), side) as stack:
            return await self._measure_at(stack.endpoint, f"round-{number}", side)

    async def _measure_at(self, url: str, salt: str, label: str = "") -> Measured:
        from baton.bench.prompts import look_at
        from baton.bench.run import measure
        from baton.bench.traffic import fitted
        from baton.errors import LoadRefused

        endpoint = await look_at(url)
        fit, left_out = fitted(self._planned, endpoint.context)
        if left_out:
            raise LoadRefused(
                f"{left_out} of {len(self._planned)} requests do not fit the model's context of "
                f"{endpoint.context} tokens",
                cure="shorter input and output, so that both sides get all of the traffic",
            )
        return await measure(
            endpoint,
            fit,
            self._generator,
            slo=self._asked.slo,
            warmup_s=self._asked.traffic.warmup_s,
            salt=salt,
            label=label,
        )


async def compare_file(asked: CompareFile, options: dict[str, Any]) -> None:
    """Do what the file asks for, and write the reports."""
    from baton.bench import report
    from baton.bench.generator import VllmGenerator
    from baton.cli.bench import write

    file: Path = options["file"]
    planned, notes = asked.planned(file.parent)
    engines = await asyncio.to_thread(_engines, asked, file, options["on"])
    started = time.monotonic()
    async with VllmGenerator() as generator:
        comparer = Comparer(asked, planned, engines, generator)
        tuning = await comparer.tune()
        found = await comparer.rounds()
    found.tuning, found.chosen_chunk = tuning, comparer.chunk
    found.facts = {
        **engines.facts(),
        "requests_a_round": len(planned),
        "rounds": asked.rounds,
        "targets": {k: v for k, v in asked.slo.model_dump().items() if v is not None} or "none",
        "took_s": round(time.monotonic() - started, 1),
    }
    written = report.Report(
        "Without and with disaggregation",
        report.compare_lead(found),
        report.compare_tables(found),
        [*report.compare_notes(found), *notes],
        report.compare_plots(found, asked.slo),
        {"traffic": asked.traffic.model_dump(mode="json"), **found.as_data(), "notes": notes},
    )
    write(options, written)


def _engines(asked: CompareFile, file: Path, on: str | None) -> Engines:
    from baton.deploy.bench_stacks import SimulatedEngines, VllmEngines

    if asked.app is None:
        options = {k.replace("_", "-"): v for k, v in asked.simulated.model_dump().items()}
        return SimulatedEngines(asked.prefill, asked.decode, options)
    from baton.cli.up import checked_file
    from baton.errors import ConfigRefused
    from baton.spec.machine import Machine

    checked = checked_file(str(file.parent / asked.app), on=on, machine=Machine.here())
    apps = [app for app in checked.applications if app.has_rules]
    if len(apps) != 1:
        raise ConfigRefused(
            f"the file holds {len(apps)} P/D applications, and one is compared at a time",
            place=checked.path,
        )
    return VllmEngines(apps[0])


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _tell_round(side: Side, number: int, measured: Measured) -> None:
    f = measured.figures
    itl = "-" if f.itl is None else f"{f.itl.at(99) * 1000:.1f} ms"
    ttft = "-" if f.ttft is None else f"{f.ttft.at(50) * 1000:.1f} ms"
    _tell(f"round {number + 1}, {side}: ITL p99 {itl}, TTFT p50 {ttft}, {f.failed} failed")
