"""A Ray head of our own, beside whatever else runs on this machine.

Every deployment gets its own ports, folder, key and edge, so two of them never meet. `ray stop`
is never used: it ends every Ray on the host.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from baton.deploy.edge import FOLDER, edge_environment
from baton.deploy.processes import MARKER, end_all, free_ports
from baton.deploy.state import keep_log
from baton.errors import DeployFailed, EnvironmentUnfit

START_TIMEOUT_S = 120.0
# Ray's shared memory holds arguments and results of actor calls; tokens and KV never pass there.
OBJECT_STORE_BYTES = 128 * 1024 * 1024
# HAProxy takes 97 bytes for a unix socket; Ray adds a node id of 56, `/metrics.sock` and two
# slashes to the edge's folder.
FOLDER_MAX_BYTES = 97 - 56 - len("/metrics.sock//") - len(FOLDER)


@dataclass(frozen=True)
class RayHead:
    """A Ray head that runs."""

    address: str
    pid: int
    folder: Path
    marker: str
    auth_token: str
    environment: dict[str, str] = field(repr=False)
    """What a process must have in its environment to talk to it."""

    @property
    def log(self) -> Path:
        """Where the head wrote what happened to it."""
        return self.folder / "head.log"

    def stop(self) -> None:
        """End it and every process that it started."""
        end_all(self.marker, first_pid=self.pid, folder=str(self.folder))


def client_environment(auth_token: str | None) -> dict[str, str]:
    """Variables that the command's own process needs before it imports Ray."""
    environment = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # Ray's own hint lines would interrupt the progress display.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    if auth_token is not None:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": auth_token}
    return environment


def new_folder() -> Path:
    """A fresh folder for a head, short enough for Ray's and HAProxy's unix sockets.

    Raises:
        EnvironmentUnfit: when the machine's temporary folder has too long a path.
    """
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  # mkdtemp makes the folder private
        if not Path(base).is_dir():
            continue
        folder = Path(tempfile.mkdtemp(prefix="bt-", dir=base))
        if len(os.fsencode(folder)) <= FOLDER_MAX_BYTES:
            return folder
        folder.rmdir()
    raise EnvironmentUnfit(
        f"the temporary folder {tempfile.gettempdir()} has too long a path for unix sockets",
        cure="set TMPDIR to a short path, such as /tmp",
    )


def start_head(name: str, *, cpus: int, settings_environment: dict[str, str]) -> RayHead:
    """Start a Ray head and wait until it answers.

    Args:
        name: the deployment's name.
        cpus: logical CPUs that Ray may hand out.
        settings_environment: further variables for every process of the deployment.

    Raises:
        DeployFailed: when it does not come up; its log is named.
    """
    folder = new_folder()
    (folder / FOLDER).mkdir()
    marker = f"{name}:{secrets.token_hex(8)}"
    auth_token = secrets.token_hex(32)
    port, client_port, agent_port, stats_port, metrics_port, fallback_port = free_ports(6)
    own = client_environment(auth_token) | settings_environment
    environment = (
        dict(os.environ)
        | own
        | edge_environment(
            folder,
            stats_port=stats_port,
            metrics_port=metrics_port,
            fallback_port=fallback_port,
        )
        # Nothing outside this machine has business with its engines.
        | {MARKER: marker, "BATON_ENGINE_HOST": "127.0.0.1"}
        # Ray runs its workers at nice 15 (ray_config_def.h, worker_niceness): on a laptop every
        # browser tab would come before the engines.
        | {"RAY_worker_niceness": "0"}
    )
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
        f"--port={port}", f"--ray-client-server-port={client_port}",
        f"--dashboard-agent-listen-port={agent_port}", "--include-dashboard=false",
        f"--num-cpus={cpus}", f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={folder}", "--disable-usage-stats",
        # It tails every log for drivers that print them (`log_to_driver`): none of ours does, and
        # it takes CPU from the engines all the time. The files are there all the same.
        "--include-log-monitor=false",
    ]  # fmt: skip
    log = folder / "head.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal is for the command; the head is ended by it, in order.
            start_new_session=True,
        )
    head = RayHead(f"127.0.0.1:{port}", process.pid, folder, marker, auth_token, own)
    try:
        _wait_until_started(process, log)
    except DeployFailed as exc:
        head.stop()
        kept = keep_log(log, f"{name}.ray")
        shutil.rmtree(folder, ignore_errors=True)
        raise DeployFailed(exc.fact, place=str(kept), cure=exc.cure) from None
    except BaseException:
        head.stop()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return head


def _wait_until_started(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        text = log.read_text(encoding="utf-8", errors="replace")
        if "Ray runtime started" in text:
            return
        if process.poll() is not None:
            lines = [line for line in text.splitlines() if line.strip()]
            raise DeployFailed(f"Ray did not start: {lines[-1] if lines else 'it wrote nothing'}")
        time.sleep(0.05)
    raise DeployFailed(f"Ray did not start in {START_TIMEOUT_S:.0f} s")
