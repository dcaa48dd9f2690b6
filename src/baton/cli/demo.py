"""`baton demo`: the whole thing once on this machine, and every claim checked."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from baton.cli.common import INTERRUPTED, check_folders, unwind_on_sigterm
from baton.errors import DemoFailed, DeployFailed

if TYPE_CHECKING:
    from baton.cli.up import Progress
    from baton.demo.run import DemoResult, Show
    from baton.deploy import state
    from baton.deploy.intent import DeployPlan
    from baton.deploy.timings import Timings
    from baton.spec.lease import DirectorySnapshot


@click.command("demo")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write what was measured to FILE.",
)
@click.option("--keep", is_flag=True, help="Leave the deployment running.")
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=8000, show_default=True, help="Its endpoint."
)
@click.option("--timings", "show_timings", is_flag=True, help="Say where the time went.")
def command(json_file: Path | None, keep: bool, port: int, show_timings: bool) -> None:
    """Start one prefill and one decode engine on this machine's CPU, and show what they do.

    Makes the demo model first if it is not there. Exit status 0 only if everything held.
    """
    from baton.cli.up import Progress
    from baton.demo.file import NAME
    from baton.demo.model import ensure_demo_model
    from baton.deploy import state
    from baton.deploy.timings import Timings, timings_text

    unwind_on_sigterm()
    check_folders(json_file)
    if state.find(NAME) is not None:
        raise DeployFailed(
            f"a deployment called {NAME} is on record already",
            cure=f"stop it first: baton down {NAME}",
        )
    progress = Progress()
    try:
        folder = ensure_demo_model(progress=lambda text: progress("demo model", text))
        plan = _plan(folder, port)
        timings = Timings()
        result = _deploy_and_run(plan, progress=progress, keep=keep, timings=timings)
    except KeyboardInterrupt:
        click.echo("interrupted: everything that was started has been stopped", err=True)
        sys.exit(INTERRUPTED)
    if show_timings:
        click.echo(f"\n{timings_text(timings)}")
    if json_file is not None:
        text = json.dumps(result.as_data(), indent=2, ensure_ascii=False) + "\n"
        json_file.write_text(text, encoding="utf-8")
    _conclude(result, plan, keep=keep)


def _plan(model_folder: Path, port: int) -> DeployPlan:
    from baton.demo.file import demo_file
    from baton.deploy.intent import plan_of
    from baton.spec.check import check
    from baton.spec.load import load_text
    from baton.spec.machine import Machine

    machine = Machine.here()
    checked = check(load_text(demo_file(model_folder), "the demo's app.yaml"), machine=machine)
    return plan_of(checked, port=port, cores=machine.cores)


def _deploy_and_run(
    plan: DeployPlan, *, progress: Progress, keep: bool, timings: Timings
) -> DemoResult:
    from baton.demo.run import run
    from baton.deploy import local, serve_app
    from baton.deploy.ray_head import client_environment

    # From the YAML to the first token; the model was made before.
    started_at = time.monotonic()
    deployment = local.up(plan, progress=progress, timings=timings)
    held = False
    try:
        environment = client_environment(deployment.ray_auth_token) | plan.environment
        with serve_app.connected(deployment.ray_address, environment):
            running = _Running(deployment, plan.apps[0].name, plan.apps[0].model_id)
            result = run(running, started_at=started_at, show=_show())
        held = result.held
        return result
    finally:
        if not (keep and held):
            _stop(plan.name)


def _stop(name: str) -> None:
    from baton.deploy import local

    # A second Ctrl-C now would leave processes behind.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        local.down(name)
    finally:
        signal.signal(signal.SIGINT, before)


class _Running:
    """What `baton.demo.run` asks of a deployment, answered by `baton.deploy`."""

    def __init__(self, deployment: state.Deployment, app: str, model_id: str) -> None:
        self.endpoint = deployment.endpoint
        self.model_id = model_id
        self._app = app

    def engines(self) -> DirectorySnapshot:
        from baton.deploy import serve_app

        return serve_app.engines(self._app)


def _show() -> Show:
    from baton.demo.run import Show

    in_text = False

    def end_of_text() -> None:
        nonlocal in_text
        if in_text:
            click.echo()
        in_text = False

    def text(piece: str) -> None:
        nonlocal in_text
        if not in_text:
            click.echo("  > ", nl=False)
        in_text = True
        click.echo(piece.replace("\n", "\n  > "), nl=False)
        sys.stdout.flush()

    def step(title: str) -> None:
        end_of_text()
        click.echo(f"\n{title}")

    def fact(name: str, value: str) -> None:
        end_of_text()
        click.echo(f"  {name:<30} {value}")

    return Show(step=step, text=text, fact=fact)


def _conclude(result: DemoResult, plan: DeployPlan, *, keep: bool) -> None:
    from baton.demo.run import curl_line

    failed = [check for check in result.checks if not check.held]
    click.echo(f"\nchecks: {len(result.checks) - len(failed)} of {len(result.checks)} held")
    for check in failed:
        click.echo(f"  failed: {check.claim}: {check.seen}")
    if failed:
        raise DemoFailed(
            f"{len(failed)} of {len(result.checks)} checks did not hold: {failed[0].claim}",
            cure="run `baton demo` again; if it stays so, it is a fault in Baton worth reporting",
        )
    click.echo("\ntry it yourself:" if keep else "\ntry it yourself (after `baton demo --keep`):")
    click.echo(f"  {curl_line(result.endpoint, plan.apps[0].model_id)}")
    if keep:
        click.echo(f"\nit stays up; stop it with `baton down {plan.name}`", err=True)
