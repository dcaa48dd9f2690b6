"""`baton verify`: proves what KV travels on, how fast, and that answers are right."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from baton.cli.common import key_of
from baton.errors import EnvironmentUnfit, VerifyFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.deploy.state import Deployment as Running
    from baton.verify.evidence import Require, Requirement
    from baton.verify.run import Verification


@click.command("verify")
@click.argument("target", metavar="[FILE|URL]", required=False)
@click.option(
    "--require",
    type=click.Choice(["efa", "rdma", "cuda_ipc", "shm", "tcp", "any"]),
    help="What KV must travel on; the file's transport.require by default.",
)
@click.option(
    "--min-gbps", type=click.FloatRange(0, min_open=True), help="Gigabytes a second, at least."
)
@click.option(
    "--pairs", type=click.IntRange(1, 1000), default=8, show_default=True,
    help="Pairs that are measured at most.",
)  # fmt: skip
@click.option("--no-raw", is_flag=True, help="No raw NIXL transfer beside the engines.")
@click.option("--json", "as_json", is_flag=True, help="Verdicts and all evidence as JSON.")
@click.option("--nccl", is_flag=True, help="Run nccl-tests' all_reduce_perf on this machine, too.")
@click.option("--nccl-gpus", type=click.IntRange(1), default=2, show_default=True)
@click.option("--api-key-env", metavar="NAME", help="Variable with a key for the endpoint.")
def command(  # noqa: PLR0917  (click passes by name)
    target: str | None,
    require: Require | None,
    min_gbps: float | None,
    pairs: int,
    no_raw: bool,
    as_json: bool,
    nccl: bool,
    nccl_gpus: int,
    api_key_env: str | None,
) -> None:
    """Verify the handoff of a running deployment: of FILE, at URL, or the only one here.

    Makes handoffs of several lengths for every prefill-decode pair and compares answers with and
    without P/D. Exit status 0 when every pair passes, 1 when one fails, 2 when something that
    matters is not known.
    """
    from baton.verify.evidence import Requirement
    from baton.verify.report import as_data, as_text

    key = key_of(api_key_env)
    found_require: Require = "any"
    if target is not None and target.startswith(("http://", "https://")):
        endpoints = [target]
    else:
        endpoints, found_require, own_key = _of_file(target)
        key = key or own_key
    requirement = Requirement(require=require or found_require, min_gbps=min_gbps)
    found = [
        verify_endpoint(
            endpoint,
            requirement,
            key,
            pairs=pairs,
            raw=not no_raw,
            progress=lambda text: click.echo(text, err=True),
        )
        for endpoint in endpoints
    ]
    reduced = _all_reduce(nccl_gpus) if nccl else None
    if as_json:
        data = [as_data(each) for each in found]
        more = {} if reduced is None else {"nccl": reduced}
        click.echo(json.dumps({"verified": data, **more}, indent=2))
    else:
        click.echo("\n\n".join(as_text(each) for each in found))
        if reduced is not None:
            click.echo(f"\nNCCL  {reduced['text']}")
    sys.exit(max((each.exit_status for each in found), key=(0, 2, 1).index))


def verify_endpoint(
    endpoint: str,
    requirement: Requirement,
    api_key: str | None,
    *,
    pairs: int = 8,
    raw: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> Verification:
    """Verify what answers at an endpoint.

    Raises:
        VerifyFailed: It could not be done.
        NotRunning: Nobody answers there.
    """
    from baton.verify.deployment import Deployment
    from baton.verify.run import verify

    async def run() -> Verification:
        async with Deployment(endpoint, api_key) as deployment:
            found = await verify(
                deployment, requirement, progress=progress, most_pairs=pairs, raw=raw
            )
            await deployment.tell(found.verdicts)
            return found

    return asyncio.run(run())


def _of_file(file: str | None) -> tuple[list[str], Require, str | None]:
    """Endpoints of the deployment that a file describes, what it requires, and a key of its own."""
    from baton.deploy import state
    from baton.deploy.exposure import own_key
    from baton.deploy.intent import plan_of
    from baton.spec.check import check
    from baton.spec.load import load_file
    from baton.spec.machine import Machine

    if file is None:
        running = state.the_one(None)
        file = running.file
        if not Path(file).is_file():
            return [running.endpoint], "any", None
    elif Path(file).exists():
        running = _running(file)
    else:
        return [state.the_one(file).endpoint], "any", None
    checked = check(load_file(file))
    plan = plan_of(checked, name=running.name, cores=Machine.here().cores)
    ours = [app for app in plan.apps if app.by_baton]
    if not ours:
        raise VerifyFailed(
            f"{file} runs through Ray Serve LLM's own builder, which has no evidence to give",
            cure="`baton up --builder baton` runs the same file through Baton",
        )
    required: Require = next(
        (app.baton.transport.require for app in checked.applications if app.name == ours[0].name),
        "any",
    )
    here = running.endpoint.split("/", 3)[:3]
    endpoints = ["/".join(here) + app.route_prefix.rstrip("/") for app in ours]
    return endpoints, required, own_key(ours[0].auth, os.environ)


def _running(file: str) -> Running:
    from baton.deploy import state

    path = Path(file).resolve()
    for deployment in state.everything():
        if Path(deployment.file).resolve() == path:
            return deployment
    raise VerifyFailed(
        "this file is not deployed here", place=file, cure=f"`baton up {file}`, or give a URL"
    )


def _all_reduce(gpus: int) -> dict[str, object]:
    from baton.verify.nccl import run_all_reduce

    try:
        found = run_all_reduce(gpus)
    except EnvironmentUnfit as exc:
        return {"error": exc.fact, "text": f"not measured: {exc.fact}"}
    wrong = f", {found.wrong} results were WRONG" if found.wrong else ""
    text = (
        f"all_reduce_perf: {found.largest_gb_per_s:g} GB/s bus bandwidth at"
        f" {found.largest_bytes:,} bytes{wrong}"
    )
    return {**found._asdict(), "text": text}
