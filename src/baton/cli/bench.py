"""`baton bench URL`: an endpoint under load; `baton bench compare FILE`: what P/D gains."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from baton.cli.common import INTERRUPTED, check_folders, key_of, unwind_on_sigterm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.bench.prompts import Endpoint
    from baton.bench.report import Report
    from baton.bench.run import Measured
    from baton.bench.sweep import Step
    from baton.bench.traffic import Planned
    from baton.spec.schema import Slo

_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
_POSITIVE = click.FloatRange(0, min_open=True)


_OUTPUTS = (
    click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write all figures."),
    click.option("--markdown", "markdown_file", type=_FILE, metavar="FILE", help="Write a report."),
    click.option("--html", "html_file", type=_FILE, metavar="FILE", help="The same with plots."),
)


def _with_outputs(command: Any) -> Any:
    for option in reversed(_OUTPUTS):
        command = option(command)
    return command


@click.command("bench", epilog="`baton bench compare FILE` measures P/D against plain engines.")
@click.argument("url")
@click.option("--model", metavar="NAME", help="The model to ask; the first one listed if absent.")
@click.option("--rate", type=_POSITIVE, default=2.0, show_default=True, help="Requests a second.")
@click.option("--duration", "duration_s", type=_POSITIVE, default=60.0, show_default=True)
@click.option(
    "--warmup", "warmup_s", type=click.FloatRange(0), default=5.0, show_default=True,
    help="Seconds at the beginning whose requests do not count.",
)  # fmt: skip
@click.option("--input", "inputs", default="512", show_default=True, metavar="TOKENS",
              help="Prompts: 512, 256-1024 (uniform) or 512~128 (normal).")  # fmt: skip
@click.option("--output", "outputs", default="128", show_default=True, metavar="TOKENS",
              help="Answers, in the same way.")  # fmt: skip
@click.option("--prefix-tokens", type=click.IntRange(0), default=0, show_default=True,
              help="Tokens at the beginning that prompts share.")  # fmt: skip
@click.option("--prefixes", type=click.IntRange(1), default=1, show_default=True,
              help="How many different beginnings.")  # fmt: skip
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Replay a trace (Mooncake's or BurstGPT's columns) instead.")  # fmt: skip
@click.option("--requests", type=click.IntRange(1), metavar="N", help="Of a trace: the first N.")
@click.option("--max-pause", "max_pause_s", type=_POSITIVE, metavar="S",
              help="Of a trace: shorten longer pauses to S.")  # fmt: skip
@click.option("--speed", type=_POSITIVE, default=1.0, show_default=True,
              help="Of a trace: 2 plays it in half the time.")  # fmt: skip
@click.option("--slo-ttft", "slo_ttft_s", type=_POSITIVE, metavar="S", help="Target for TTFT.")
@click.option("--slo-tpot", "slo_tpot_s", type=_POSITIVE, metavar="S", help="Target for TPOT.")
@click.option("--sweep", is_flag=True,
              help="Raise the rate, from --rate, until the targets break.")  # fmt: skip
@click.option("--attainment", type=click.FloatRange(0, 1, min_open=True), default=0.95,
              show_default=True, help="Share of requests that must meet them.")  # fmt: skip
@click.option("--expect-disaggregated/--any-route", "expected", default=None,
              help="Fail when prefill served nobody; if absent, as the gateway says.")  # fmt: skip
@click.option("--patience", "patience_s", type=_POSITIVE, default=300.0, show_default=True,
              help="Seconds for the last answers once all requests have left.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Of all that is random.")
@click.option("--api-key-env", metavar="NAME", help="Variable with a key for the endpoint.")
@_with_outputs
def _endpoint(**options: Any) -> None:
    """Load the endpoint URL and say how long its callers wait.

    Exit status 0 when it was measured, 1 when the measurement means nothing, 2 for a call, a trace
    or an endpoint that cannot be.
    """
    from baton.bench.traffic import Class, Lengths

    url = options["url"]
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is no URL", param_hint="URL")
    if options["sweep"] and (options["trace_file"] or not _slo(options).model_fields_set):
        raise click.UsageError("--sweep wants --slo-ttft or --slo-tpot, and no --trace")
    _check_files(options)
    # Drawn or read before anything is asked: a wrong trace fails at once.
    one = Class(
        options["rate"],
        Lengths.of(options["inputs"]),
        Lengths.of(options["outputs"]),
        options["prefix_tokens"],
        options["prefixes"],
    )
    planned, notes = _planned(options, one)
    _until_done(_measure_endpoint(options, one, planned, notes))


def _until_done(work: Any) -> None:
    unwind_on_sigterm()
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        click.echo("interrupted: everything that the bench started has been ended", err=True)
        sys.exit(INTERRUPTED)


def _slo(options: dict[str, Any]) -> Slo:
    from baton.spec.schema import Slo

    given = {name: options[f"slo_{name}"] for name in ("ttft_s", "tpot_s")}
    return Slo(**{name: value for name, value in given.items() if value is not None})


def _check_files(options: dict[str, Any]) -> None:
    check_folders(*(options[name] for name in ("json_file", "markdown_file", "html_file")))


def _planned(options: dict[str, Any], one: Any) -> tuple[list[Planned], list[str]]:
    from baton.bench.trace import read
    from baton.bench.traffic import poisson

    if options["trace_file"] is not None:
        trace = read(
            options["trace_file"],
            requests=options["requests"],
            max_pause_s=options["max_pause_s"],
            speed=options["speed"],
        )
        return trace.planned, trace.notes
    duration_s = options["warmup_s"] + options["duration_s"]
    return poisson([one], duration_s=duration_s, seed=options["seed"]), []


def _headers(options: dict[str, Any]) -> dict[str, str]:
    key = key_of(options["api_key_env"])
    return {} if key is None else {"authorization": f"Bearer {key}"}


async def _measure_endpoint(
    options: dict[str, Any], one: Any, planned: list[Planned], notes: list[str]
) -> None:
    from baton.bench.generator import VllmGenerator
    from baton.bench.prompts import look_at
    from baton.bench.run import check_disaggregated, measure
    from baton.bench.served import has_prefill
    from baton.bench.sweep import sweep
    from baton.bench.traffic import poisson

    headers, slo = _headers(options), _slo(options)
    endpoint = await look_at(options["url"], model=options["model"], headers=headers)
    expected = options["expected"]
    if expected is None:
        expected = await has_prefill(endpoint.url, headers)
    async with VllmGenerator(options["patience_s"]) as generator:
        if not options["sweep"]:
            fit = _fit(endpoint, planned, notes)
            click.echo(f"sending {len(fit)} requests in {fit[-1].at_s:.0f} s", err=True)
            measured = await measure(
                endpoint, fit, generator, slo=slo, warmup_s=options["warmup_s"]
            )
            _write_run(options, measured, notes)
            if expected:
                check_disaggregated(measured)
            return

        async def measure_at(rate: float) -> Measured:
            duration_s = options["warmup_s"] + options["duration_s"]
            drawn = poisson([replace(one, rate=rate)], duration_s=duration_s, seed=options["seed"])
            fit = _fit(endpoint, drawn, [])
            found = await measure(
                endpoint, fit, generator, slo=slo, warmup_s=options["warmup_s"],
                label=f"{rate:.3g} req/s",
            )  # fmt: skip
            if expected:
                check_disaggregated(found)
            return found

        def tell(step: Step) -> None:
            click.echo(f"{step.rate:.3g} req/s: {'held' if step.held else 'broke'}", err=True)

        steps = await sweep(
            measure_at, start=options["rate"], attainment=options["attainment"], tell=tell
        )
    _write_sweep(options, steps)


def _fit(endpoint: Endpoint, planned: list[Planned], notes: list[str]) -> list[Planned]:
    from baton.bench.traffic import fitted
    from baton.errors import LoadRefused

    fit, left_out = fitted(planned, endpoint.context)
    if not fit:
        raise LoadRefused(
            f"no request fits the model's context of {endpoint.context} tokens",
            cure="shorter --input and --output",
        )
    if left_out:
        notes.append(
            f"{left_out} requests do not fit the context of {endpoint.context} tokens: left out"
        )
    return fit


def _write_run(options: dict[str, Any], measured: Measured, notes: list[str]) -> None:
    from baton.bench import report

    written = report.Report(
        f"Load on {options['url']}",
        report.run_lead(measured),
        report.run_tables(measured),
        [*report.run_notes(measured), *notes],
        report.run_plots([("all requests", [measured])], _slo(options)),
        {"url": options["url"], **measured.as_data(), "notes": notes},
    )
    write(options, written)


def _write_sweep(options: dict[str, Any], steps: Sequence[Step]) -> None:
    from baton.bench import report
    from baton.bench.sweep import best

    found = best(list(steps))
    lead = (
        f"The targets break at the first rate already ({steps[0].rate:.3g} requests/s)."
        if found is None
        else f"The targets hold up to {found.rate:.3g} requests/s."
    )
    if found is not None and found is steps[-1]:
        lead = f"The targets held at every rate that was tried, up to {found.rate:.3g} requests/s."
    data = [
        {"rate": s.rate, "held": s.held, "problem": s.problem}
        | ({} if s.measured is None else s.measured.as_data())
        for s in steps
    ]
    runs = [(f"{s.rate:.3g} req/s", [s.measured]) for s in steps if s.measured is not None]
    step = -(-len(runs) // 6)  # a plot tells six lines apart; the last rate is always one of them
    runs = runs[::-1][::step][::-1] if runs else []
    written = report.Report(
        f"Sweep on {options['url']}",
        lead,
        [("Rates", report.sweep_table(steps))],
        [],
        [*report.sweep_plots(steps), *report.run_plots(runs, _slo(options))],
        {"url": options["url"], "best_rate": None if found is None else found.rate, "steps": data},
    )
    write(options, written)


def write(options: dict[str, Any], report: Report) -> None:
    """Print the report, and write the files that were asked for."""
    text = report.markdown()
    click.echo(text, nl=False)
    if (file := options["markdown_file"]) is not None:
        file.write_text(text, encoding="utf-8")
    if (file := options["html_file"]) is not None:
        file.write_text(report.html(), encoding="utf-8")
    if (file := options["json_file"]) is not None:
        file.write_text(json.dumps(report.data, indent=1) + "\n", encoding="utf-8")


@click.command("compare")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--on", type=click.Choice(["cpu"]), help="Fit a GPU file to this machine's CPU.")
@_with_outputs
def _compare(**options: Any) -> None:
    """Measure the traffic of FILE without and with disaggregation, on engines of its own.

    Exit status 0 whoever wins; 1 when the comparison means nothing, 2 for a FILE that cannot be.
    """
    from baton.bench.compare_file import load
    from baton.cli.compare import compare_file

    _check_files(options)
    asked = load(options["file"])
    _until_done(compare_file(asked, options))


class _Bench(click.Command):
    """`compare` as the first word is a verb of its own; all else is for the endpoint's."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if args[:1] == ["compare"]:
            return _compare.make_context(f"{info_name} compare", args[1:], parent, **extra)
        return _endpoint.make_context(info_name, args, parent, **extra)


command = _Bench("bench")
