"""A Ray cluster that somebody else started: `serve run` and `baton up --address` both use it.

One Ray, without HAProxy, as `ray start` gives it. Told once (`story`), like test_deployment.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton.demo.tiny_model import make_tiny_model
from baton.deploy.processes import MARKER, end_all, free_port
from tests.e2e.deployment import Baton, app, listen_to_ctrl_c, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.ray, pytest.mark.real_engine, pytest.mark.timeout(900)]


@dataclass
class Story:
    """What was seen."""

    by_serve_run: httpx.Response | None = None
    up: Any = None
    by_baton_up: httpx.Response | None = None
    down: Any = None
    ray_lives: bool = False
    after_down: int = 0


class Ray:
    """A Ray head as a person starts it, but with ports and a folder of its own."""

    def __init__(self) -> None:
        self.marker = secrets.token_hex(8)
        self.folder = Path(tempfile.mkdtemp(prefix="ry-", dir="/tmp"))
        self.port = free_port()
        self.environment = {
            **os.environ,
            MARKER: self.marker,
            "BATON_ENGINE_HOST": "127.0.0.1",
            "RAY_worker_niceness": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block",
            f"--port={self.port}", f"--ray-client-server-port={free_port()}",
            f"--dashboard-agent-listen-port={free_port()}", "--include-dashboard=false",
            "--num-cpus=8", "--object-store-memory=128000000", f"--temp-dir={self.folder}",
        ]  # fmt: skip
        self.log = self.folder / "head.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            wait_for("Ray", lambda: "Ray runtime started" in self.log.read_text(), seconds=120)
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """What `--address` takes."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End it all."""
        end_all(self.marker, first_pid=self.process.pid)
        self.process.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)


def _answers(base: str, baton: Baton) -> httpx.Response | None:
    try:
        answer = baton.complete(base, headers={"x-baton-disaggregate": "always"})
    except httpx.HTTPError:
        return None
    return answer if answer.status_code == httpx.codes.OK else None


def _answers_by_both(base: str, baton: Baton) -> httpx.Response | None:
    """Decode alone answers, too, while prefill is still starting: `serve run` waits for no one."""
    answer = _answers(base, baton)
    return answer if answer is not None and answer.headers["x-baton-route"] == "pd" else None


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = tmp_path_factory.mktemp("foreign")
    model = make_tiny_model(folder / "tiny")
    baton = Baton(folder)
    file = baton.write(app(model, port=baton.port))
    base = f"http://127.0.0.1:{baton.port}"
    seen = Story()
    ray = Ray()
    try:
        serve = Path(sys.executable).with_name("serve")
        with (folder / "serve.log").open("wb") as output:
            run = subprocess.Popen(
                [str(serve), "run", "--address", ray.address, str(file)],
                env=ray.environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT,
                preexec_fn=listen_to_ctrl_c,  # noqa: PLW1509 - it takes no lock
            )  # fmt: skip
        try:
            seen.by_serve_run = wait_for(
                "an answer of both phases", lambda: _answers_by_both(base, baton), seconds=400
            )
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(timeout=300)
        # Its controller is killed a moment after the command has ended: `up` may meet it dying.
        for _ in range(60):
            if not _listens(baton.port):
                break
            time.sleep(1)
        seen.up = baton.run("up", str(file), "--address", ray.address)
        seen.by_baton_up = _answers(base, baton)
        seen.down = baton.run("down")
        seen.ray_lives = ray.process.poll() is None
        try:
            seen.after_down = httpx.get(f"{base}/v1/models", timeout=30).status_code
        except httpx.HTTPError:
            seen.after_down = -1
    finally:
        ray.stop()
    return seen


def test_serve_run_takes_the_same_file(story: Story) -> None:
    """`import_path: baton:build_pd_openai_app` needs no command of ours."""
    assert story.by_serve_run is not None
    assert story.by_serve_run.headers["x-baton-route"] == "pd"


def test_up_joins_a_cluster_that_it_did_not_start(story: Story) -> None:
    """`--address`: the same stages, the same proof."""
    assert story.up.returncode == 0, story.up.stderr
    assert story.by_baton_up is not None
    assert story.by_baton_up.headers["x-baton-route"] == "pd"


def test_down_takes_the_application_away_and_leaves_the_cluster(story: Story) -> None:
    """What we did not start is not ours to stop."""
    assert story.down.returncode == 0, story.down.stderr
    assert story.ray_lives
    assert story.after_down != 200
