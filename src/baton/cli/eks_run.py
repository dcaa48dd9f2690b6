"""`baton eks plan | apply | delete`, and each step alone."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from baton.cli.eks_settings import found_settings, with_settings
from baton.deploy.eks.live.parts import STEPS, Part, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.checks import Verdict
    from baton.deploy.eks.live.observe import Eyes
    from baton.deploy.eks.live.planned import Planned
    from baton.deploy.eks.live.prices import Price
    from baton.deploy.eks.live.runbook import Naming
    from baton.deploy.eks.live.walk import Pace

REFUSED = 2
_STEP = click.Choice(get_args(Step))


@dataclass(frozen=True)
class Call:
    """What one call of a verb is about."""

    layout: Layout
    parts: list[Part]
    folder: Path
    naming: Naming

    def of(self, steps: tuple[Step, ...]) -> list[Part]:
        """The parts of some steps, of all when none is named."""
        return [part for part in self.parts if not steps or part.step in steps]


def _with_file(function: Callable[..., None]) -> Callable[..., None]:
    function = click.option(
        "-o", "--output", "folder", type=click.Path(path_type=Path), metavar="DIR", default=None,
        help="Where the rendered files and the kubeconfig lie; build/eks/CLUSTER-NAME by default.",
    )(with_settings(function))  # fmt: skip
    return click.argument("file", type=click.Path(path_type=Path))(function)


def open_call(
    file: Path, settings_file: Path | None, folder: Path | None, flags: dict[str, Any]
) -> Call:
    """Reads the file and the settings; refuses what could not come up."""
    from baton.deploy.eks.live.parts import parts_of
    from baton.deploy.eks.live.runbook import Naming
    from baton.deploy.eks.render import plan_layout

    beside = None if str(file) == "-" else file
    layout = plan_layout(file, found_settings(settings_file, beside, flags), os.environ)
    where = folder or Path("build", "eks", f"{layout.settings.cluster_name}-{layout.name}")
    naming = Naming(str(file), str(where), str(settings_file or ""))
    return Call(layout, parts_of(layout, os.environ), where, naming)


def open_eyes(call: Call, folder: Path) -> Eyes:
    """Eyes that look through boto3 and the real tools; files and kubeconfig lie in `folder`."""
    from baton.deploy.eks.live.aws import Boto
    from baton.deploy.eks.live.commands import Shell
    from baton.deploy.eks.live.observe import Eyes

    return Eyes(call.layout, Boto(call.layout.settings.region), Shell(folder.resolve()))


def pace() -> Pace:
    """Real time, told on stderr."""
    from baton.deploy.eks.live.walk import Pace

    return Pace(say=lambda text: click.echo(text, err=True))


@contextmanager
def rendered(call: Call) -> Iterator[Path]:
    """The files in a folder that is gone afterwards: for who only looks."""
    from baton.deploy.eks.folder import write_folder
    from baton.deploy.eks.render import render

    with tempfile.TemporaryDirectory(prefix="baton-eks-") as name:
        write_folder(Path(name), render(call.layout))
        yield Path(name)


def gpu_prices(layout: Layout) -> dict[str, Price]:
    """The planner's prices: its table is the only one that has GPU instances.

    A Capacity Block's price is not the On-Demand one: each counts only for its own kind.
    """
    from baton.deploy.eks.live.prices import Price
    from baton.plan.devices import all_instances

    block = layout.settings.capacity_block
    return {
        name: Price(each.usd_per_hour, each.price_source.text, each.price_source.date)
        for name, each in all_instances().items()
        if each.usd_per_hour is not None
        and each.price_source is not None
        and ("Capacity Block" in each.price_source.text) == block
    }


def _lines(title: str, lines: list[str]) -> None:
    click.echo(f"\n{title}")
    for line in lines:
        click.echo(f"  {line}")


@click.command()
@_with_file
@click.option("--dry-run", is_flag=True, help="From an empty account, as a runbook. AWS not asked.")
@click.option("--format", "shape", type=click.Choice(["text", "json"]), default="text")
def plan(
    *, file: Path, settings_file: Path | None, folder: Path | None, dry_run: bool, shape: str,
    **flags: Any,
) -> None:  # fmt: skip
    """Say what `apply` would create and change, what it costs an hour and how long it takes.

    Nothing is changed. Exit status 2 when a check stops `apply`.
    """
    from baton.deploy.eks.live.checks import judge
    from baton.deploy.eks.live.facts import Facts
    from baton.deploy.eks.live.prices import cost_of
    from baton.deploy.eks.live.runbook import runbook

    call = open_call(file, settings_file, folder, flags)
    cost = cost_of(call.layout, gpu_prices(call.layout))
    if dry_run:
        verdicts = judge(call.layout, Facts(environment=frozenset(os.environ)))
        click.echo(runbook(call.layout, call.parts, call.naming, cost, verdicts))
        return
    with rendered(call) as lent:
        eyes = open_eyes(call, lent)
        planned, verdicts = look_ahead(call, eyes, call.parts)
        unwanted = _unwanted(eyes)
    if shape == "json":
        click.echo(json.dumps(_as_data(planned, verdicts, unwanted), indent=2))
    else:
        _print_plan(call, planned, verdicts, unwanted)
    stopped = any(v.stops for v in verdicts) or any(p.action.kind == "stop" for p in planned)
    sys.exit(REFUSED if stopped else 0)


def look_ahead(
    call: Call, eyes: Eyes, parts: list[Part], accepted: tuple[str, ...] = ()
) -> tuple[list[Planned], list[Verdict]]:
    """What a run over these parts would do, and what the checks say."""
    from baton.deploy.eks.live.checks import judge
    from baton.deploy.eks.live.collect import collect
    from baton.deploy.eks.live.planned import planned_up

    verdicts = judge(call.layout, collect(eyes, call.parts, os.environ), accepted)
    return planned_up(parts, {part.name: eyes.see(part) for part in parts}), verdicts


def _unwanted(eyes: Eyes) -> list[str]:
    from baton.deploy.eks.live.aws import AwsFailed

    try:
        return eyes.unwanted_groups()
    except AwsFailed as exc:
        return [f"could not be seen ({exc.code})"]


def _as_data(
    planned: list[Planned], verdicts: list[Verdict], unwanted: list[str]
) -> dict[str, Any]:
    return {
        "checks": [{"rule": v.rule_id, "verdict": v.word, "text": v.text} for v in verdicts],
        "parts": [
            {"name": p.part.name, "step": p.part.step, "state": p.seen.state.value,
             "action": p.action.kind, "reason": p.action.reason,
             "commands": [c.text for c in p.commands]}
            for p in planned
        ],
        "unwanted": unwanted,
    }  # fmt: skip


def _print_plan(
    call: Call, planned: list[Planned], verdicts: list[Verdict], unwanted: list[str]
) -> None:
    from baton.deploy.eks.live.prices import cost_of
    from baton.deploy.eks.live.runbook import change_lines, cost_lines, head_lines, minutes
    from baton.deploy.eks.live.runbook import verdict_lines as shown

    for line in head_lines(call.layout, call.naming):
        click.echo(line)
    _lines("Checks", shown(verdicts))
    _lines("+ made   ~ changed   = kept   … waited for   ! in the way", change_lines(planned))
    _lines("Deleted: nothing. `apply` deletes nothing. Ours, and not in the files:", unwanted)
    _lines(
        "Cost an hour while it stands", cost_lines(cost_of(call.layout, gpu_prices(call.layout)))
    )
    made = [p for p in planned if p.action.kind == "make"]
    text = f"Estimated: {minutes(made)} for what is to be made." if made else "Nothing to make."
    if any(p.action.kind == "stop" for p in planned):
        text = "What is to be made is not known before what is in the way has gone."
    click.echo(f"\n{text}")


def _refuse_when_stopped(verdicts: list[Verdict]) -> None:
    from baton.deploy.eks.live.runbook import verdict_lines
    from baton.errors import ChecksFailed

    for line in verdict_lines(verdicts):
        click.echo(line, err=True)
    stopping = [v for v in verdicts if v.stops]
    if stopping:
        ids = ", ".join(v.rule_id for v in stopping)
        unknown = [v.rule_id for v in stopping if v.word == "unknown"]
        accept = "".join(f" --accept-unknown {i}" for i in unknown)
        raise ChecksFailed(
            f"nothing was changed: {len(stopping)} checks stand against it ({ids})",
            cure="`baton explain RULE` says why"
            + (f"; what is only unknown can be accepted:{accept}" if accept else ""),
        )


def _confirmed(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Add --yes to say so without being asked.")
    click.confirm(question, abort=True, err=True)


def run_up(
    call: Call, steps: tuple[Step, ...], accepted: tuple[str, ...], dry_run: bool, yes: bool
) -> None:
    """Checks, shows, asks, and brings the parts of some steps to ready."""
    from baton.deploy.eks.folder import write_folder
    from baton.deploy.eks.live.apply import apply as bring_up
    from baton.deploy.eks.live.runbook import change_lines, command_lines
    from baton.deploy.eks.render import render

    parts = call.of(steps)
    if dry_run:
        with rendered(call) as lent:
            planned, verdicts = look_ahead(call, open_eyes(call, lent), parts, accepted)
        for line in (*[f"# {v.word} {v.rule_id} {v.text}" for v in verdicts], ""):
            click.echo(line)
        for line in command_lines(planned):
            click.echo(line)
        sys.exit(REFUSED if any(v.stops for v in verdicts) else 0)
    write_folder(call.folder, render(call.layout))
    eyes = open_eyes(call, call.folder)
    planned, verdicts = look_ahead(call, eyes, parts, accepted)
    _refuse_when_stopped(verdicts)
    for line in change_lines(planned):
        click.echo(line, err=True)
    if any(p.action.kind in ("make", "change") for p in planned):
        _confirmed("Do this? It costs money from here on.", yes=yes)
    bring_up(parts, eyes, eyes.runner, pace())
    if not steps or "nodes" in steps or "kuberay" in steps:
        _print_nodes(call, eyes, charted=not steps or "kuberay" in steps)
    click.echo(f"ready; next: baton eks verify {call.naming.flags}", err=True)


def _print_nodes(call: Call, eyes: Eyes, *, charted: bool) -> None:
    from baton.cli.eks_look import node_lines
    from baton.deploy.eks.live.eyes_kube import Unseen
    from baton.deploy.eks.live.status import efa_faults, see_nodes
    from baton.deploy.eks.nodegroup import efa_plugin_by

    try:
        nodes = see_nodes(eyes)
    except Unseen as exc:
        click.echo(f"nodes could not be seen: {exc}", err=True)
        return
    for line in node_lines(nodes):
        click.echo(line)
    # A plugin that comes from a chart is there only after `kuberay`.
    shown = call.layout.efa and (charted or efa_plugin_by(call.layout.settings) == "eksctl")
    wanted: dict[str, int] = {
        g.role: g.instance.efa_interfaces for g in call.layout.groups if shown
    }
    for fault in efa_faults(nodes, wanted):
        click.echo(f"warning: {fault}", err=True)


def _run_options(function: Callable[..., None]) -> Callable[..., None]:
    options = [
        click.option("--dry-run", is_flag=True, help="Look, and print the exact commands."),
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option(
            "--accept-unknown", "accepted", multiple=True, metavar="RULE",
            help="Go on although this check's verdict is unknown.",
        ),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return _with_file(function)


@click.command()
@_run_options
@click.option("--step", "steps", multiple=True, type=_STEP, help="Only this step; may be repeated.")
def apply(
    *, file: Path, settings_file: Path | None, folder: Path | None, dry_run: bool, yes: bool,
    accepted: tuple[str, ...], steps: tuple[Step, ...], **flags: Any,
) -> None:  # fmt: skip
    """Make what is missing and change what differs, step by step, until it serves.

    May be interrupted and run again at any time: it goes on where it was.
    """
    run_up(open_call(file, settings_file, folder, flags), steps, accepted, dry_run, yes)


def step_command(step: Step) -> click.Command:
    """`baton eks cluster`, `nodes`, `kuberay`, `app`: one step of `apply` alone."""

    @click.command(step, help=f"Only the step `{step}` of `apply`.")
    @_run_options
    def one(
        *, file: Path, settings_file: Path | None, folder: Path | None, dry_run: bool, yes: bool,
        accepted: tuple[str, ...], **flags: Any,
    ) -> None:  # fmt: skip
        run_up(open_call(file, settings_file, folder, flags), (step,), accepted, dry_run, yes)

    return one


@click.command()
@_with_file
@click.option("--dry-run", is_flag=True, help="Look, and print the exact commands.")
@click.option("--yes", is_flag=True, help="Do not ask for the cluster's name.")
@click.option("--step", "steps", multiple=True, type=_STEP, help="Only this step; may be repeated.")
def delete(
    *, file: Path, settings_file: Path | None, folder: Path | None, dry_run: bool, yes: bool,
    steps: tuple[Step, ...], **flags: Any,
) -> None:  # fmt: skip
    """Remove what carries Baton's tag, in reverse order, and say what may still cost money.

    What is gone is fine; what cannot be seen ends it before anything else is deleted.
    """
    from baton.deploy.eks.folder import write_folder
    from baton.deploy.eks.live.planned import planned_down
    from baton.deploy.eks.live.runbook import command_lines
    from baton.deploy.eks.live.teardown import delete as bring_down
    from baton.deploy.eks.live.teardown import leftovers
    from baton.deploy.eks.render import render

    call = open_call(file, settings_file, folder, flags)
    parts = call.of(steps)
    if dry_run:
        with rendered(call) as lent:
            eyes = open_eyes(call, lent)
            planned = planned_down(parts, {part.name: eyes.see(part) for part in parts})
        for line in command_lines(planned):
            click.echo(line)
        return
    name = call.layout.settings.cluster_name
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("Add --yes to delete without being asked.")
        what = ", ".join(steps or STEPS)
        click.echo(f"deletes {what} of {name} in {call.layout.settings.region}", err=True)
        if click.prompt("type the cluster's name", err=True) != name:
            raise click.Abort
    write_folder(call.folder, render(call.layout))
    eyes = open_eyes(call, call.folder)
    left = bring_down(parts, eyes, eyes.runner, pace())
    for each in left:
        click.echo(f"left: {each.what}: {each.why}")
    _lines("May still cost money", leftovers(eyes))
