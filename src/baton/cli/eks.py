"""`baton eks`: from the same YAML to Amazon EKS.

`config` prints each setting and where it comes from, `render` writes the files; what asks an
account or changes it is in `eks_run` and `eks_look`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from baton.cli.eks_look import connect, status, verify
from baton.cli.eks_run import apply, delete, plan, step_command
from baton.cli.eks_settings import found_settings, with_settings
from baton.deploy.eks.config import env_name, flag_name


@click.group()
def command() -> None:
    """Plan, make, check and remove an EKS deployment.

    Settings come from flags, the environment, a settings file and defaults, in this order.
    """


@command.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--format", "shape", type=click.Choice(["text", "json"]), default="text")
@with_settings
def config(file: Path | None, shape: str, settings_file: Path | None, **flags: Any) -> None:
    """Print every setting with its value and where it comes from.

    FILE is the YAML whose settings file is looked for; the current folder when left out.
    """
    found = found_settings(settings_file, file, flags)
    values = found.settings.model_dump(mode="json")
    if shape == "json":
        rows = [
            {
                "name": name,
                "value": value,
                "origin": found.origins[name].kind,
                "where": found.origins[name].where,
                "env": env_name(name),
                "flag": flag_name(name),
            }
            for name, value in values.items()
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    width = max(map(len, values))
    shown = {name: _shown(value) for name, value in values.items()}
    wide = min(max(map(len, shown.values())), 44)
    for name in values:
        click.echo(f"{name:<{width}}  {shown[name]:<{wide}}  {found.origins[name]}")


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return ", ".join(value) or "-" if isinstance(value, list) else str(value)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", "folder", required=True, type=click.Path(path_type=Path), metavar="DIR"
)
@click.option("--force", is_flag=True, help="Overwrite files that Baton did not make, or edited.")
@with_settings
def render(
    file: Path, folder: Path, settings_file: Path | None, *, force: bool, **flags: Any
) -> None:
    """Write the cluster's files for FILE into DIR. AWS is asked nothing, and nothing is changed.

    The same FILE, settings and environment give the same bytes.
    """
    from baton.deploy.eks.folder import write_folder
    from baton.deploy.eks.render import plan_layout
    from baton.deploy.eks.render import render as render_files

    beside = None if str(file) == "-" else file
    layout = plan_layout(file, found_settings(settings_file, beside, flags), os.environ)
    done = write_folder(folder, render_files(layout), force=force)
    for name in done.written:
        click.echo(str(folder / name))
    for name in done.removed:
        click.echo(f"removed {folder / name}: no longer made", err=True)
    for name in done.kept:
        click.echo(f"left {folder / name}: no longer made, and edited", err=True)
    for note in layout.notes:
        click.echo(f"note: {note}", err=True)
    count = len(done.written) + len(done.unchanged)
    click.echo(f"{count} files, {len(done.written)} written; read {folder / 'README.md'}", err=True)


for _verb in (plan, apply, status, verify, connect, delete):
    command.add_command(_verb)
for _step in ("cluster", "nodes", "kuberay", "app"):
    command.add_command(step_command(_step))
