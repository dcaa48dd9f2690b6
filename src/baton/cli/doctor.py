"""`baton doctor [FILE]`: this machine against what Baton, or one file, needs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from baton.deploy.doctor import Demand, Line

UNFIT = 3
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.argument("file", required=False)
@click.option("--on", type=click.Choice(["cpu"]), help="Judge the file as fitted to this CPU.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text")
def command(file: str | None, on: str | None, style: str) -> None:
    """Check this machine: versions, plugins, fabrics, memory, limits, ports.

    With FILE, against what that file asks for. Exit status 3 when something fails.
    """
    from baton.deploy.doctor import RAY_PORTS, judge
    from baton.deploy.machine_facts import look
    from baton.spec.matched import MATCHED

    demand = _demand(file, on)
    facts = look(
        tuple(MATCHED),
        ports=(demand.http_port, *RAY_PORTS),
        ranges={"engines": demand.port_range, "side channels": demand.side_channel_range},
    )
    lines = judge(facts, demand)
    failed = any(line.verdict == "fail" for line in lines)
    if style == "json":
        click.echo(json.dumps({"ok": not failed, "checks": [x.as_dict() for x in lines]}, indent=2))
    else:
        _print(lines)
    sys.exit(UNFIT if failed else 0)


def _demand(file: str | None, on: str | None) -> Demand:
    from baton.deploy.doctor import Demand, demand_of

    if file is None:
        return Demand()
    from baton.spec.check import examine, refusal
    from baton.spec.load import load_file

    report = examine(load_file(file), on=on)
    if report.checked is None:
        raise refusal(report.faults)
    checked = report.checked
    if on is not None:
        from baton.spec.adapt import adapt

        checked, _ = adapt(checked, on=on, starting=False)
    return demand_of(checked)


def _print(lines: list[Line]) -> None:
    width = max(len(line.name) for line in lines)
    for line in lines:
        word = click.style(f"{line.verdict:<4}", fg=_COLOURS[line.verdict])
        click.echo(f"{word}  {line.name:<{width}}  {line.detail}")
    cures = [(line.name, line.cure) for line in lines if line.cure is not None]
    if cures:
        click.echo()
    for name, cure in cures:
        click.echo(f"{click.style('hint', bold=True)}: {name}: {cure}")
    counts = {kind: sum(line.verdict == kind for line in lines) for kind in _COLOURS}
    click.echo(", ".join(f"{n} {kind}" for kind, n in counts.items()), err=True)
