"""`baton gateway` as its own process, in front of engines that already run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import httpx

from baton.deploy.processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def config_file(path: Path, *, kv_lease_s: float, **block: Any) -> Path:
    """A gateway's config for engines with this lease; JSON is YAML."""
    told = {"baton": {"recovery": {"kv_lease_s": kv_lease_s}, **block}}
    path.write_text(json.dumps(told), encoding="utf-8")
    return path


@contextlib.contextmanager
def running_gateway(
    prefill: Sequence[str], decode: Sequence[str], log: Path, config: Path | None = None
) -> Iterator[str]:
    """Start it, wait until a pair can serve, yield its URL, and end it with SIGTERM."""
    port = free_port()
    command = [sys.executable, "-m", "baton.cli", "gateway", "--port", str(port)]
    for url in prefill:
        command += ["--prefill", url]
    for url in decode:
        command += ["--decode", url]
    if config is not None:
        command += ["--config", str(config)]
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=dict(os.environ), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait_until_ready(process, url, log)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                status = process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                status = process.wait()
    assert status == 0, log.read_text(encoding="utf-8")[-2000:]


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline_s = time.monotonic() + 90
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise AssertionError(log.read_text(encoding="utf-8")[-2000:])
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/ready", timeout=5).status_code == httpx.codes.OK:
                return
        time.sleep(0.2)
    raise AssertionError(f"the gateway never became ready: {log.read_text(encoding='utf-8')}")
