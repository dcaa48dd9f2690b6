"""`baton eks status | verify | connect`: looking at what runs, proving it, and reaching it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from baton.cli.eks_settings import with_settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from baton.deploy.eks.live.inside import Proof
    from baton.deploy.eks.live.observe import Eyes
    from baton.deploy.eks.live.status import NodeView, Status


def _file(function: Any) -> Any:
    from pathlib import Path

    return click.argument("file", type=click.Path(path_type=Path))(with_settings(function))


def node_lines(nodes: Iterable[NodeView]) -> list[str]:
    """One line a node: GPUs and EFA interfaces, taken of offered."""
    return [
        f"{n.name}  {n.type}  {n.zone}  {n.phase}  {'Ready' if n.ready else 'NotReady'}"
        f"  GPU {n.gpus_taken}/{n.gpus} taken  EFA {n.efa_taken}/{n.efa} taken"
        for n in nodes
    ]


@click.command()
@_file
@click.option("--format", "shape", type=click.Choice(["text", "json"]), default="text")
def status(*, file: Path, settings_file: Path | None, shape: str, **flags: Any) -> None:
    """Show what is there: parts, nodes, GPUs and EFA free, pods by node, Serve.

    Exit status 0 when all is ready, 1 when something is not, 2 when something could not be seen.
    """
    from baton.cli.eks_run import open_call, open_eyes, rendered
    from baton.deploy.eks.live.status import look

    call = open_call(file, settings_file, None, flags)
    with rendered(call) as lent:
        found = look(open_eyes(call, lent), call.parts)
    if shape == "json":
        click.echo(json.dumps(_status_data(found), indent=2))
    else:
        _print_status(found)
    sys.exit(2 if found.unseen else int(not found.healthy))


def _status_data(found: Status) -> dict[str, Any]:
    return {
        "healthy": found.healthy,
        "unseen": list(found.unseen),
        "parts": {p.name: {"state": s.state.value, "detail": s.detail} for p, s in found.parts},
        "nodes": [vars(node) for node in found.nodes],
        "pods": [vars(pod) for pod in found.pods],
        "serve": {n: {"status": s, "message": m} for n, (s, m) in found.serve.applications.items()},
    }


def _print_status(found: Status) -> None:
    for part, seen in found.parts:
        detail = seen.fatal or seen.detail
        click.echo(f"{seen.state.value:<9} {part.title}" + (f": {detail}" if detail else ""))
    if found.nodes:
        click.echo()
    for line in node_lines(found.nodes):
        click.echo(line)
    for pod in found.pods:
        click.echo(f"{pod.phase:<8} {pod.name}  on {pod.node or 'no node'}  {pod.status}")
    for name, (said, message) in found.serve.applications.items():
        click.echo(f"Serve    {name}: {said}" + (f" ({message})" if message else ""))
    for text in found.unseen:
        click.echo(f"not seen: {text}", err=True)


@click.command()
@_file
@click.option("--json", "as_json", is_flag=True, help="Everything that was found, as JSON.")
def verify(*, file: Path, settings_file: Path | None, as_json: bool, **flags: Any) -> None:
    """Run `baton verify` inside the cluster, and hold it against every worker's log and devices.

    Exit status 0 when all agree, 1 when something fails, 2 when something is not known.
    """
    from baton.cli.eks_run import open_call, open_eyes, rendered
    from baton.deploy.eks.live.inside import Said, prove

    call = open_call(file, settings_file, None, flags)
    with rendered(call) as lent:
        eyes = open_eyes(call, lent)
        proof = prove(call.layout, _pods(eyes), eyes.runner)
    if as_json:
        click.echo(json.dumps(_proof_data(proof), indent=2))
        sys.exit(proof.exit_status)
    for witness in proof.witnesses:
        backends = ", ".join(sorted(witness.backends)) or "not named"
        providers = ", ".join(sorted(witness.providers)) or "not named"
        bytes_ = "not read" if witness.moved_bytes is None else f"{witness.moved_bytes:,} bytes"
        click.echo(
            f"{witness.phase:<8} {witness.pod}  backend {backends}  provider {providers}"
            f"  devices {bytes_}"
        )
    said: list[tuple[str, Said]] = [
        ("measured", proof.measured),
        ("witnessed", proof.witnessed),
    ]
    for name, verdict in said:
        click.echo(f"{verdict.word:<8} {name}: {verdict.text}")
    sys.exit(proof.exit_status)


def _proof_data(proof: Proof) -> dict[str, Any]:
    try:
        measured: Any = json.loads(proof.output)
    except ValueError:
        measured = proof.output
    return {
        "measured": {**vars(proof.measured), "by": measured},
        "witnessed": vars(proof.witnessed),
        "workers": [
            {"pod": w.pod, "phase": w.phase, "backends": sorted(w.backends),
             "providers": sorted(w.providers), "moved_bytes": w.moved_bytes, "unread": w.unread}
            for w in proof.witnesses
        ],
    }  # fmt: skip


def _pods(eyes: Eyes) -> Any:
    from baton.deploy.eks.live.aws import AwsFailed
    from baton.deploy.eks.live.eyes_kube import Unseen
    from baton.errors import NotRunning

    try:
        pods = eyes.running_pods()
    except (Unseen, AwsFailed) as exc:
        raise NotRunning("the cluster's pods cannot be seen", place=str(exc)) from exc
    if not pods:
        raise NotRunning(
            f"nothing of {eyes.layout.name} runs in {eyes.layout.settings.cluster_name}",
            cure="`baton eks apply FILE` first",
        )
    return pods


@click.command()
@_file
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
def connect(*, file: Path, settings_file: Path | None, port: int, **flags: Any) -> None:
    """Forward a local port to the service until it is interrupted, and print how to ask it."""
    from baton.cli.eks_run import open_call, open_eyes, rendered
    from baton.deploy.eks.plain import serve_service_name

    call = open_call(file, settings_file, None, flags)
    layout = call.layout
    with rendered(call) as lent:
        eyes = open_eyes(call, lent)
        _pods(eyes)
        click.echo(question(layout, port))
        command = (
            "kubectl", "port-forward", "-n", layout.settings.namespace,
            f"svc/{serve_service_name(layout)}", f"{port}:8000",
        )  # fmt: skip
        environment = {**os.environ, "KUBECONFIG": str(lent / "kubeconfig")}
        try:
            ended = subprocess.run(command, cwd=lent, env=environment, check=False)
        except KeyboardInterrupt:
            sys.exit(0)  # that is how it ends
    sys.exit(ended.returncode)


def question(layout: Any, port: int) -> str:
    """A curl line that asks the model something; the key stays a variable."""
    app = layout.app
    prefix = (app.route_prefix or "").rstrip("/")
    model = app.args["prefill_config"]["model_loading_config"]["model_id"]
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "What is a fugue?"}]}
    )
    key = ' -H "Authorization: Bearer $KEY"' if app.baton.auth.asks_for_keys else ""
    return (
        f"curl -s http://localhost:{port}{prefix}/v1/chat/completions{key}"
        f" -H 'Content-Type: application/json' -d '{body}'"
    )
