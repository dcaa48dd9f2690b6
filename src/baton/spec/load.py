"""Reads a file and remembers the line of every key.

A FILE is a Ray Serve config (`applications: […]`) or a KubeRay RayService manifest, whose
`serveConfigV2` holds one. Nothing here raises for what a file says: a `LoadedFile` carries its
faults, so that a run over many files reports all of them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from baton.spec.faults import Fault, Spot
from baton.spec.indentation import looks_flat, rebuild
from baton.spec.loaded import LoadedFile, fault_of, resolved
from baton.spec.manifest import from_manifest, is_manifest
from baton.spec.yaml_tree import Tree, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 1024 * 1024
"""More than etcd takes for a manifest in one piece, and a hundred times what a config needs."""


def load_file(source: str | FilePath, env: Mapping[str, str] | None = None) -> LoadedFile:
    """Reads a file, or standard input for `-`.

    Args:
        source: Path of the file, or `-`.
        env: Where `${VAR}` is looked up; the process's environment when left out.
    """
    name = str(source)
    shown = "<stdin>" if name == "-" else name
    try:
        raw = _read(name)
    except _Unreadable as exc:
        return LoadedFile(shown, faults=(exc.fault,))
    return load_text(raw, shown, env)


def load_text(raw: bytes | str, path: str, env: Mapping[str, str] | None = None) -> LoadedFile:
    """The same for text that is at hand; `path` is only for messages."""
    env = os.environ if env is None else env
    if isinstance(raw, bytes):
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            before = raw[: exc.start]
            line = before.count(b"\n") + 1
            column = exc.start - (before.rfind(b"\n") + 1) + 1
            fault = Fault(
                "BTN-004",
                "error",
                f"the file is not UTF-8: byte 0x{raw[exc.start]:02X}",
                path,
                line,
                column,
                cure="save it as UTF-8",
            )
            return LoadedFile(path, faults=(fault,))
    else:
        text = raw
    if looks_flat(text):
        return _from_flat(text, path, env)
    return _from_trees(parse(text), text, path, env)


def _from_flat(text: str, path: str, env: Mapping[str, str]) -> LoadedFile:
    """A file without indentation: rebuilt with a warning, or refused with the line in doubt."""
    rebuilt = rebuild(text)
    if rebuilt.text is None:
        line = rebuilt.uncertain_line
        fault = Fault(
            "BTN-011",
            "error",
            f"the indentation is gone, and {rebuilt.reason}",
            path,
            line,
            1,
            cure="indent the file by hand; examples/01-laptop-1p1d/app.yaml shows the shape",
        )
        return LoadedFile(path, text, faults=(fault,))
    loaded = _from_trees(parse(rebuilt.text), text, path, env)
    fault = Fault(
        "BTN-011",
        "warning",
        "the indentation is gone; the keys allow one shape only, and it is used",
        path,
        1,
        1,
        cure="`baton validate --fix` writes it",
    )
    loaded = _unindented(loaded, rebuilt.text)
    return replace(loaded, text=text, faults=(fault, *loaded.faults), rebuilt=rebuilt.text)


def _unindented(loaded: LoadedFile, rebuilt: str) -> LoadedFile:
    """The places of a rebuilt file as they are in the flat one: same lines, less columns."""
    indents = [len(line) - len(line.lstrip(" ")) for line in rebuilt.splitlines()]

    def move(line: int, column: int) -> tuple[int, int]:
        indent = indents[line - 1] if 0 < line <= len(indents) else 0
        return line, max(column - indent, 1)

    spots = {
        where: Spot(move(*spot.key), move(*spot.value)) for where, spot in loaded.spots.items()
    }
    faults = tuple(
        replace(fault, column=move(fault.line, fault.column)[1]) for fault in loaded.faults
    )
    return replace(loaded, spots=spots, faults=faults)


class _Unreadable(Exception):
    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(fault.message)


def _read(name: str) -> bytes:
    def unreadable(message: str, cure: str | None = None) -> _Unreadable:
        return _Unreadable(Fault("BTN-009", "error", message, name, cure=cure))

    try:
        if name == "-":
            raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            path = FilePath(name)
            if path.is_dir():
                inside = sorted(p.name for p in path.iterdir() if p.suffix in {".yaml", ".yml"})
                cure = f"name the file: {path / inside[0]}" if inside else "name a YAML file"
                raise unreadable("this is a directory", cure)
            with path.open("rb") as stream:
                raw = stream.read(MAX_BYTES + 1)
    except FileNotFoundError as exc:
        cure = _near_name(FilePath(name)) or "look at the name, or start from an example"
        raise unreadable("there is no such file", cure) from exc
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise unreadable(f"the file cannot be read: {reason}", "name a file you can read") from exc
    if len(raw) > MAX_BYTES:
        raise unreadable(
            f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB: no config",
            "name the YAML file",
        )
    return raw


def _near_name(path: FilePath) -> str | None:
    from difflib import get_close_matches  # noqa: PLC0415 - only for this message

    try:
        names = [p.name for p in path.parent.iterdir()]
    except OSError:
        return None
    near = get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"did you mean `{path.parent / near[0]}`?" if near else None


def _from_trees(trees: list[Tree], text: str, path: str, env: Mapping[str, str]) -> LoadedFile:
    manifests = [t for t in trees if is_manifest(t.value)]
    if manifests:
        return from_manifest(manifests, text, path, env)
    tree = trees[0]
    if tree.empty:
        fault = Fault(
            "BTN-009",
            "error",
            "the file is empty",
            path,
            1,
            1,
            cure="start from examples/01-laptop-1p1d/app.yaml",
        )
        return LoadedFile(path, text, faults=(fault,))
    faults = [fault_of(problem, path) for problem in tree.problems]
    if len(trees) > 1:
        line = trees[1].spots[()].key[0] if trees[1].spots else 1
        faults.append(
            Fault(
                "BTN-009",
                "error",
                "the file holds more than one YAML document",
                path,
                line,
                1,
                cure="one Serve config a file: Ray reads only a single document",
            )
        )
    document = resolved(tree, path, env, faults)
    return LoadedFile(path, text, document, tree.spots, tuple(faults), written=tree.written)
