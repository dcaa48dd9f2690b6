"""`baton drill`: failures on purpose, and a table of what was lost."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from baton.cli.common import INTERRUPTED, check_folders, key_of
from baton.errors import DrillFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from baton.drill.injector import Injector
    from baton.drill.run import Options
    from baton.drill.scenarios import Scenario
    from baton.drill.stage import Result


class _Ended(Exception):
    """A SIGTERM came, and everything has been unwound."""


_NOT_KNOWN = "not seen"


@click.command("drill")
@click.argument("name", required=False)
@click.option(
    "--engines",
    type=click.Choice(["simulated"]),
    help="Start simulated engines and a gateway for the drill, and end them afterwards.",
)
@click.option("--url", metavar="URL", help="Drill an endpoint from outside: its load only.")
@click.option(
    "--dangerous",
    is_flag=True,
    help="With --url: yes, load an endpoint that others may be using, and hang up on it.",
)
@click.option(
    "--scenario", "names", multiple=True, metavar="NAME", help="Only this one. Repeat for more."
)
@click.option("--list", "only_list", is_flag=True, help="List the scenarios and end.")
@click.option(
    "--streams",
    type=click.IntRange(2, 1000),
    default=50,
    show_default=True,
    help="Streams that are open when a decode engine is killed.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of all that is random.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the results to FILE.",
)
@click.option("--api-key-env", metavar="NAME", help="Variable with a key for the endpoint.")
def command(  # noqa: PLR0917  (click passes by name)
    name: str | None,
    engines: str | None,
    url: str | None,
    dangerous: bool,
    names: tuple[str, ...],
    only_list: bool,
    streams: int,
    seed: int,
    json_file: Path | None,
    api_key_env: str | None,
) -> None:
    """Break things under load and count what callers lose.

    Breaks the local deployment NAME (or the only one), engines of its own (--engines simulated), or
    drills a URL from outside. Exit status 0 when nothing was lost and every fault really happened,
    1 when not, 2 for a call that cannot be.
    """
    from baton.drill.run import Options

    chosen = _chosen(names)
    if only_list:
        for scenario in chosen:
            click.echo(f"{scenario.name:<18} {scenario.story}")
        return
    _check(name, engines, url, dangerous=dangerous)
    check_folders(json_file)
    key = key_of(api_key_env)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    options = Options(streams=streams, seed=seed, headers=headers)
    try:
        results = asyncio.run(_run(_target(name, engines, url, headers), chosen, options))
    except (KeyboardInterrupt, _Ended):
        click.echo("interrupted: everything that the drill started has been ended", err=True)
        sys.exit(INTERRUPTED)
    _conclude(results, json_file)


def _chosen(names: Sequence[str]) -> list[Scenario]:
    from baton.drill.scenarios import ALL

    known = {scenario.name: scenario for scenario in ALL}
    for wanted in names:
        if wanted not in known:
            raise click.BadParameter(
                f"there is no scenario {wanted!r}; there are {', '.join(known)}",
                param_hint="--scenario",
            )
    return [scenario for scenario in ALL if not names or scenario.name in names]


def _check(name: str | None, engines: str | None, url: str | None, *, dangerous: bool) -> None:
    if sum(target is not None for target in (name, engines, url)) > 1:
        raise click.UsageError("give one of NAME, --engines and --url")
    if url is None and dangerous:
        raise click.UsageError("--dangerous belongs to --url")
    if url is None:
        return
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is no URL", param_hint="--url")
    if not dangerous:
        raise click.UsageError(
            f"a drill loads {url} and hangs up on it while others may be using it; "
            "if you mean that, add --dangerous"
        )


def _target(
    name: str | None, engines: str | None, url: str | None, headers: dict[str, str]
) -> AbstractAsyncContextManager[Injector]:
    if url is not None:
        from baton.drill.outside import Outside

        return Outside(url)
    if engines is not None:
        from baton.deploy.simulated_stack import SimulatedStack

        return SimulatedStack()
    from baton.deploy import state
    from baton.deploy.local_faults import LocalFaults

    return LocalFaults(state.the_one(name), headers)


async def _run(
    target: AbstractAsyncContextManager[Injector], scenarios: list[Scenario], options: Options
) -> list[Result]:
    from baton.drill.run import run

    me = asyncio.current_task()
    told = False

    def end() -> None:
        nonlocal told
        told = True
        if me is not None:
            me.cancel()

    # Ctrl-C is asyncio.run's own; a SIGTERM unwinds in the same way.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    try:
        async with target as injector:
            return await run(
                injector, scenarios, options, tell=lambda line: click.echo(line, err=True)
            )
    except asyncio.CancelledError:
        if told:
            raise _Ended from None
        raise


def _conclude(results: list[Result], json_file: Path | None) -> None:
    from baton.drill.report import as_data, failed

    _print(results)
    if json_file is not None:
        text = json.dumps(as_data(results), indent=2, ensure_ascii=False) + "\n"
        json_file.write_text(text, encoding="utf-8")
    if bad := failed(results):
        raise DrillFailed(
            f"{len(bad)} of {len(results)} scenarios lost something or proved nothing: "
            + ", ".join(result.name for result in bad)
        )
    if all(result.skipped for result in results):
        raise DrillFailed("every scenario was skipped, so nothing was proved")


def _print(results: list[Result]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("scenario")
    for column in ("requests", "errors", "broken", "mismatched", "KV blocks", "recovery s", ""):
        table.add_column(column, justify="right")
    for result in results:
        if result.skipped:
            table.add_row(result.name, *["-"] * 6, "skipped")
            continue
        table.add_row(
            result.name,
            str(result.requests),
            str(result.errors),
            str(result.broken_streams),
            str(result.mismatched_answers),
            _NOT_KNOWN if result.kv_blocks_left is None else str(result.kv_blocks_left),
            "never" if result.recovery_s is None else f"{result.recovery_s:.2f}",
            result.verdict,
        )
    # A pipe has no width: never fold a row there.
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for result in results:
        lines = [*result.proof, *result.examples]
        if result.skipped:
            lines = [f"skipped: {result.skipped}"]
        if result.problem:
            lines.insert(0, f"failed: {result.problem}")
        for line in lines:
            click.echo(f"{result.name}: {line}")
