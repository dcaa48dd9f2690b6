"""Several gateway processes on one port, for more than one core: `baton gateway --workers N`.

Each process has a listening socket of its own on the same address (SO_REUSEPORT): Linux deals new
connections out among them, by a hash of their addresses. Each is a whole gateway, with its own
view of the engines, its own places (`admission`) and its own metrics, as several replicas behind
Ray Serve's edge are. A process that ends is replaced; the others go on meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from baton.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("baton.cli.workers")

BACKLOG = 2048

_PR_SET_PDEATHSIG = 1
REPLACE_AFTER_S = 1.0
"""Between a process's end and its successor's start: one that cannot live must not spin."""


def keeper_of(taken: socket.socket) -> socket.socket:
    """A socket that keeps the address of one that listens, which it closes, for others to share.

    It gets no connection: only sockets that listen do. That the address was free is known then; of
    two that may be shared, the second would have got half of the first one's connections.
    """
    address = taken.getsockname()
    taken.close()
    return _shared(taken.family, address)


def one_of(keeper: socket.socket) -> socket.socket:
    """A listening socket on the address that is kept."""
    own = _shared(keeper.family, keeper.getsockname())
    own.listen(BACKLOG)
    return own


def _shared(family: int, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(address)
    return made


class Workers:
    """Starts processes and keeps them until told to end.

    Args:
        count: How many.
        serve: Runs one until SIGTERM; calls what it is given once it listens.
    """

    def __init__(self, count: int, serve: Callable[[Callable[[], None]], None]) -> None:
        self._count = count
        self._serve = serve
        self._pids: set[int] = set()
        self._ending = False

    def run(self, ready: Callable[[], None]) -> None:
        """Until SIGINT or SIGTERM, which they get as SIGTERM; SIGHUP goes to all as well.

        Args:
            ready: Called once all listen.

        Raises:
            EnvironmentUnfit: One of them did not come up.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._end)
        signal.signal(signal.SIGHUP, self._tell)
        pipes = [self._start() for _ in range(self._count)]
        came_up = [self._listens(pipe) for pipe in pipes]
        if not all(came_up) and not self._ending:
            self._end()
        elif not self._ending:
            ready()
        while self._pids:
            # A signal's handler runs meanwhile, and waiting goes on behind it.
            pid, status = os.waitpid(-1, 0)
            self._pids.discard(pid)
            if not self._ending:
                self._replace(pid, status)
        if not all(came_up):
            raise EnvironmentUnfit("the gateway could not start", cure="see the lines above")

    def _replace(self, pid: int, status: int) -> None:
        log.warning(
            "a gateway process ended; another takes its place",
            extra={"pid": pid, "status": os.waitstatus_to_exitcode(status)},
        )
        time.sleep(REPLACE_AFTER_S)
        if not self._ending:
            os.close(self._start())

    def _end(self, number: int = 0, frame: Any = None) -> None:
        del number, frame
        self._ending = True
        self._tell(signal.SIGTERM)

    def _tell(self, number: int, frame: Any = None) -> None:
        del frame
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    @staticmethod
    def _listens(pipe: int) -> bool:
        said = os.read(pipe, 1)
        os.close(pipe)
        return bool(said)

    def _start(self) -> int:
        """Fork one: the end of a pipe on which it says that it listens."""
        parent = os.getpid()
        hears, says = os.pipe()
        pid = os.fork()
        if pid:
            os.close(says)
            self._pids.add(pid)
            return hears
        status = 1
        try:
            os.close(hears)
            os.setsid()  # Ctrl-C in the terminal is for the parent, who passes it on
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() == parent:
                self._serve(lambda: _say(says))
                status = 0
        except BaseException:  # noqa: BLE001 - whatever it is, this process ends here
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)


def _say(pipe: int) -> None:
    with contextlib.suppress(OSError):  # a successor: nobody listens
        os.write(pipe, b".")
    os.close(pipe)
