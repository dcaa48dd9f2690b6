"""Writes rendered files into a folder, and never over work that is not Baton's.

A list of what was written, with a hash of each, stays in the folder. A file that is not on the
list, or was edited since, is in the way, and nothing is written at all.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from baton.errors import FilesInTheWay

if TYPE_CHECKING:
    from collections.abc import Mapping

LIST = ".baton-rendered.json"
_SHOWN = 5


@dataclass(frozen=True)
class Written:
    """What became of the folder."""

    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Files of an earlier rendering that are no longer made, and were edited: left alone."""


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool = False) -> Written:
    """Writes the files, and removes those of an earlier rendering that are no longer made.

    Args:
        folder: Where to; made when it is not there.
        files: Texts by path below the folder.
        force: Overwrite what is in the way.

    Raises:
        FilesInTheWay: when something would be lost, or the folder cannot be written.
    """
    before = _listed(folder)
    foreign, edited = [], []
    for name, text in files.items():
        found = _hash_of(folder / name)
        if found is None or found == _hash(text):
            continue
        if name not in before:
            foreign.append(name)
        elif found != before[name]:
            edited.append(name)
    if (foreign or edited) and not force:
        raise _in_the_way(folder, foreign, edited)
    stale = [name for name in before if name not in files and _is_below(name)]
    mine = [name for name in stale if _hash_of(folder / name) == before[name]]
    kept = [name for name in stale if name not in mine and (folder / name).exists()]
    changed = [name for name, text in files.items() if _hash_of(folder / name) != _hash(text)]
    try:
        for name in changed:
            _write(folder / name, files[name])
        for name in mine:
            (folder / name).unlink()
        listed = {name: _hash(text) for name, text in sorted(files.items())}
        _write(folder / LIST, json.dumps({"files": listed}, indent=1) + "\n")
    except OSError as exc:
        raise FilesInTheWay(
            f"cannot write: {exc.strerror}",
            place=str(exc.filename or folder),
            cure="name a folder that you can write",
        ) from exc
    same = tuple(name for name in files if name not in changed)
    return Written(tuple(changed), same, tuple(mine), tuple(kept))


def _in_the_way(folder: Path, foreign: list[str], edited: list[str]) -> FilesInTheWay:
    kinds = [
        f"{len(names)} {what} ({', '.join(names[:_SHOWN])}{', …' if names[_SHOWN:] else ''})"
        for names, what in (
            (foreign, "that Baton did not make"),
            (edited, "that were edited since"),
        )
        if names
    ]
    return FilesInTheWay(
        "files are in the way: " + "; ".join(kinds),
        place=str(folder),
        cure="name another folder, or add --force to overwrite them",
    )


def _is_below(name: str) -> bool:
    # The list is a file like any other: what it names must not lead out of the folder.
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts


def _listed(folder: Path) -> dict[str, str]:
    try:
        document = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    files = document.get("files") if isinstance(document, dict) else None
    if not isinstance(files, dict):
        return {}
    return {str(name): str(value) for name, value in files.items()}


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _hash_of(path: Path) -> str | None:
    """The hash of what is there; None when nothing is."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        return "no file of Baton's"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
    except OSError:
        return "cannot be read"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
