"""`baton validate FILE…`: all faults of all files, before anything starts.

Exit status 0: nothing wrong (warnings and notes may have been printed). 1: warnings, with
`--strict`. 2: at least one file is refused.
"""

from __future__ import annotations

import codecs
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from baton.cli.ask_vllm import judged
from baton.cli.faults import as_json, changes_text, github_lines, summary, text_of
from baton.errors import ConfigRefused
from baton.spec.check import Report, examine
from baton.spec.load import load_file
from baton.spec.machine import Machine

if TYPE_CHECKING:
    from baton.spec.budget import RoleBudget
    from baton.spec.faults import Change, Fault
    from baton.spec.loaded import LoadedFile

REFUSED = 2
WARNED = 1
DEMO_MODEL = Path("~/.cache/baton/models/gemma-3-270m")


@dataclass(frozen=True)
class Wish:
    """What was asked for on the command line."""

    on: str | None = None
    machine: Machine | None = None
    budget: bool = False
    online: bool = False
    write: bool = False


@dataclass
class Outcome:
    """What came out for one file."""

    report: Report
    adaptations: list[Change] = field(default_factory=list)
    budgets: list[tuple[str, list[RoleBudget] | None]] = field(default_factory=list)
    """For each application its name and the budget of its roles; None when the model is unknown."""
    diff: str = ""


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
@click.option("--fix", "write", is_flag=True, help="Write what was put right; show the difference.")
@click.option("--budget", is_flag=True, help="Show how each engine's memory is spent.")
@click.option("--online", is_flag=True, help="Read a model's config from its hub if need be.")
@click.option("--on", type=click.Choice(["cpu"]), help="Show what fitting it to this CPU changes.")
@click.option(
    "--target",
    type=click.Choice(["here", "cluster"]),
    default="here",
    help="Where it would run: `cluster` leaves this machine out of the check.",
)
def command(
    *,
    files: tuple[str, ...],
    strict: bool,
    shape: str,
    write: bool,
    budget: bool,
    online: bool,
    on: str | None,
    target: str,
) -> None:
    """Check Ray Serve configs and RayService manifests before anything starts.

    FILE may be `-` for standard input; with `--fix` the corrected text then goes to standard
    output and everything else to standard error.
    """
    machine = Machine.here() if target == "here" else None
    wish = Wish(on, machine, budget, online, write)
    outcomes = [examined(name, wish) for name in files]
    faults = [fault for outcome in outcomes for fault in outcome.report.faults]
    status = exit_status(faults, strict=strict)
    if shape == "json":
        shown = as_json([_entry(outcome) for outcome in outcomes], status)
    elif shape == "github":
        shown = github_lines(faults)
    else:
        shown = "\n".join(_text(outcome) for outcome in outcomes)
    if shown:
        click.echo(shown, err=write and "-" in files)
    click.echo(summary(faults, len(files)), err=True)
    sys.exit(status)


def examined(name: str, wish: Wish) -> Outcome:
    """Reads and checks one file, and does what else was asked for."""
    loaded = load_file(name)
    diff = ""
    if wish.write:
        loaded, diff = _fixed(name, loaded)
    here = wish.machine if loaded.kind != "rayservice" and wish.on is None else None
    report = judged(examine(loaded, on=wish.on, machine=here, online=wish.online))
    outcome = Outcome(report, diff=diff)
    if wish.on is not None and report.checked is not None:
        _adapt(outcome, wish)
    if wish.budget and outcome.report.checked is not None:
        _add_budgets(outcome, wish)
    return outcome


def _adapt(outcome: Outcome, wish: Wish) -> None:
    from baton.spec.adapt import adapt

    report = outcome.report
    if report.checked is None:
        return
    try:
        adapted, changes = adapt(
            report.checked,
            machine=wish.machine,
            replacement_model=DEMO_MODEL.expanduser(),
            starting=False,
        )
    except ConfigRefused as refused:
        faults = (*report.faults, *(f for f in refused.faults if f.severity == "error"))
        outcome.report = Report(report.loaded, faults, None, report.changes)
        return
    outcome.report = judged(Report(report.loaded, report.faults, adapted, report.changes))
    outcome.adaptations = changes


def _add_budgets(outcome: Outcome, wish: Wish) -> None:
    from baton.spec.budget import budgets_of

    checked = outcome.report.checked
    for app in checked.applications if checked is not None else ():
        if app.has_rules:
            outcome.budgets.append((app.name, budgets_of(app, wish.machine)))


def _fixed(name: str, loaded: LoadedFile) -> tuple[LoadedFile, str]:
    """Puts the slips of one file right on disk; standard input goes to standard output."""
    from baton.spec.fix import fix
    from baton.spec.load import load_text

    changes = examine(loaded).changes
    fixed = fix(loaded, changes) if loaded.document is not None else None
    if fixed is None:
        if changes:
            click.echo(f"{loaded.path}: cannot be rewritten without doubt, left as it is", err=True)
        if name == "-":
            click.echo(loaded.text, nl=False)
        return loaded, ""
    if name == "-":
        click.echo(fixed.text, nl=False)
    elif fixed.changed and not _written(Path(name), fixed.text):
        return loaded, ""
    return load_text(fixed.text, loaded.path), fixed.diff


def _written(path: Path, text: str) -> bool:
    """Writes a file back, with the byte order mark that it had."""
    if not path.is_file():
        click.echo(f"{path}: is no file that can be written; give it as `-`", err=True)
        return False
    try:
        mark = codecs.BOM_UTF8 if path.read_bytes().startswith(codecs.BOM_UTF8) else b""
        path.write_bytes(mark + text.encode("utf-8"))
    except OSError as exc:
        click.echo(f"{path}: cannot be written: {exc.strerror}", err=True)
        return False
    return True


def exit_status(faults: list[Fault], *, strict: bool) -> int:
    """0, 1 or 2, as the verb's help says."""
    if any(fault.severity == "error" for fault in faults):
        return REFUSED
    if strict and any(fault.severity == "warning" for fault in faults):
        return WARNED
    return 0


def _entry(outcome: Outcome) -> dict[str, Any]:
    report = outcome.report
    return {
        "file": report.loaded.path,
        "refused": bool(report.errors),
        "faults": [fault.as_dict() for fault in report.faults],
        "changes": [change.as_dict() for change in report.changes],
        "adaptations": [change.as_dict() for change in outcome.adaptations],
        "budgets": {
            name: None if roles is None else [role.as_dict() for role in roles]
            for name, roles in outcome.budgets
        },
        "diff": outcome.diff,
    }


def _text(outcome: Outcome) -> str:
    from baton.spec.budget import lines_of

    report, parts = outcome.report, []
    if outcome.diff:
        parts.append(outcome.diff)
    if report.faults:
        parts.append(text_of(report.faults))
    if outcome.adaptations:
        parts.append(f"{report.loaded.path} on this machine's CPU:")
        parts.append(changes_text(outcome.adaptations))
    for name, roles in outcome.budgets:
        parts.append(f"memory of {name}:")
        if roles is None:
            parts.append(
                "  unknown: the model's config is not on this machine\n\n"
                "  hint: add --online, or name a folder as model_source"
            )
        for role in roles or ():
            parts.extend(f"  {line}" for line in lines_of(role))
    return "\n".join(parts) if parts else f"{report.loaded.path}: ok"
