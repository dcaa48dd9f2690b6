"""`baton logs`: what gateway, engines and Ray have written, by time; of one request if asked."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from baton.errors import ConfigRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.deploy.log_files import LogFile
    from baton.deploy.log_lines import Line

POLL_S = 0.3
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


@click.command("logs")
@click.argument("name", required=False)
@click.option("--request", "request_id", metavar="ID", help="Only what is about this request.")
@click.option("--since", metavar="TIME", help="`10m`, `2h`, or a time such as 2026-01-31T12:00.")
@click.option("--follow", is_flag=True, help="Go on with what is written from now on.")
@click.option(
    "--file",
    "paths",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A log of a process that `baton up` did not start. Repeat; instead of NAME.",
)
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text")
def command(  # noqa: PLR0917  (click passes by name)
    name: str | None,
    request_id: str | None,
    since: str | None,
    follow: bool,
    paths: tuple[Path, ...],
    style: str,
) -> None:
    """Show the lines of the deployment NAME (or of the only one here), merged by time.

    ID is the `x-request-id` of an answer. Each line says whose it is.
    """
    from baton.deploy.log_files import LogFile
    from baton.deploy.log_lines import as_json, merged, of_request, shown

    after = moment(since, now=time.time())
    files = [LogFile(path, path.name) for path in paths] or _files(name)
    wanted = of_request(request_id) if request_id else _every
    write = as_json if style == "json" else shown

    if follow:
        for file in files:
            file.to_the_end()
    if not follow or since is not None or request_id is not None:
        # What is written from now on is `_follow`'s to show.
        texts = [file.lines_so_far() if follow else file.lines() for file in files]
        for line in merged(texts):
            if wanted(line) and line.at >= after:
                click.echo(write(line))
    if follow:
        _follow(files, None if paths else name, wanted, write)


def _every(_line: Line) -> bool:
    return True


def _files(name: str | None) -> list[LogFile]:
    from baton.deploy import state
    from baton.deploy.log_files import files_of

    return files_of(state.the_one(name))


def _follow(
    files: list[LogFile],
    name: str | None,
    wanted: Callable[[Line], bool],
    write: Callable[[Line], str],
) -> None:
    """Until Ctrl-C."""
    from baton.deploy.log_lines import merged

    known = {file.path: file for file in files}
    looks = 0
    try:
        while True:
            looks += 1
            if looks % 10 == 0 and not any(file.source == file.path.name for file in files):
                for file in _files(name):  # replicas come and go
                    known.setdefault(file.path, file)
            for line in merged([file.new_lines() for file in known.values()]):
                if wanted(line):
                    click.echo(write(line))
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return


def moment(text: str | None, *, now: float) -> float:
    """What `--since` means, in seconds since the epoch; 0 for everything.

    Raises:
        ConfigRefused: It means nothing.
    """
    if text is None:
        return 0.0
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return now - float(ago[1]) * _UNITS[ago[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError as exc:
        raise ConfigRefused(
            f"{text!r} is no time", place="--since", cure="such as 10m, 2h or 2026-01-31T12:00"
        ) from exc
