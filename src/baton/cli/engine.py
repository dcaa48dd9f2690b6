"""`baton engine --simulated`: an engine without a model behind vLLM's HTTP protocol."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

import click

from baton.errors import ConfigRefused


@click.command("engine")
@click.option("--simulated", is_flag=True, help="No model: the protocol, latency and faults only.")
@click.option("--role", type=click.Choice(["prefill", "decode"]), required=True)
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), required=True, help="0 takes a free one.")
@click.option("--engine-id", help="Its name for KV transfers; a new one at every start if absent.")
@click.option("--model", "model_id", default="simulated", show_default=True)
@click.option("--max-model-len", type=click.IntRange(1), default=8192, show_default=True)
@click.option("--block-size", type=click.IntRange(1), default=16, show_default=True)
@click.option("--kv-blocks", type=click.IntRange(2), default=4096, show_default=True)
@click.option(
    "--prefill-tokens-per-s",
    type=click.FloatRange(0),
    default=20_000.0,
    show_default=True,
    help="Speed of prefill, one prompt at a time; 0 for no time at all.",
)
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="Tokens of a prompt in one step; other requests wait for a step.",
)
@click.option("--tpot-ms", type=click.FloatRange(0), default=10.0, show_default=True)
@click.option("--handoff-fixed-ms", type=click.FloatRange(0), default=1.0, show_default=True)
@click.option(
    "--handoff-gbps",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="Gigabytes of KV a second; 0 for no limit.",
)
@click.option("--kv-bytes-per-token", type=click.IntRange(1), default=147_456, show_default=True)
@click.option("--lease-s", type=click.FloatRange(0, min_open=True), default=30.0, show_default=True)
@click.option(
    "--answer-tokens",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="About how long answers are that end by themselves; 0 for answers that never do.",
)
@click.option(
    "--enable-prompt-tokens-details",
    "prompt_tokens_details",
    is_flag=True,
    help="Tell in `usage` how much of a prompt was cached.",
)
@click.option("--secret-env", metavar="NAME", help="Environment variable with the engine secret.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="SPEC",
    help="refuse, hang, hang_at=K, die_at=K, drop_at=K, slow=X, fail_kv_load, "
    "kv_bytes_per_s=X, kv_delay_s=X, garbage, unhealthy; "
    "*N behind it for the next N requests only. Also at runtime: POST /sim/faults.",
)
def command(**options: Any) -> None:
    """Start one engine. Only simulated ones so far: real ones start under `baton up`."""
    if not options.pop("simulated"):
        raise ConfigRefused(
            "only simulated engines are started by this verb",
            cure="add --simulated, or use `baton up FILE` for real engines",
        )
    faults = list(options.pop("faults"))
    secret = _secret(options.pop("secret_env"))
    _serve(options, faults=faults, secret=secret)


def _secret(variable: str | None) -> str | None:
    if variable is None:
        return None
    secret = os.environ.get(variable)
    if not secret:
        raise ConfigRefused(
            f"--secret-env names {variable}, which is not set or empty",
            cure=f"export {variable}=…, or leave --secret-env out for an open engine",
        )
    return secret


def _serve(options: dict[str, Any], *, faults: list[str], secret: str | None) -> None:
    import uvloop

    from baton.engine.simulated import LatencyProfile, SimulatedEngine

    gigabyte, milli = 1e9, 1e-3
    engine = SimulatedEngine(
        latency=LatencyProfile(
            prefill_tokens_per_s=options.pop("prefill_tokens_per_s"),
            tpot_s=options.pop("tpot_ms") * milli,
            handoff_fixed_s=options.pop("handoff_fixed_ms") * milli,
            handoff_bytes_per_s=options.pop("handoff_gbps") * gigabyte,
        ),
        engine_id=options.pop("engine_id") or f"{options['role']}-{uuid.uuid4().hex[:8]}",
        kv_lease_s=options.pop("lease_s"),
        faults=faults,
        secret=secret,
        **options,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            engine.serve_forever(
                on_ready=lambda: click.echo(
                    f"{engine.settings.role} engine {engine.settings.engine_id} (simulated) "
                    f"listens on {engine.url}",
                    err=True,
                )
            )
        )
