"""What runs on this machine, as Baton remembers it between two commands.

One file a deployment, in `$BATON_STATE_DIR`, else `$XDG_STATE_HOME/baton`, else
`~/.local/state/baton`. It holds the key of the local Ray cluster, so only its owner may read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from baton.errors import DeployFailed, EnvironmentUnfit, NotRunning

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class Deployment(BaseModel):
    """One deployment that `baton up` put here."""

    model_config = ConfigDict(frozen=True)

    name: str
    marker: str
    """In the environment of every process that belongs to it."""
    ray_address: str
    ray_pid: int | None = None
    """The local Ray head; None for a cluster that was joined and is not ours to stop."""
    ray_auth_token: str | None = None
    folder: str = ""
    """Ray's session folder and the edge's files; short, for it holds unix sockets."""
    endpoint: str
    apps: tuple[str, ...]
    builder: str
    file: str
    started_at: float
    ready: bool = False


def state_dir() -> Path:
    """The folder of the state files; made when it is not there.

    Raises:
        EnvironmentUnfit: when it cannot be made.
    """
    chosen = os.environ.get("BATON_STATE_DIR")
    if chosen is None:
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        chosen = str(Path(base) / "baton")
    folder = Path(chosen)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise EnvironmentUnfit(
            f"what runs here cannot be written down: {exc.strerror}",
            place=str(folder),
            cure="set BATON_STATE_DIR to a folder that can be written",
        ) from exc
    return folder


def checked_name(name: str) -> str:
    """The name itself, when it can be a file name.

    Raises:
        DeployFailed: when it cannot.
    """
    if NAME.fullmatch(name) is None:
        raise DeployFailed(
            f"{name!r} cannot name a deployment",
            cure="use letters, digits, '.', '_' and '-', at most 63; or pass --name",
        )
    return name


def save(deployment: Deployment) -> None:
    """Write the state of a deployment, whole or not at all."""
    path = _path(deployment.name)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    descriptor = os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(deployment.model_dump_json(indent=1))
    partial.replace(path)


def find(name: str) -> Deployment | None:
    """The deployment of that name, if one is on record."""
    path = _path(name)
    try:
        return Deployment.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValidationError, UnicodeDecodeError) as exc:
        raise DeployFailed(
            f"the record of deployment {name!r} cannot be read",
            place=str(path),
            cure="look for what it started with `ps`, end it, then remove the file",
        ) from exc


def everything() -> list[Deployment]:
    """All deployments on record, by name."""
    found = (find(path.stem) for path in sorted(state_dir().glob("*.json")))
    return [deployment for deployment in found if deployment is not None]


def the_one(name: str | None) -> Deployment:
    """The deployment of that name, or the only one there is.

    Raises:
        NotRunning: when there is none, or several and no name was given.
    """
    if name is not None:
        deployment = find(checked_name(name))
        if deployment is None:
            names = [other.name for other in everything()]
            cure = f"running: {', '.join(names)}" if names else "start one with `baton up FILE`"
            raise NotRunning(f"no deployment is called {name!r}", cure=cure)
        return deployment
    known = everything()
    if not known:
        raise NotRunning("nothing is running here", cure="start something with `baton up FILE`")
    if len(known) > 1:
        several = ", ".join(deployment.name for deployment in known)
        raise NotRunning(f"several deployments run here: {several}", cure="name the one you mean")
    return known[0]


def forget(name: str) -> None:
    """Remove the record of a deployment; nothing happens when there is none."""
    _path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Keep two commands from changing the same deployment at once.

    Raises:
        DeployFailed: when another command is at it.
    """
    path = state_dir() / f"{name}.lock"
    with path.open("w") as file:
        deadline_s = time.monotonic() + 1.0
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise DeployFailed(
                        f"another `baton` command is working on {name!r}",
                        cure="wait until it has ended, or end it",
                    ) from None
                time.sleep(0.05)
        yield


def keep_log(source: Path, name: str) -> Path:
    """Copy a log beside the state files, where it survives the deployment; returns the copy."""
    kept = state_dir() / f"{name}.log"
    kept.write_bytes(source.read_bytes())
    return kept


def _path(name: str) -> Path:
    return state_dir() / f"{name}.json"
