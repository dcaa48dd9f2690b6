"""`baton plan`: which engines, how many, on what, and whether to disaggregate at all.

Exit status 0: a layout keeps the promise. 1: none does (the output says by how much, and what
would). 2: nothing could be planned from what was given. 130: it was interrupted.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from baton.cli.common import claim_file, interruptible, write_whole
from baton.errors import TrafficRefused

if TYPE_CHECKING:
    from baton.plan.bounds import Promise
    from baton.plan.devices import Hardware
    from baton.plan.judge import Plan
    from baton.plan.layouts import EngineKind
    from baton.plan.model import ModelShape
    from baton.plan.profile_file import Profile
    from baton.plan.traffic import Traffic
    from baton.plan.tried import Tried

UNMET = 1
_DEAREST = 1e6
_LARGE = 20_000
"""Requests whose simulation takes more than a second."""
_PATIENCE_S = 5.0


class _Number(click.FloatRange):
    """A range that NaN is outside of: click lets it into each."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is no number", param, ctx)
        return number


@click.command()
@click.option("--model", "source", required=True, help="Hugging Face id, folder, or config.json.")
@click.option("--gpu", "gpus", multiple=True, metavar="NAME", help="H100, p5, p5.48xlarge, …")
@click.option("--trace", type=click.Path(path_type=Path), help="JSON Lines or CSV of requests.")
@click.option("--isl", type=int, help="Tokens of a prompt (mean).")
@click.option("--osl", type=int, help="Tokens of an answer (mean).")
@click.option("--rate", type=float, help="Requests a second.")
@click.option("--spread", type=float, default=0.0, help="Of lengths: deviation over mean.")
@click.option("--slo-ttft", "ttft_s", type=_Number(0, min_open=True), required=True,
              help="Seconds to the first token.")  # fmt: skip
@click.option("--slo-tpot", "tpot_s", type=_Number(0, min_open=True), required=True,
              help="Seconds a token after it.")  # fmt: skip
@click.option("--percentile", type=_Number(1, 99.9), default=90.0, show_default=True,
              help="Share of requests that must keep each.")  # fmt: skip
@click.option("--profile", "profile_path", type=click.Path(path_type=Path),
              help="What `baton profile` measured, instead of published figures.")  # fmt: skip
@click.option("--any-versions", is_flag=True, help="Take a profile of other versions.")
@click.option("--price", "prices", multiple=True, metavar="NAME=USD",
              help="Dollars an hour of an instance type, or of one GPU.")  # fmt: skip
@click.option("--max-gpus", type=click.IntRange(1, 4096), default=64, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the made-up arrivals.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the plan as a YAML.")
@click.option("--force", is_flag=True, help="Overwrite a file that is there already.")
def command(
    *, source: str, gpus: tuple[str, ...], trace: Path | None, isl: int | None, osl: int | None,
    rate: float | None, spread: float, ttft_s: float, tpot_s: float, percentile: float,
    profile_path: Path | None, any_versions: bool, prices: tuple[str, ...], max_gpus: int,
    seed: int, as_json: bool, output: Path | None, force: bool,
) -> None:  # fmt: skip
    """Find the cheapest layout that keeps a promise, and say whether P/D pays."""
    from baton.plan.app_yaml import app_yaml
    from baton.plan.bounds import Promise
    from baton.plan.devices import find_all_hardware
    from baton.plan.judge import judge, what_would
    from baton.plan.model import load_model
    from baton.plan.profile_file import read_profile
    from baton.plan.search import Search

    if output is not None:
        claim_file(output, force=force)
    profile = None if profile_path is None else read_profile(
        profile_path, any_versions=any_versions)  # fmt: skip
    if not gpus and profile is None:
        raise click.UsageError("name at least one --gpu, or give a --profile")
    priced = _prices(prices)
    model = load_model(source)
    with interruptible("nothing was planned or written"):
        traffic = _traffic(trace, isl, osl, rate, spread, seed)
    _check_length(traffic, model)
    promise = Promise(ttft_s, tpot_s, percentile / 100)
    hardware = find_all_hardware(gpus)
    kinds, refused, notes = _kinds(model, hardware, traffic, profile)
    search = Search(
        traffic, promise, kinds, priced, max_gpus,
        handoff=profile.handoff_cost() if profile is not None else None,
        on_try=_Progress(len(traffic.requests)),
    )  # fmt: skip
    if not as_json:
        click.echo(f"{model.name}, {traffic.source}", err=True)
    with interruptible("nothing was planned or written"):
        plan = judge(search, refused, "measured" if profile is not None else "modelled", notes)
    would = "" if plan.best is not None or profile is not None else what_would(
        model, traffic, promise)  # fmt: skip
    if as_json:
        click.echo(json.dumps({**plan.as_dict(), "what_would": would or None}, indent=2))
    else:
        click.echo(_text(plan, would, promise))
    if plan.best is None or plan.best.layout is None:
        if output is not None:
            click.echo(f"{output} is not written: nothing keeps the promise", err=True)
        sys.exit(UNMET)
    if output is not None:
        text = app_yaml(plan.best.layout, model, promise, traffic.longest, plan.why)
        write_whole(output, text)
        click.echo(f"wrote {output}", err=True)


def _prices(asked: tuple[str, ...]) -> dict[str, float]:
    from baton.plan.devices import find_hardware

    found = {}
    for one in asked:
        name, _, value = one.rpartition("=")
        try:
            usd = float(value)
        except ValueError:
            usd = -1.0
        if not name or not 0 < usd <= _DEAREST:
            raise click.BadParameter(f"`{one}` is not NAME=USD", param_hint="--price")
        hardware = find_hardware(name)
        instance, gpu = hardware.instances[0].name, hardware.gpu.name
        if name.lower() != instance and name.lower()[:2] != gpu.lower()[:2]:
            types = ", ".join(one.name for one in hardware.instances)
            raise click.BadParameter(
                f"`{name}` is a family: name {gpu} for the price of one GPU, or a type: {types}",
                param_hint="--price",
            )
        found[instance if name.lower() == instance else gpu] = usd
    return found


def _traffic(  # noqa: PLR0917 - the options, as they are
    trace: Path | None, isl: int | None, osl: int | None, rate: float | None, spread: float,
    seed: int,
) -> Traffic:  # fmt: skip
    from baton.plan.traffic import made_up, read_trace

    if trace is not None:
        if isl is not None or osl is not None or rate is not None:
            raise click.UsageError("give a --trace, or --isl, --osl and --rate; not both")
        return read_trace(trace)
    if isl is None or osl is None or rate is None:
        raise click.UsageError("give a --trace, or all of --isl, --osl and --rate")
    return made_up(prompt_tokens=isl, output_tokens=osl, rate_rps=rate, spread=spread, seed=seed)


def _check_length(traffic: Traffic, model: ModelShape) -> None:
    longest = model.longest_context
    if longest is not None and traffic.longest > longest:
        raise TrafficRefused(
            f"the longest request has {_many(traffic.longest)} tokens, and {model.name} takes "
            f"{longest:,}",
            cure="ask for shorter ones (--isl, --osl, --spread)"
            if traffic.goes_on
            else "leave out what the model cannot serve",
        )


def _many(tokens: int) -> str:
    from baton.plan.traffic import MOST_TOKENS

    return f"{tokens:,}" if tokens <= MOST_TOKENS else f"more than {MOST_TOKENS:,}"


class _Progress:
    """Says on stderr what is simulated, once it takes long: a large trace, or many layouts."""

    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._next = time.monotonic() + (0 if requests >= _LARGE else _PATIENCE_S)

    def __call__(self, name: str) -> None:
        """A simulation begins."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + _PATIENCE_S
            click.echo(f"simulating {self._requests:,} requests on {name} …", err=True)


def _kinds(
    model: ModelShape, hardware: list[Hardware], traffic: Traffic, profile: Profile | None
) -> tuple[list[EngineKind], list[Tried], list[str]]:
    from baton.plan.judge import engine_kinds, measured_kind, modelled_notes

    if profile is None:
        kinds, refused = engine_kinds(model, hardware, traffic.longest)
        return kinds, refused, modelled_notes(kinds, model)
    kind, notes = measured_kind(profile, hardware, model, traffic)
    return [kind], [], notes


def _text(plan: Plan, would: str, promise: Promise) -> str:
    share = f"{100 * promise.percentile:g}"
    lines = [plan.why]
    if would:
        lines.append(would)
    head = (
        f"{'':6}{f'TTFT p{share}':>10}{f'TPOT p{share}':>10}{'good/s':>9}{'USD/Mtok':>10}  layout"
    )
    lines += ["", head]
    for tried in plan.layouts:
        mark = "ok" if tried.meets else "no"
        lines.append(
            f"{mark:<6}{_cell(tried.ttft_s, 's')}{_cell(tried.tpot_s, 'ms')}"
            f"{_plain(tried.goodput_rps, 9)}{_plain(tried.usd_per_million_tokens, 10)}"
            f"  {tried.name}"
        )
        if not tried.meets:
            lines.append(f"      {tried.bound}: {tried.why}")
    lines += ["", f"basis: {plan.basis}; {plan.simulations} simulations"]
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def _cell(seconds: float | None, unit: str) -> str:
    if seconds is None or seconds == float("inf"):
        return f"{'-' if seconds is None else 'never':>10}"
    return f"{seconds:>8.3f} s" if unit == "s" else f"{1e3 * seconds:>7.1f} ms"


def _plain(value: Any, width: int) -> str:
    return f"{'-' if value is None else f'{value:.3g}':>{width}}"
