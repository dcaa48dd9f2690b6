"""`baton dashboards`: Grafana dashboards, Prometheus rules and a scrape config, as files."""

from __future__ import annotations

from pathlib import Path

import click

from baton.errors import EnvironmentUnfit


@click.command("dashboards")
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("baton-dashboards"),
    show_default=True,
    help="Folder for the files; made when it is not there.",
)
def command(folder: Path) -> None:
    """Write dashboards for Grafana, and alert rules and a scrape config for Prometheus."""
    from baton.observe.dashboards.files import files

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files().items():
            (folder / name).write_text(text, encoding="utf-8")
            click.echo(folder / name)
    except OSError as exc:
        raise EnvironmentUnfit(
            f"the files cannot be written: {exc.strerror}",
            place=str(folder),
            cure="choose another folder with -o",
        ) from exc
