"""Ports that several replicas of one node share out among themselves.

An HTTP port is bound at once and the socket is handed to the server. A side-channel port is bound
by vLLM much later, inside another process, so it is held with a lock file that lives as long as
the replica's process: two replicas that start side by side cannot pick the same one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import tempfile
from pathlib import Path

from baton.errors import PortTaken


def bind_first_free(host: str, port_min: int, port_max: int) -> socket.socket:
    """A socket that listens on the first free port of `port_min..port_max` at `host`.

    Raises:
        PortTaken: when every port of the range is in use, or `host` is not an address of this node.
    """
    for port in range(port_min, port_max + 1):
        # No SO_REUSEADDR: a port in TIME_WAIT may be skipped, another replica's may not be taken.
        # asyncio turns Nagle off where the protocol is named: a small answer behind another would
        # wait for the peer's delayed acknowledgement, 40 ms on Linux (`base_events._set_nodelay`).
        candidate = socket.socket(_family(host), socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            candidate.bind((host, port))
        except OSError as exc:
            candidate.close()
            if exc.errno == errno.EADDRINUSE:
                continue
            raise PortTaken(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
        candidate.listen(1024)
        candidate.setblocking(False)
        return candidate
    raise PortTaken(
        f"no free port for an engine at {host} in {port_min}-{port_max}",
        cure="widen baton.engines.port_min and port_max",
    )


class HeldPort:
    """A port number that no other replica of this node takes while this object lives."""

    def __init__(self, port: int, lock_fd: int) -> None:
        self.port = port
        self._lock_fd = lock_fd

    def release(self) -> None:
        """Give the number back; the lock also ends with the process."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def hold_port(
    host: str, port_min: int, port_max: int, *, count: int = 1, lock_dir: Path | None = None
) -> HeldPort:
    """Hold the first port of `port_min..port_max` from which `count` in a row are free.

    Raises:
        PortTaken: when there is none.
    """
    folder = lock_dir or Path(tempfile.gettempdir()) / f"baton-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for port in range(port_min, port_max + 2 - count, count):
        lock_fd = os.open(folder / str(port), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            continue
        if all(_is_free(host, port + offset) for offset in range(count)):
            return HeldPort(port, lock_fd)
        os.close(lock_fd)
    raise PortTaken(
        f"no free side-channel port at {host} in {port_min}-{port_max}",
        cure="widen baton.engines.side_channel_port_min and side_channel_port_max",
    )


def _is_free(host: str, port: int) -> bool:
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
