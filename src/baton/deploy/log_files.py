"""Which files hold the lines of a deployment, and whose they are.

Under `baton up` everything is below the deployment's folder, in Ray's session: the gateway, the
engines and Serve write to the worker's `.out` and `.err`, whose first lines say which actor it is.
Files of Serve's own (`serve/*.log`) hold what is in these as well, and are left out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from baton.deploy.log_lines import Line, lines_of
from baton.errors import NotRunning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.deploy.state import Deployment

_ACTOR = ":actor_name:"
_HEAD_LINES = 10
_RAYS_OWN = ("raylet.out", "raylet.err", "gcs_server.out", "gcs_server.err", "monitor.log")
MAX_READ = 1024 * 1024
"""Bytes that `--follow` takes from one file at a time."""


@dataclass
class LogFile:
    """One file. `position` is how far it has been read."""

    path: Path
    source: str
    position: int = 0

    def lines(self) -> Iterator[Line]:
        """All of it, from the beginning."""
        try:
            written_at = self.path.stat().st_mtime
            with self.path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                yield from lines_of(file, self.source, written_at=written_at)
        except OSError:
            return  # Ray removes the files of workers that are gone

    def to_the_end(self) -> None:
        """Only what comes from now on is new: what is behind the last whole line."""
        size = _size(self.path)
        self.position = 0
        try:
            with self.path.open("rb") as file:
                for start in range(size - MAX_READ, -MAX_READ, -MAX_READ):
                    file.seek(max(0, start))
                    raw = file.read(min(MAX_READ, start + MAX_READ))
                    if b"\n" in raw:
                        self.position = max(0, start) + raw.rfind(b"\n") + 1
                        return
        except OSError:
            return

    def lines_so_far(self) -> Iterator[Line]:
        """What is not new: up to `position`."""
        try:
            written_at = self.path.stat().st_mtime
            with self.path.open("rb") as file:
                yield from lines_of(self._until(file), self.source, written_at=written_at)
        except OSError:
            return

    def _until(self, file: BinaryIO) -> Iterator[str]:
        left = self.position
        for raw in file:
            if (left := left - len(raw)) < 0:
                return
            yield raw.decode(errors="replace")

    def new_lines(self) -> list[Line]:
        """What has been written since, up to the last whole line."""
        size = _size(self.path)
        if size < self.position:
            self.position = 0  # it was cut, or is a new file of that name
        if size == self.position:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(self.position)
                raw = file.read(MAX_READ)
        except OSError:
            return []
        end = raw.rfind(b"\n") + 1
        if not end:
            if len(raw) < MAX_READ:
                return []
            end = len(raw)  # a line without end
        self.position += end
        texts = raw[:end].decode(errors="replace").split("\n")
        return list(lines_of(texts, self.source, written_at=time.time()))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def files_of(deployment: Deployment) -> list[LogFile]:
    """The files of a deployment on this machine.

    Raises:
        NotRunning: It was put on a cluster that was there already, or its folder is gone.
    """
    if not deployment.folder:
        raise NotRunning(
            f"{deployment.name} runs on a cluster that was joined, whose logs lie there",
            place=deployment.ray_address,
            cure="`ray logs` on that cluster, or `baton logs --file` with files from there",
        )
    logs = Path(deployment.folder) / "session_latest" / "logs"
    if not logs.is_dir():
        raise NotRunning(
            f"the logs of {deployment.name} are gone", place=str(logs), cure="was it stopped?"
        )
    workers = [
        LogFile(path, source_of(path))
        for path in sorted([*logs.glob("worker-*.out"), *logs.glob("worker-*.err")])
    ]
    own = [LogFile(logs / name, f"ray {name.partition('.')[0]}") for name in _RAYS_OWN]
    return [*workers, *(file for file in own if file.path.exists())]


def source_of(path: Path) -> str:
    """Whose lines a worker's file holds: `gateway[26731]`, `decode[26618]`, `serve[26338]`."""
    pid = path.stem.rpartition("-")[2]
    actor = ""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for _, line in zip(range(_HEAD_LINES), file, strict=False):
                if line.startswith(_ACTOR):
                    actor = line[len(_ACTOR) :].strip()
                    break
    except OSError:
        pass
    return f"{_name_of(actor)}[{pid}]"


def _name_of(actor: str) -> str:
    if actor.startswith("ServeReplica:"):
        deployment = actor.split(":", 2)[2]
        return deployment.partition(":")[0].lower()
    if actor.startswith("ServeController"):
        return "serve"
    if actor.startswith(("HAProxy", "Proxy")):
        return "edge"
    if "directory" in actor.lower():
        return "directory"
    return "ray worker" if not actor else f"ray {actor[:24]}"
