"""`baton up`: deploy a YAML and wait for its first real handoff."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from baton.cli.common import INTERRUPTED, unwind_on_sigterm
from baton.errors import ConfigRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.deploy.intent import AppPlan, DeployPlan
    from baton.deploy.state import Deployment
    from baton.spec.checked import CheckedFile


@click.command("up")
@click.argument("file")
@click.option("--on", type=click.Choice(["cpu"]), help="Fit a GPU file to this machine's CPU.")
@click.option("--address", help="Join this Ray cluster instead of starting one.")
@click.option("--name", help="Name of the deployment; the first application's by default.")
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Port of the endpoint, whatever the file says."
)
@click.option(
    "--builder",
    type=click.Choice(["baton", "ray"]),
    help="Run the file through this builder, whatever its import_path says.",
)
@click.option(
    "--timeout", "timeout_s", type=float, default=1_800.0, show_default=True,
    help="Seconds until it gives up.",
)  # fmt: skip
@click.option(
    "--insecure-no-auth",
    is_flag=True,
    help="Listen on an address that others can reach although no key is asked for.",
)
@click.option("--timings", "show_timings", is_flag=True, help="Say where the time went.")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text")
def command(  # noqa: PLR0917  # click passes them by name
    file: str,
    on: str | None,
    address: str | None,
    name: str | None,
    port: int | None,
    builder: str | None,
    timeout_s: float,
    insecure_no_auth: bool,
    show_timings: bool,
    style: str,
) -> None:
    """Deploy FILE on this machine and end when a handoff has really succeeded.

    A second `up` of a changed file updates the running deployment in place. FILE may be `-`.
    """
    from baton.deploy import local
    from baton.deploy.intent import RAY_BUILDER, plan_of
    from baton.deploy.timings import Timings, timings_text
    from baton.spec.machine import Machine

    unwind_on_sigterm()
    progress = Progress()
    timings = Timings()
    try:
        machine = Machine.here()
        checked = checked_file(file, on=on, machine=machine if address is None else None)
        plan = plan_of(checked, name=name, builder=builder, port=port, cores=machine.cores)
        if any(app["import_path"] == RAY_BUILDER for app in plan.serve_config["applications"]):
            click.echo(RAY_HINT, err=True)
        _refuse_what_is_unsafe(checked, plan, insecure=insecure_no_auth, here=address is None)
        if address is None:
            make_demo_model_if_asked(checked, progress)
        deployment = local.up(
            plan,
            progress=progress,
            address=address,
            timeout_s=timeout_s,
            timings=timings,
            prove=transport_proof(progress),
        )
    except KeyboardInterrupt:
        click.echo("interrupted: everything that was started has been stopped", err=True)
        sys.exit(INTERRUPTED)
    if show_timings:
        click.echo(timings_text(timings), err=True)
    if style == "json":
        data = _as_data(deployment, progress) | {"timings": timings.as_data()}
        click.echo(json.dumps(data, indent=2))
    else:
        _print_ready(deployment, plan.apps[0])


RAY_HINT = (
    "note: this file runs Ray Serve LLM's own P/D application. It has no prefill deadline, no retry"
    " and no fallback,\nand a request with n, echo or min_tokens can fail there."
    "\n\nhint: `--builder baton` runs the same file through Baton"
)


class Progress:
    """Prints each stage with the time since the start, and keeps when it was first reached."""

    def __init__(self, echo: Callable[[str], None] | None = None) -> None:
        self._started_s = time.monotonic()
        self._echo = echo or (lambda line: click.echo(line, err=True))
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, text: str) -> None:
        """One line: seconds, stage, text."""
        passed_s = time.monotonic() - self._started_s
        self.seconds[stage] = round(passed_s, 2)
        self._echo(f"[{passed_s:6.1f} s] {stage:<14} {text}")


def checked_file(file: str, *, on: str | None, machine: Any) -> CheckedFile:
    """Read and check a file, print what was put right, and fit it to this machine if asked.

    What only vLLM can judge is asked of it last: that takes seconds, and only few files need it.

    Raises:
        ConfigRefused: with every fault; `baton.cli.app` prints them.
    """
    from baton.cli.ask_vllm import judged_file
    from baton.cli.faults import changes_text, text_of
    from baton.spec.check import check
    from baton.spec.load import load_file

    checked = check(load_file(file), on=on, machine=None if on else machine)
    if checked.warnings:
        click.echo(text_of(checked.warnings), err=True)
    if on is None:
        if machine is not None:
            _refuse_here(checked)
        return judged_file(checked)
    from baton.demo.model import demo_model_folder
    from baton.spec.adapt import adapt

    adapted, changes = adapt(checked, on=on, machine=machine, replacement_model=demo_model_folder())
    if changes:
        click.echo(f"{checked.path} on this machine's CPU:", err=True)
        click.echo(changes_text(changes), err=True)
    return judged_file(adapted)


# What `validate` only remarks on, since a file may be meant for another machine, would keep this
# one waiting for ever: GPUs that are not here, a model folder that is not here.
FATAL_HERE = frozenset({"BTN-180", "BTN-202"})


def _refuse_here(checked: CheckedFile) -> None:
    from baton.demo.model import demo_model_folder

    ours = str(demo_model_folder())  # not here yet, but `up` makes it
    fatal = [
        fault for fault in checked.warnings if fault.rule_id in FATAL_HERE and fault.found != ours
    ]
    if fatal:
        first = fatal[0]
        raise ConfigRefused(first.message, place=str(first.place), cure=first.cure)


def make_demo_model_if_asked(checked: CheckedFile, progress: Progress) -> None:
    """Put the demo model together when the file names its folder and it is not whole."""
    from pathlib import Path

    from baton.demo.model import demo_model_folder, ensure_demo_model

    sources = {spec.model_source for app in checked.applications for spec in app.roles.values()}
    if demo_model_folder() in {Path(source).expanduser() for source in sources if source}:
        ensure_demo_model(progress=lambda text: progress("model", text))


def transport_proof(progress: Progress) -> Callable[[AppPlan, str, str | None], None]:
    """Verifies an application that requires a fabric, and refuses it on FAIL."""

    def prove(app: AppPlan, endpoint: str, api_key: str | None) -> None:
        from baton.cli.verify import verify_endpoint
        from baton.errors import DeployFailed
        from baton.verify.evidence import Requirement
        from baton.verify.report import as_text

        require = app.transport.require
        progress("transport", f"is {app.name}'s KV handed over on {require}?")
        found = verify_endpoint(endpoint, Requirement(require=require), api_key)
        failed = [verdict for verdict in found.verdicts if verdict.outcome == "FAIL"]
        if failed:
            reason = next(reason for reason in failed[0].reasons if reason.weight == "fail")
            click.echo(as_text(found), err=True)
            raise DeployFailed(f"{app.name}: {reason.fact}", place=endpoint, cure=reason.cure)
        if found.exit_status:
            click.echo(as_text(found), err=True)
            progress("transport", f"not proved: whether {app.name} runs on {require} is not known")
        else:
            progress("transport", f"proved: {require}")

    return prove


def _refuse_what_is_unsafe(
    checked: CheckedFile, plan: DeployPlan, *, insecure: bool, here: bool
) -> None:
    """An endpoint open to others, TLS that has no effect, keys that are not there."""
    import os

    from baton.deploy import exposure

    exposure.refuse_tls_that_has_no_effect(plan.serve_config["http_options"])
    ours = {app.name for app in plan.apps if app.by_baton}
    for app in checked.applications:
        if app.roles:  # another kind of application is not ours to judge
            auth = app.baton.auth if app.name in ours else None
            exposure.refuse_if_open(app.name, plan.http_host, auth, insecure=insecure)
    for index, app in enumerate(checked.applications):
        if app.name in ours:
            block = ("applications", index, "args", "baton")
            exposure.refuse_what_is_missing(
                app.baton,
                os.environ,
                here=here,
                place=lambda *keys, block=block: str(checked.source.place((*block, *keys))),
            )


def _as_data(deployment: Deployment, progress: Progress) -> dict[str, Any]:
    return {
        "name": deployment.name,
        "endpoint": deployment.endpoint,
        "apps": list(deployment.apps),
        "builder": deployment.builder,
        "ray_address": deployment.ray_address,
        "stages_s": progress.seconds,
    }


def _print_ready(deployment: Deployment, app: AppPlan) -> None:
    click.echo(f"{deployment.name} is ready at {deployment.endpoint}/v1")
    if app.console:
        click.echo(f"its console is at {deployment.endpoint}/console", err=True)
    body = json.dumps({"model": app.model_id, "prompt": "Once upon a time", "max_tokens": 16})
    click.echo(
        f"\n  curl {deployment.endpoint}/v1/completions -H 'content-type: application/json' "
        f"-d '{body}'\n\nstop it with `baton down {deployment.name}`",
        err=True,
    )
