"""Which processes belong to a deployment, and how to end every one of them.

Each process that a deployment starts inherits `BATON_DEPLOYMENT` in its environment: Ray's
daemons, its workers, the engines' own children, the edge. Process groups and parents change along
the way; the environment does not, but a process that sets its title (Ray's and vLLM's do, with
setproctitle) writes over the place where Linux shows it. Those are known by the deployment's
folder: their output goes to files in it.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time

import psutil

MARKER = "BATON_DEPLOYMENT"
UNCLAIMED = (21_000, 32_000)
"""Below Linux' own range, above those of Ray's workers, of engines and of their side channels."""
_TRIES = 64
_DRAWS = random.SystemRandom()
"""Of the system: processes whose generators have one seed would draw the same ports."""


def members(marker: str, folder: str = "") -> list[psutil.Process]:
    """All live processes of a deployment that this user may see.

    Args:
        marker: the deployment's mark.
        folder: the deployment's own folder; an empty string looks at the mark alone.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if _is_marked(process, marker) or (folder and _uses(process, folder)):
                found.append(process)
    return found


def _is_marked(process: psutil.Process, marker: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.environ().get(MARKER) == marker)
    return False


def _uses(process: psutil.Process, folder: str) -> bool:
    inside = folder.rstrip("/") + "/"
    if any(inside in argument for argument in process.cmdline()):
        return True
    return any(file.path.startswith(inside) for file in process.open_files())


def end_all(
    marker: str, *, first_pid: int | None = None, folder: str = "", patience_s: float = 10.0
) -> int:
    """End every process of a deployment; returns how many had to be killed.

    The head goes first, by SIGTERM, because Ray's head ends its own daemons in order. What is left
    after `patience_s` is killed. Ends when no member is found any more.

    Args:
        marker: the deployment's mark.
        first_pid: the Ray head.
        folder: the deployment's own folder.
        patience_s: how long SIGTERM may take.
    """
    known = {process.pid: process for process in members(marker, folder)}
    head = known.get(first_pid or 0)
    if head is not None:
        with contextlib.suppress(psutil.Error):
            for child in head.children(recursive=True):
                known.setdefault(child.pid, child)
            head.terminate()
            head.wait(timeout=patience_s)
    left = [process for process in known.values() if process.is_running()]
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(left, timeout=min(3.0, patience_s))
    killed = 0
    # A process may fork while it is being ended, so look again until nobody is there.
    for _ in range(50):
        left = members(marker, folder)
        left += [one for one in known.values() if _lives(one) and one not in left]
        if not left:
            break
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
                killed += 1
        psutil.wait_procs(left, timeout=1.0)
    return killed


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that is free now, and that Linux gives nobody by itself.

    Whoever takes it does so some time later. Of the ports that the kernel hands out to outgoing
    connections (`net.ipv4.ip_local_port_range`) one may be gone by then, on a busy host often.
    """
    for _ in range(_TRIES):
        port = _DRAWS.randrange(*UNCLAIMED)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((host, port))
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """So many ports as `free_port` gives, no two of them the same: none is taken yet."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[free_port()] = None
    return list(found)


def port_owner(host: str, port: int) -> str | None:
    """Who listens on `port`, as `name (pid 123)`; None when the port is free.

    Returns `another process` when somebody does and this user may not know who.
    """
    address = "127.0.0.1" if host in {"", "localhost", "0.0.0.0", "::"} else host  # noqa: S104
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            pass
        else:
            return None
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and connection.laddr and connection.laddr.port == port and connection.pid:
                name = psutil.Process(connection.pid).name()
                return f"{name} (pid {connection.pid})"
    return "another process"


def wait_until_free(host: str, port: int, *, patience_s: float) -> bool:
    """Whether the port became free in time."""
    deadline_s = time.monotonic() + patience_s
    while port_owner(host, port) is not None:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.1)
    return True
