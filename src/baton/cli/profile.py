"""`baton profile FILE`: measures a running engine, so that `baton plan` need not model it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from baton.cli.common import claim_file, interruptible, unwind_on_sigterm, write_whole
from baton.errors import ConfigRefused

if TYPE_CHECKING:
    from baton.plan.profile_file import Profile


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--url", required=True, help="The engine: http://HOST:PORT.")
@click.option("--decode-url", help="Another engine that KV is handed to, to measure the handoff.")
@click.option("--model", "source", help="Its config, for KV bytes a token (id, folder or file).")
@click.option("--gpu", help="What it runs on, as `baton plan --gpu` takes it.")
@click.option("--tensor-parallel-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--max-num-batched-tokens", type=click.IntRange(1), default=2048, show_default=True,
              help="What the engine was started with.")  # fmt: skip
@click.option("--longest", type=click.IntRange(192), help="Measure no longer prompts.")
@click.option("--max-batch", type=click.IntRange(1), default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--warm-up", type=click.IntRange(0), default=800, show_default=True,
              help="Requests before anything is measured; 20 s of them at most.")  # fmt: skip
@click.option("--secret-env", metavar="NAME", help="Environment variable with the engine secret.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it is there already.")
def command(
    *, file: Path, url: str, decode_url: str | None, source: str | None, gpu: str | None,
    tensor_parallel_size: int, max_num_batched_tokens: int, longest: int | None, max_batch: int,
    rounds: int, warm_up: int, secret_env: str | None, force: bool,
) -> None:  # fmt: skip
    """Measure prefill, decode and handoff of an idle engine, and write them to FILE."""
    from baton.plan.devices import find_hardware
    from baton.plan.measure import Grid, measure
    from baton.plan.model import load_model
    from baton.plan.preflight import check_secret, check_urls, look

    claim_file(file, force=force)
    urls = [url] if decode_url is None else [url, decode_url]
    check_urls(urls)
    secret = None
    if secret_env is not None:
        secret = os.environ.get(secret_env)
        if not secret:
            raise ConfigRefused(f"--secret-env names {secret_env}, which is not set or empty")
        check_secret(secret)
    grid = Grid(
        decode_batches=tuple(b for b in Grid().decode_batches if b <= max_batch),
        longest=longest,
        rounds=rounds,
        warm=warm_up,
    )
    kv_bytes = None
    if source is not None:
        kv_bytes = float(load_model(source).facts.kv_bytes_per_token())
    on = None if gpu is None else find_hardware(gpu).gpu.name

    async def measured() -> Profile:
        await look(urls, secret)
        return await measure(
            url,
            decode_url=decode_url,
            secret=secret,
            grid=grid,
            gpu=on,
            tensor_parallel_size=tensor_parallel_size,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_bytes_per_token=kv_bytes,
            say=lambda line: click.echo(line, err=True),
        )

    unwind_on_sigterm()
    with interruptible(f"{file} is not written"):
        profile = asyncio.run(measured())
    write_whole(file, profile.model_dump_json(indent=2) + "\n")
    worst = max(profile.misfits(), key=lambda row: abs(row[2] / row[1] - 1) if row[1] else 0.0)
    click.echo(f"{file}: {len(profile.prefill)} prefill, {len(profile.decode)} decode and "
               f"{len(profile.handoff)} handoff points")  # fmt: skip
    if worst[1]:
        click.echo(
            f"largest misfit: {worst[0]}, measured {1e3 * worst[1]:.1f} ms, "
            f"fitted {1e3 * worst[2]:.1f} ms",
            err=True,
        )
