"""Ports that replicas of one node share out."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from baton.engine.ports import bind_first_free, hold_port
from baton.errors import PortTaken

if TYPE_CHECKING:
    from pathlib import Path

HOST = "127.0.0.1"


def free_run(length: int) -> int:
    """The first of `length` ports in a row that are free now."""
    for start in range(23_000, 28_000, length):
        taken = []
        try:
            for offset in range(length):
                probe = socket.socket()
                taken.append(probe)
                probe.bind((HOST, start + offset))
        except OSError:
            continue
        finally:
            for probe in taken:
                probe.close()
        return start
    raise AssertionError("no free ports on this machine")


def test_two_replicas_get_two_ports_of_the_range() -> None:
    """The second one takes the next port, and both listen."""
    start = free_run(2)
    with (
        bind_first_free(HOST, start, start + 1) as first,
        bind_first_free(HOST, start, start + 1) as second,
    ):
        assert first.getsockname()[1] == start
        assert second.getsockname()[1] == start + 1
        socket.create_connection((HOST, start + 1), timeout=2).close()


def test_a_full_range_names_the_range_and_the_setting() -> None:
    """The error says which range was full and which keys widen it."""
    start = free_run(1)
    with bind_first_free(HOST, start, start), pytest.raises(PortTaken) as caught:
        bind_first_free(HOST, start, start)
    assert f"{start}-{start}" in caught.value.fact
    assert "baton.engines.port_min" in (caught.value.cure or "")


def test_an_address_of_another_machine_is_an_error_and_no_endless_search() -> None:
    """192.0.2.0/24 is nobody's (RFC 5737)."""
    with pytest.raises(PortTaken, match=r"203\.0\.113\.1"):
        bind_first_free("203.0.113.1", 23_000, 23_001)


def test_a_held_port_is_not_held_twice(tmp_path: Path) -> None:
    """The port is not bound yet, so only the lock keeps the second replica away."""
    start = free_run(2)
    first = hold_port(HOST, start, start + 1, lock_dir=tmp_path)
    second = hold_port(HOST, start, start + 1, lock_dir=tmp_path)
    assert (first.port, second.port) == (start, start + 1)
    with pytest.raises(PortTaken):
        hold_port(HOST, start, start + 1, lock_dir=tmp_path)
    first.release()
    third = hold_port(HOST, start, start + 1, lock_dir=tmp_path)
    assert third.port == start
    second.release()
    third.release()


def test_a_port_that_somebody_else_uses_is_not_held(tmp_path: Path) -> None:
    """Other programs do not know our locks."""
    start = free_run(2)
    with bind_first_free(HOST, start, start):
        held = hold_port(HOST, start, start + 1, lock_dir=tmp_path)
        assert held.port == start + 1
        held.release()
