"""`baton conformance`: holds an endpoint to what clients of the OpenAI API expect."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from baton.cli.common import check_folders, key_of
from baton.errors import ConformanceFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.conformance.case import Case, Outcome
    from baton.conformance.compare import Difference
    from baton.conformance.run import Report

_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("conformance")
@click.argument("url", required=False)
@click.option("--against", metavar="URL2", help="Compare with this endpoint, case by case.")
@click.option("--model", metavar="NAME", help="The model to ask; the first one listed if absent.")
@click.option(
    "--case",
    "names",
    multiple=True,
    metavar="ID",
    help="Only this case, or all of an area (`stream`). Repeat for more.",
)
@click.option("--list", "only_list", is_flag=True, help="List the cases with their sources.")
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    metavar="S",
    help="How long a case may take.",
)
@click.option("--api-key-env", metavar="NAME", help="Variable with a key for the endpoint.")
@click.option(
    "--header", "more_headers", multiple=True, metavar="'NAME: VALUE'", help="Of every request."
)
@click.option("--junit", "junit_file", type=_FILE, metavar="FILE", help="Write JUnit XML.")
@click.option("--json", "json_file", type=_FILE, metavar="FILE", help="Write everything seen.")
def command(  # noqa: PLR0917  (click passes by name)
    url: str | None,
    against: str | None,
    model: str | None,
    names: tuple[str, ...],
    only_list: bool,
    deadline_s: float,
    api_key_env: str | None,
    more_headers: tuple[str, ...],
    junit_file: Path | None,
    json_file: Path | None,
) -> None:
    """Ask an endpoint what clients of the OpenAI API ask, and say what it does otherwise.

    Exit status 0 when no case failed (and, with --against, every difference is explained), 1 when
    one did, 2 for a call that cannot be or an endpoint that is none.
    """
    chosen = _chosen(names)
    if only_list:
        for case in chosen:
            click.echo(f"{case.id:<30} {case.says}\n{'':<30} {case.source}")
        return
    for name, value in (("URL", url), ("--against", against)):
        if value is not None and not value.startswith(("http://", "https://")):
            raise click.BadParameter(f"{value!r} is no URL", param_hint=name)
    if url is None:
        raise click.UsageError("give the URL of an endpoint")
    check_folders(junit_file, json_file)
    headers = _headers(api_key_env, more_headers)
    urls = [url] if against is None else [url, against]
    reports = asyncio.run(_run(urls, chosen, model, headers, deadline_s))
    _conclude(reports, junit_file, json_file)


def _chosen(names: Sequence[str]) -> list[Case]:
    from baton.conformance.cases import ALL
    from baton.spec.suggest import nearest

    for name in names:
        if not any(case.id == name or case.id.startswith(f"{name}.") for case in ALL):
            near = nearest(name, [case.id for case in ALL])
            hint = f"; did you mean {near}?" if near else ""
            raise click.BadParameter(f"there is no case {name!r}{hint}", param_hint="--case")
    return [
        case
        for case in ALL
        if not names or any(case.id == name or case.id.startswith(f"{name}.") for name in names)
    ]


def _headers(api_key_env: str | None, more: Sequence[str]) -> dict[str, str]:
    headers = {}
    for text in more:
        name, mark, value = text.partition(":")
        if not mark or not name.strip() or not text.isascii() or not text.isprintable():
            raise click.BadParameter(f"{text!r} is no header", param_hint="--header")
        headers[name.strip().lower()] = value.strip()
    if (key := key_of(api_key_env)) is not None:
        headers["authorization"] = f"Bearer {key}"
    return headers


async def _run(
    urls: list[str],
    cases: list[Case],
    model: str | None,
    headers: dict[str, str],
    deadline_s: float,
) -> list[Report]:
    from baton.conformance.run import run

    def tell(outcome: Outcome) -> None:
        if outcome.status == "fail":
            click.echo(f"failed: {outcome.case.id}", err=True)

    reports = []
    for url in urls:
        click.echo(f"asking {url}: {len(cases)} cases", err=True)
        reports.append(
            await run(url, cases, model=model, headers=headers, deadline_s=deadline_s, tell=tell)
        )
    return reports


def _conclude(reports: list[Report], junit_file: Path | None, json_file: Path | None) -> None:
    from baton.conformance.compare import compare
    from baton.conformance.report import as_data, as_junit, lines, summary

    report, *others = reports
    differences = compare(report, others[0]) if others else []
    for line in lines(report):
        click.echo(line)
    for one in reports:
        click.echo(summary(one))
    _print(differences, compared=bool(others))
    if json_file is not None:
        data = as_data(report, others[0] if others else None, differences)
        json_file.write_text(json.dumps(data, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")
    if junit_file is not None:
        junit_file.write_text(as_junit(report, differences) + "\n", encoding="utf-8")
    failed = [outcome.case.id for outcome in report.outcomes if outcome.status == "fail"]
    open_ones = [difference.id for difference in differences if not difference.explained]
    if failed:
        raise ConformanceFailed(f"{len(failed)} cases failed: {', '.join(failed[:8])}")
    if open_ones:
        raise ConformanceFailed(
            f"{len(open_ones)} differences have no explanation: {', '.join(open_ones[:8])}"
        )


def _print(differences: list[Difference], *, compared: bool) -> None:
    if not compared:
        return
    click.echo(f"{len(differences)} differences")
    for difference in differences:
        click.echo(f"\n{difference.id}\n  first   {difference.first}")
        click.echo(f"  second  {difference.second}")
        click.echo(f"  why     {difference.why or 'unexplained'}")
