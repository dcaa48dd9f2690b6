"""`baton up`: deploy a YAML and wait for its first real handoff."""

from __future__ import annotations

import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from baton.errors import ConfigRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.deploy.state import Deployment
    from baton.spec.checked import CheckedFile

INTERRUPTED = 130
LOOPBACK = ("127.", "localhost", "::1")


@click.command("up")
@click.argument("file")
@click.option("--on", type=click.Choice(["cpu"]), help="Fit a GPU file to this machine's CPU.")
@click.option("--address", help="Join this Ray cluster instead of starting one.")
@click.option("--name", help="Name of the deployment; the first application's by default.")
@click.option("--port", type=int, help="Port of the endpoint, whatever the file says.")
@click.option(
    "--builder",
    type=click.Choice(["baton", "ray"]),
    help="Run the file through this builder, whatever its import_path says.",
)
@click.option(
    "--timeout", "timeout_s", type=float, default=1_800.0, show_default=True,
    help="Seconds until it gives up.",
)  # fmt: skip
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text")
def command(
    file: str,
    on: str | None,
    address: str | None,
    name: str | None,
    port: int | None,
    builder: str | None,
    timeout_s: float,
    style: str,
) -> None:
    """Deploy FILE on this machine and end when a handoff has really succeeded.

    A second `up` of a changed file updates the running deployment in place. FILE may be `-`.
    """
    from baton.deploy import local
    from baton.deploy.intent import RAY_BUILDER, plan_of
    from baton.spec.machine import Machine

    signal.signal(signal.SIGTERM, _interrupt)
    progress = Progress()
    try:
        machine = Machine.here()
        checked = checked_file(file, on=on, machine=machine if address is None else None)
        plan = plan_of(checked, name=name, builder=builder, port=port, cores=machine.cores)
        if any(app["import_path"] == RAY_BUILDER for app in plan.serve_config["applications"]):
            click.echo(RAY_HINT, err=True)
        _say_what_is_open(checked, plan.http_host)
        deployment = local.up(plan, progress=progress, address=address, timeout_s=timeout_s)
    except KeyboardInterrupt:
        click.echo("interrupted: everything that was started has been stopped", err=True)
        sys.exit(INTERRUPTED)
    if style == "json":
        click.echo(json.dumps(_as_data(deployment, progress), indent=2))
    else:
        _print_ready(deployment, plan.apps[0].model_id)


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

    Raises:
        ConfigRefused: with every fault; `baton.cli.app` prints them.
    """
    from baton.cli.faults import changes_text, text_of
    from baton.spec.check import check
    from baton.spec.load import load_file

    checked = check(load_file(file), on=on, machine=None if on else machine)
    if checked.warnings:
        click.echo(text_of(checked.warnings), err=True)
    if on is None:
        if machine is not None:
            _refuse_here(checked)
        return checked
    from baton.demo.model import demo_model_folder
    from baton.spec.adapt import adapt

    adapted, changes = adapt(checked, on=on, machine=machine, replacement_model=demo_model_folder())
    if changes:
        click.echo(f"{checked.path} on this machine's CPU:", err=True)
        click.echo(changes_text(changes), err=True)
    return adapted


# What `validate` only remarks on, since a file may be meant for another machine, would keep this
# one waiting for ever: GPUs that are not here, a model folder that is not here.
FATAL_HERE = frozenset({"BTN-180", "BTN-202"})


def _refuse_here(checked: CheckedFile) -> None:
    fatal = [fault for fault in checked.warnings if fault.rule_id in FATAL_HERE]
    if fatal:
        first = fatal[0]
        raise ConfigRefused(first.message, place=str(first.place), cure=first.cure)


def _say_what_is_open(checked: CheckedFile, host: str) -> None:
    for app in checked.applications:
        keys = app.baton.auth.api_keys_env
        if keys is None and not host.startswith(LOOPBACK):
            click.echo(
                f"warning: {app.name} listens on {host} and asks nobody for a key"
                "\n\nhint: set baton.auth.api_keys_env, or http_options.host: 127.0.0.1",
                err=True,
            )
        if app.baton.transport.require != "any":
            click.echo(
                f"warning: {app.name} requires transport {app.baton.transport.require}; this"
                " version shows the NIXL backend that was created but does not yet measure it",
                err=True,
            )


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _as_data(deployment: Deployment, progress: Progress) -> dict[str, Any]:
    return {
        "name": deployment.name,
        "endpoint": deployment.endpoint,
        "apps": list(deployment.apps),
        "builder": deployment.builder,
        "ray_address": deployment.ray_address,
        "stages_s": progress.seconds,
    }


def _print_ready(deployment: Deployment, model_id: str) -> None:
    click.echo(f"{deployment.name} is ready at {deployment.endpoint}/v1")
    body = json.dumps({"model": model_id, "prompt": "Once upon a time", "max_tokens": 16})
    click.echo(
        f"\n  curl {deployment.endpoint}/v1/completions -H 'content-type: application/json' "
        f"-d '{body}'\n\nstop it with `baton down {deployment.name}`",
        err=True,
    )
