"""`baton support-bundle`: config, versions, evidence, timelines, metrics and logs in one file."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from baton.cli.common import key_of
from baton.errors import BatonError, EnvironmentUnfit

if TYPE_CHECKING:
    from baton.deploy.log_files import LogFile
    from baton.deploy.state import Deployment


@click.command("support-bundle")
@click.argument("name", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where it goes; baton-support-TIME.tar.gz here when left out.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The YAML, when it is not the one that `baton up` was given.",
)
@click.option("--url", help="A gateway that `baton up` did not start.")
@click.option(
    "--file",
    "paths",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A log of a process that `baton up` did not start. Repeat.",
)
@click.option(
    "--api-key-env", default=None, help="Variable with a key, when the endpoint asks for one."
)
def command(  # noqa: PLR0917  (click passes by name)
    name: str | None,
    output: Path | None,
    config: Path | None,
    url: str | None,
    paths: tuple[Path, ...],
    api_key_env: str | None,
) -> None:
    """Pack what helps to find a fault of the deployment NAME, or of the only one here.

    Secrets and prompts are not in it: MANIFEST.md in the archive says what is, and what was left
    out. Nothing is sent anywhere.
    """
    from baton.deploy.log_files import LogFile
    from baton.deploy.support.bundle import gather

    deployment = _deployment(name)
    logs = [LogFile(path, path.stem) for path in paths]
    if deployment is not None:
        logs += _logs(deployment)
        own = Path(deployment.file)
        config = config or (own if own.is_file() else None)
        url = url or deployment.endpoint
    key = key_of(api_key_env)
    bundle = gather(deployment=deployment, config=config, url=url, logs=logs, api_key=key)
    output = output or Path(time.strftime("baton-support-%Y%m%d-%H%M%S.tar.gz"))
    try:
        descriptor = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(bundle.pack())
    except OSError as exc:
        raise EnvironmentUnfit(
            f"the bundle cannot be written: {exc.strerror}",
            place=str(output),
            cure="choose another file with -o",
        ) from exc
    for missing, why in sorted(bundle.missing.items()):
        click.echo(f"not in it: {missing}: {why}", err=True)
    click.echo(output)


def _deployment(name: str | None) -> Deployment | None:
    from baton.deploy import state

    if name is None and not state.everything():
        return None
    return state.the_one(name)


def _logs(deployment: Deployment) -> list[LogFile]:
    from baton.deploy.log_files import files_of

    try:
        return files_of(deployment)
    except BatonError as error:
        click.echo(f"not in it: logs: {error.fact}", err=True)
        return []
