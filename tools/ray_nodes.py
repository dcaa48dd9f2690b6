"""A Ray cluster of two nodes in two network namespaces, and a file that splits the roles over them.

Ray's own traffic takes the same link as KV does, so it is throttled only when everything is up.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.e2e.deployment import app

from baton.deploy.processes import MARKER, end_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from namespaces import Node

PORT = 6391
HTTP_PORT = 18791
START_S = 120.0
UP_S = 420.0


class DidNotStart(Exception):
    """Ray or the deployment did not come up; the end of what was said is in the message."""


@contextlib.contextmanager
def ray_on(prefill: Node, decode: Node, environment: dict[str, str]) -> Iterator[str]:
    """A head on prefill's node, a second node on decode's; yields the address.

    Each node has one resource that only it has, by which a role is placed.
    """
    marker = secrets.token_hex(8)
    folder = Path(tempfile.mkdtemp(prefix="ry-", dir="/tmp"))  # sockets: short paths
    address = f"{prefill.host}:{PORT}"
    head = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}")
    started = []
    try:
        for node, role, how in (
            (prefill, "prefill", head),
            (decode, "decode", (f"--address={address}",)),
        ):
            log = folder / f"{role}.log"
            command = [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *how),
                *(f"--node-ip-address={node.host}", "--num-cpus=5"),
                *("--object-store-memory=128000000", f'--resources={{"{role}_node": 1}}'),
            ]
            own = {
                **os.environ,
                **environment,
                MARKER: marker,
                "VLLM_HOST_IP": node.host,
                "GLOO_SOCKET_IFNAME": node.device,
                "RAY_worker_niceness": "0",
                "RAY_USAGE_STATS_ENABLED": "0",
            }
            with log.open("wb") as output:
                started.append(
                    subprocess.Popen(
                        node.inside(*command),
                        env=own,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            _wait_for(log, "Ray runtime started")
        yield address
    finally:
        for process in started:
            end_all(marker, first_pid=process.pid)
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(log: Path, text: str) -> None:
    until = time.monotonic() + START_S
    while text not in log.read_text(errors="replace"):
        if time.monotonic() > until:
            raise DidNotStart(f"Ray: {log.read_text(errors='replace')[-1500:]}")
        time.sleep(0.3)


@contextlib.contextmanager
def deployed(address: str, node: Node, model: Path, folder: Path) -> Iterator[str]:
    """`baton up --address`, with prefill on one node and decode on the other; yields the URL."""
    file = folder / "app.yaml"
    file.write_text(_file(model), encoding="utf-8")
    environment = {**os.environ, "BATON_STATE_DIR": str(folder / "state")}
    baton = (sys.executable, "-m", "baton.cli")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            node.inside(*baton, *arguments),
            env=environment,
            capture_output=True,
            text=True,
            timeout=UP_S,
            check=False,
        )

    up = run("up", str(file), "--address", address, "--name", "verify-local")
    try:
        if up.returncode:
            raise DidNotStart(f"baton up: {up.stderr[-2000:]}")
        yield f"http://127.0.0.1:{HTTP_PORT}"
    finally:
        run("down", "verify-local")


def _file(model: Path) -> str:
    import yaml

    config: dict[str, Any] = app(model, port=HTTP_PORT)
    roles = config["applications"][0]["args"]
    for role in ("prefill", "decode"):
        # A pinch of what only that node has.
        roles[f"{role}_config"]["placement_group_config"] = {
            "bundles": [{"CPU": 1, f"{role}_node": 0.01}]
        }
    text: str = yaml.safe_dump(config, sort_keys=False)
    return text
