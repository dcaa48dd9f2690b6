"""The bench of routes on real engines: what it starts does not outlive it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from bench import routes_real

FOREVER = "import time; time.sleep(600)"


class _Node:
    """A node that runs something else, and whose link cannot be throttled."""

    def inside(self, *_: str) -> list[str]:
        return [sys.executable, "-S", "-c", FOREVER]

    def throttle(self, _rate: str) -> None:
        raise RuntimeError("no tc")


def test_the_load_ends_when_the_bench_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on for minutes, beside whatever is measured next."""
    popen = subprocess.Popen
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        started.append(popen(command))
        return started[-1]

    monkeypatch.setattr(routes_real, "CALM_S", 0.0)
    monkeypatch.setattr(routes_real.subprocess, "Popen", start)
    with pytest.raises(RuntimeError, match="no tc"):
        routes_real.throttled(_Node(), _Node(), "http://127.0.0.1:9")  # type: ignore[arg-type]
    (load,) = started
    try:
        assert load.poll() is not None
    finally:
        load.kill()
