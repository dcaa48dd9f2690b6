"""A cluster that is not there is told in the time that was given, without Ray."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from baton.deploy import local, state
from baton.deploy.intent import AppPlan, DeployPlan
from baton.deploy.ray_address import check_ray_answers
from baton.errors import DeployFailed, RayUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SETTINGS = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00\x03\x00\x00\x00\x64"


@contextlib.contextmanager
def listening(says: bytes | None) -> Iterator[str]:
    """A server that says this to whoever comes, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    if says is not None:
                        connection.sendall(says)
                    while connection.recv(4096):
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_grpc_server_is_taken_for_a_cluster() -> None:
    """Ray itself says what else is wrong."""
    with listening(SETTINGS) as address:
        check_ray_answers(address, 5.0)


@pytest.mark.parametrize(
    ("says", "why"),
    [(None, "within 0.2 s"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no gRPC"), (b"", "within")],
    ids=["silent", "http", "nothing"],
)
def test_whoever_else_listens_there_is_told_from_it(says: bytes | None, why: str) -> None:
    """A port that somebody holds and never answers on, above all."""
    with listening(says) as address, pytest.raises(RayUnreachable, match=why):
        check_ray_answers(address, 0.2)


def test_a_port_that_nobody_listens_on_is_told_at_once() -> None:
    """By the system's own word."""
    with pytest.raises(RayUnreachable, match="refused"):
        check_ray_answers("127.0.0.1:1", 60.0)


@pytest.mark.parametrize("address", ["auto", "ray://10.0.0.1:10001", "local"])
def test_what_only_ray_understands_is_left_to_ray(address: str) -> None:
    """Nothing is asked."""
    check_ray_answers(address, 0.001)


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of its own, and a Ray that must not be asked."""
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(local.serve_app, "connected", lambda *_: pytest.fail("Ray was asked"))
    return tmp_path


def test_up_on_a_cluster_that_is_not_there_asks_before_ray_does(no_ray: Path) -> None:
    """`--timeout` counts, and nothing is recorded."""
    plan = DeployPlan(
        "x", "x.yaml", {}, (AppPlan("x", "/", "m", by_baton=True),), "127.0.0.1", 1, 1, 1
    )
    with listening(None) as address, pytest.raises(RayUnreachable, match=r"within 0\.1 s"):
        local.up(plan, progress=lambda *_: None, address=address, timeout_s=0.1)
    assert not state.everything()


def test_a_deployment_whose_joined_cluster_is_gone_is_forgotten(no_ray: Path) -> None:
    """Its record would otherwise stay for ever."""
    state.save(
        state.Deployment(
            name="x",
            marker="m",
            ray_address="127.0.0.1:1",
            endpoint="http://127.0.0.1:1",
            apps=("x",),
            builder="b",
            file="f",
            started_at=0.0,
        )
    )
    with pytest.raises(DeployFailed, match="is forgotten"):
        local.down("x")
    assert not state.everything()
