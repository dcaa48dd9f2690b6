"""Ending everything that belongs to a deployment, and nothing else."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baton.deploy.processes import (
    MARKER,
    UNCLAIMED,
    end_all,
    free_port,
    free_ports,
    members,
    port_owner,
)

# Ignores SIGTERM and has a child in a session of its own, as engines do.
STUBBORN = (
    "import signal,subprocess,sys,time;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "subprocess.Popen([sys.executable,'-c','import time;time.sleep(60)'],start_new_session=True);"
    "print('up',flush=True);time.sleep(60)"
)


def start(marker: str, code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, MARKER: marker},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_every_member_ends_and_a_bystander_lives() -> None:
    """Neither SIGTERM's refusal nor a new session saves a member; another marker does."""
    mine, other = secrets.token_hex(8), secrets.token_hex(8)
    stubborn = start(mine, STUBBORN)
    bystander = start(other, "import time;print('up',flush=True);time.sleep(60)")
    try:
        deadline_s = time.monotonic() + 20
        while len(members(mine)) < 2 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert len(members(mine)) == 2
        killed = end_all(mine, first_pid=stubborn.pid, patience_s=0.3)
        assert killed >= 1
        assert members(mine) == []
        assert bystander.poll() is None
    finally:
        for process in (stubborn, bystander):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_a_member_that_hides_its_environment_is_known_by_the_folder(tmp_path: Path) -> None:
    """As Ray's and vLLM's processes do when they set their title; its output is in the folder."""
    mine = secrets.token_hex(8)
    log = tmp_path / "worker.out"
    with log.open("wb") as output:
        hidden = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            env={}, stdout=output, start_new_session=True,
        )  # fmt: skip
    try:
        assert members(mine) == []
        assert [one.pid for one in members(mine, str(tmp_path))] == [hidden.pid]
        end_all(mine, folder=str(tmp_path), patience_s=0.3)
        assert members(mine, str(tmp_path)) == []
    finally:
        hidden.kill()
        hidden.wait()


def test_a_folder_with_a_longer_name_is_another_folder(tmp_path: Path) -> None:
    """`/tmp/bt-a` is not `/tmp/bt-ab`."""
    other = tmp_path / "bt-ab"
    other.mkdir()
    with (other / "out").open("wb") as output:
        bystander = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], env={}, stdout=output
        )
    try:
        assert members(secrets.token_hex(8), str(tmp_path / "bt-a")) == []
    finally:
        bystander.kill()
        bystander.wait()


def test_ending_nothing_is_no_error() -> None:
    """`down` may come after everything has died by itself."""
    assert end_all(secrets.token_hex(8)) == 0


def test_the_owner_of_a_port_is_named_with_its_pid() -> None:
    """So that the reader knows what to end."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        owner = port_owner("127.0.0.1", port)
    assert owner is not None
    assert str(os.getpid()) in owner


def test_a_free_port_has_no_owner() -> None:
    """And `free_port` finds one."""
    assert port_owner("127.0.0.1", free_port()) is None


def test_a_free_port_is_none_that_outgoing_connections_get() -> None:
    """They would take it before whoever asked for it."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first < UNCLAIMED[1]:
        pytest.skip(f"this machine gives outgoing connections ports from {first} on")
    assert all(port < first for port in [free_port() for _ in range(50)])


def test_ports_that_are_asked_for_together_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is taken before the last is found, so chance could give one twice."""
    given = iter([4001, 4001, 4002, 4001, 4003])
    monkeypatch.setattr("baton.deploy.processes.free_port", lambda: next(given))
    assert free_ports(3) == [4001, 4002, 4003]


def test_processes_with_one_seed_draw_different_ports() -> None:
    """As tests do that run side by side: each port is free, and both would take it."""
    drawn = []
    for _ in range(2):
        random.seed(1)
        drawn.append([free_port() for _ in range(10)])
    assert drawn[0] != drawn[1]
