"""`baton status`: what runs here, in which role, on which backend, and how it fares."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from baton.deploy.observe import DeploymentView
    from baton.spec.lease import EngineLease


@click.command("status")
@click.argument("name", required=False)
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text")
@click.option(
    "--api-key-env", default=None, help="Variable with a key, when the endpoint asks for one."
)
def command(name: str | None, style: str, api_key_env: str | None) -> None:
    """List the replicas of the deployment NAME, or of all that run here.

    Exit status 0 when everything is ready, 1 when something is not or nothing runs.
    """
    from baton.deploy import observe, state

    deployments = [state.the_one(name)] if name else state.everything()
    key = os.environ.get(api_key_env) if api_key_env else None
    views = [observe.look(deployment, api_key=key) for deployment in deployments]
    if style == "json":
        click.echo(json.dumps([_as_data(view) for view in views], indent=2))
    elif not views:
        click.echo("nothing is running here\n\nhint: start something with `baton up FILE`")
    else:
        for view in views:
            _print(view)
    sys.exit(0 if views and all(view.health == "ready" for view in views) else 1)


def _as_data(view: DeploymentView) -> dict[str, object]:
    return {
        "name": view.deployment.name,
        "file": view.deployment.file,
        "endpoint": view.deployment.endpoint,
        "health": view.health,
        "engines": [lease.model_dump(mode="json") for lease in view.engines],
    }


def _load(lease: EngineLease) -> str:
    load = lease.load
    text = f"{load.running} running, {load.waiting} waiting, KV {load.kv_usage:.0%}"
    if lease.role == "prefill" and load.queued_prompt_tokens:
        text += f", {load.queued_prompt_tokens} tokens queued"
    if lease.role == "decode" and load.running and load.tpot_s:
        text += f", {load.tpot_s * 1000:.1f} ms a token"
    return text


def _print(view: DeploymentView) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    click.echo(f"{view.deployment.name}  {view.deployment.endpoint}  {view.health}")
    if not view.engines:
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("role", "state", "url", "node", "engine_id", "backend", "load"):
        table.add_column(column, overflow="fold")
    for lease in view.engines:
        observed = "+".join(lease.evidence.observed_backends) or "?"
        table.add_row(
            lease.role,
            lease.state,
            lease.url,
            lease.node,
            lease.engine_id,
            observed,
            _load(lease),
        )
    # A pipe has no width: never fold a URL there.
    Console(width=None if sys.stdout.isatty() else 240).print(table)
