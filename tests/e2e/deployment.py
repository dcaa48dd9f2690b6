"""Runs `baton` as a person would, in a state folder of its own, with the tiny model."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from baton.deploy.processes import free_port, members

MODEL_ID = "tiny"
CPU_ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
PROMPT = "The quick brown fox hands the baton to the lazy dog, who runs on. " * 6


def app(
    model: Path,
    *,
    name: str = "tiny",
    replicas: int = 1,
    tp: int = 1,
    route_prefix: str = "/",
    port: int,
) -> dict[str, Any]:
    """A Serve config for the tiny model on CPU."""

    def role(which: str, kv_role: str) -> dict[str, Any]:
        return {
            "model_loading_config": {"model_id": MODEL_ID, "model_source": str(model)},
            "placement_group_config": {"bundles": [{"CPU": 1}] * tp},
            "engine_kwargs": {
                "max_model_len": 2048,
                "enforce_eager": True,
                "kv_cache_memory_bytes": 256 * 2**20,
                "tensor_parallel_size": tp,
                "kv_transfer_config": {
                    "kv_connector": "NixlConnector",
                    "kv_role": kv_role,
                    "engine_id": which,
                    "kv_buffer_device": "cpu",
                },
            },
            "runtime_env": {"env_vars": dict(CPU_ENV)},
            "deployment_config": {"num_replicas": replicas},
        }

    return {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": name,
                "import_path": "baton:build_pd_openai_app",
                "route_prefix": route_prefix,
                "args": {
                    "prefill_config": role("prefill", "kv_producer"),
                    "decode_config": role("decode", "kv_consumer"),
                    "baton": {"disaggregate": {"mode": "always"}},
                },
            }
        ],
    }


def listen_to_ctrl_c() -> None:
    """For a child that is to be interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass
class Baton:
    """The command, with its own state folder and files."""

    folder: Path
    port: int = field(default_factory=free_port)

    @property
    def environment(self) -> dict[str, str]:
        """What the command sees."""
        return {
            **os.environ,
            "BATON_STATE_DIR": str(self.folder / "state"),
            "TMPDIR": str(temporary()),
        }

    def write(self, config: dict[str, Any], name: str = "app.yaml") -> Path:
        """Write a config file."""
        path = self.folder / name
        path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the command and go on."""
        return subprocess.Popen(
            [sys.executable, "-m", "baton.cli", *arguments],
            env=self.environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A run in the background of a shell ignores Ctrl-C, and so would its children.
            preexec_fn=listen_to_ctrl_c,  # noqa: PLW1509 - it takes no lock
        )

    def run(self, *arguments: str, timeout_s: float = 400.0) -> subprocess.CompletedProcess[str]:
        """Run the command to its end; Ctrl-C when its time is over, or the test run is ended."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException as exc:
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            if not isinstance(exc, subprocess.TimeoutExpired):
                raise
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def status(self) -> list[dict[str, Any]]:
        """`baton status --format json`."""
        found: list[dict[str, Any]] = json.loads(self.run("status", "--format", "json").stdout)
        return found

    def engines(self) -> list[dict[str, Any]]:
        """The engines that the first deployment's status lists."""
        listed: list[dict[str, Any]] = self.status()[0]["engines"]
        return listed

    def complete(self, base: str, **changes: Any) -> httpx.Response:
        """One greedy text completion; headers go under `headers`."""
        headers = changes.pop("headers", {})
        body = {
            "model": MODEL_ID, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, **changes,
        }  # fmt: skip
        return httpx.post(f"{base}/v1/completions", json=body, headers=headers, timeout=120)


def belonging_to(folders: set[str]) -> list[str]:
    """Every live process that has to do with one of these deployment folders."""
    found = []
    for folder in folders:
        for process in members("none", folder):
            with contextlib.suppress(psutil.Error):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
    return found


@functools.cache
def temporary() -> Path:
    """Where these commands make their folders: other tests start clusters beside them.

    No longer than this: the unix sockets of Ray and HAProxy are below (deploy/ray_head.py).
    """
    folder = Path(tempfile.mkdtemp(prefix="", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def deployment_folders() -> set[str]:
    """Folders of deployments that these commands have made and not taken away."""
    return {str(path) for path in temporary().glob("bt-*")}


def wait_for(what: str, check: Any, *, seconds: float) -> Any:
    """Poll until `check()` is true and return it; fails with `what` after a generous limit."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        value = check()
        if value:
            return value
        time.sleep(0.5)
    raise AssertionError(f"waited {seconds:.0f} s in vain: {what}")
