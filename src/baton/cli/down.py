"""`baton down`: stop a deployment and everything that it started."""

from __future__ import annotations

import click


@click.command("down")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """Stop the deployment NAME, or the only one that runs here."""
    from baton.deploy import local

    deployment = local.down(name)
    click.echo(f"{deployment.name} is down", err=True)
