"""`baton validate FILE…`: all faults of all files, before anything starts.

Exit status 0: nothing wrong (warnings and notes may have been printed). 1: warnings, with
`--strict`. 2: at least one file is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from baton.cli.faults import as_json, changes_text, github_lines, summary, text_of
from baton.spec.check import Report, examine
from baton.spec.load import load_file
from baton.spec.machine import Machine

if TYPE_CHECKING:
    from baton.spec.faults import Change, Fault

REFUSED = 2
WARNED = 1
DEMO_MODEL = Path("~/.cache/baton/models/gemma-3-270m")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("--strict", is_flag=True, help="Exit with 1 when there are warnings.")
@click.option(
    "--format",
    "shape",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    help="How to print what was found.",
)
@click.option(
    "--fix", "write", is_flag=True, help="Write what was put right; shows the difference."
)
@click.option("--on", type=click.Choice(["cpu"]), help="Show what fitting it to this CPU changes.")
@click.option(
    "--target",
    type=click.Choice(["here", "cluster"]),
    default="here",
    help="Where it would run: `cluster` leaves this machine out of the check.",
)
def command(  # noqa: PLR0917 - click passes them by name
    files: tuple[str, ...], strict: bool, shape: str, write: bool, on: str | None, target: str
) -> None:
    """Check Ray Serve configs and RayService manifests before anything starts.

    FILE may be `-` for standard input.
    """
    machine = Machine.here() if target == "here" else None
    if write:
        for name in files:
            _fix(name)
        if "-" in files:
            return
    reports = [_examine(name, on, machine) for name in files]
    faults = [fault for report, _ in reports for fault in report.faults]
    status = _status(faults, strict=strict)
    if shape == "json":
        click.echo(as_json([_entry(report, changes) for report, changes in reports], status))
    elif shape == "github":
        lines = github_lines(faults)
        if lines:
            click.echo(lines)
    else:
        _print_text(reports)
    click.echo(summary(faults, len(files)), err=True)
    sys.exit(status)


def _examine(name: str, on: str | None, machine: Machine | None) -> tuple[Report, list[Change]]:
    loaded = load_file(name)
    here = machine if loaded.kind != "rayservice" and on is None else None
    report = examine(loaded, on=on, machine=here)
    if on is None or report.checked is None:
        return report, []
    from baton.spec.adapt import adapt

    model = DEMO_MODEL.expanduser()
    adapted, changes = adapt(report.checked, on=on, machine=machine, replacement_model=model)
    return Report(loaded, report.faults, adapted, (*report.changes, *changes)), changes


def _fix(name: str) -> None:
    """Puts the slips of one file right on disk; standard input goes to standard output."""
    from baton.spec.fix import fix

    loaded = load_file(name)
    report = examine(loaded)
    fixed = fix(loaded, report.changes) if loaded.document is not None else None
    if fixed is None:
        if report.changes:
            click.echo(f"{loaded.path}: cannot be rewritten without doubt, left as it is", err=True)
        if name == "-":
            click.echo(loaded.text, nl=False)
        return
    if name == "-":
        click.echo(fixed.text, nl=False)
        click.echo(fixed.diff, nl=False, err=True)
        return
    if fixed.changed:
        Path(name).write_text(fixed.text, encoding="utf-8")
        click.echo(fixed.diff, nl=False)


def _status(faults: list[Fault], *, strict: bool) -> int:
    if any(fault.severity == "error" for fault in faults):
        return REFUSED
    if strict and any(fault.severity == "warning" for fault in faults):
        return WARNED
    return 0


def _entry(report: Report, adaptations: list[Change]) -> dict[str, Any]:
    return {
        "file": report.loaded.path,
        "refused": bool(report.errors),
        "faults": [fault.as_dict() for fault in report.faults],
        "changes": [change.as_dict() for change in report.changes if change not in adaptations],
        "adaptations": [change.as_dict() for change in adaptations],
    }


def _print_text(reports: list[tuple[Report, list[Change]]]) -> None:
    for report, adaptations in reports:
        if report.faults:
            click.echo(text_of(report.faults))
        if adaptations:
            click.echo(f"{report.loaded.path} on this machine's CPU:")
            click.echo(changes_text(adaptations))
        if not report.faults and not adaptations:
            click.echo(f"{report.loaded.path}: ok")
