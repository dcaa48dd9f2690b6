"""Reads a file and remembers the line of every key.

A FILE is a Ray Serve config (`applications: […]`) or a KubeRay RayService manifest, whose
`serveConfigV2` holds one. Nothing here raises for what a file says: a `LoadedFile` carries its
faults, so that a run over many files reports all of them.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal

from ruamel.yaml.nodes import ScalarNode

from baton.spec.faults import Fault, Path, Place, Spot, dotted
from baton.spec.indentation import looks_flat, rebuild
from baton.spec.variables import resolve_variables
from baton.spec.yaml_tree import Problem, Tree, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_BYTES = 1024 * 1024
"""More than etcd takes for a manifest in one piece, and a hundred times what a config needs."""


@dataclass(frozen=True)
class LoadedFile:
    """A file as plain values. `document` is None when the text could not be read."""

    path: str
    text: str = ""
    document: Any = None
    spots: Mapping[Path, Spot] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    kind: Literal["serve", "rayservice", "args"] = "serve"
    inner_line: int = 0
    """For a RayService manifest: how many lines stand before the Serve config inside it."""
    inner_column: int = 0
    rebuilt: str | None = None
    """The text with its indentation, when the file had lost it."""
    written: Mapping[Path, str] = field(default_factory=dict)
    """How a value is written, where YAML makes something else of it."""

    def place(self, path: Path) -> Place:
        """Where a value stands, or the nearest thing around it."""
        spot = self.spot(path)
        return Place(self.path, *(spot.key if spot else (0, 0)))

    def value_place(self, path: Path) -> Place:
        """Where a value itself begins, for what is wrong with the value and not with its key."""
        spot = self.spots.get(path)
        return Place(self.path, *spot.value) if spot else self.place(path)

    def spot(self, path: Path) -> Spot | None:
        """The spot of a path or of its nearest ancestor that is in the file."""
        while path and path not in self.spots:
            path = path[:-1]
        return self.spots.get(path)


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
    manifests = [t for t in trees if _is_manifest(t.value)]
    if manifests:
        return _from_manifest(manifests, text, path, env)
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
    faults = [_fault(problem, path) for problem in tree.problems]
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
    document = _resolved(tree, path, env, faults)
    return LoadedFile(path, text, document, tree.spots, tuple(faults), written=tree.written)


def _is_manifest(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("kind") == "RayService"
        and isinstance(value.get("apiVersion", "ray.io"), str)
    )


def _from_manifest(
    manifests: list[Tree], text: str, path: str, env: Mapping[str, str]
) -> LoadedFile:
    tree = manifests[0]
    faults = [_fault(problem, path) for problem in tree.problems]
    where: Path = ("spec", "serveConfigV2")
    spec = tree.value.get("spec")
    inner = spec.get("serveConfigV2") if isinstance(spec, dict) else None
    if len(manifests) > 1:
        line = manifests[1].spots[()].key[0]
        faults.append(
            Fault(
                "BTN-009",
                "error",
                "the file holds more than one RayService",
                path,
                line,
                1,
                cure="one RayService a file",
            )
        )
    node = tree.nodes.get(where)
    folded = isinstance(node, ScalarNode) and node.style == ">"
    if not isinstance(inner, str) or not inner.strip() or folded:
        faults.append(_not_a_text(tree, spec, path, folded=folded))
        if not isinstance(inner, dict):
            return LoadedFile(path, text, faults=tuple(faults), kind="rayservice")
        # What is in it can be looked at all the same.
        config = _below(tree, where)
        document = _resolved(config, path, env, faults)
        return LoadedFile(
            path, text, document, config.spots, tuple(faults), "rayservice", written=config.written
        )
    literal = isinstance(node, ScalarNode) and node.style == "|"
    line_shift = tree.nodes[where].start_mark.line + (1 if literal else 0)
    column_shift = _indent(text, line_shift) if literal else tree.nodes[where].start_mark.column
    if looks_flat(inner):
        faults.append(
            Fault(
                "BTN-011",
                "error",
                "the indentation inside `spec.serveConfigV2` is gone",
                path,
                line_shift + 1,
                column_shift + 1,
                key_path="spec.serveConfigV2",
                cure="put it into a file of its own, run `baton validate --fix` on that, and copy"
                " the result back",
            )
        )
        return LoadedFile(path, text, faults=tuple(faults), kind="rayservice")
    configs = parse(inner)
    config = _shifted(configs[0], line_shift, column_shift, keep_lines=literal)
    faults.extend(_fault(problem, path) for problem in config.problems)
    if config.empty:
        faults.append(
            Fault(
                "BTN-010",
                "error",
                "`spec.serveConfigV2` is empty",
                path,
                line_shift,
                1,
                key_path="spec.serveConfigV2",
                cure="write the Serve config below it, indented",
            )
        )
    if len(configs) > 1:
        second = _shifted(configs[1], line_shift, column_shift, keep_lines=literal)
        faults.append(
            Fault(
                "BTN-009",
                "error",
                "`spec.serveConfigV2` holds more than one YAML document",
                path,
                *(second.spots[()].key if second.spots else (line_shift, 1)),
                key_path="spec.serveConfigV2",
                cure="one Serve config: Ray reads only a single document",
            )
        )
    document = _resolved(config, path, env, faults)
    return LoadedFile(
        path,
        text,
        document,
        config.spots,
        tuple(faults),
        "rayservice",
        line_shift,
        column_shift,
        written=config.written,
    )


def _not_a_text(tree: Tree, spec: Any, path: str, *, folded: bool) -> Fault:
    """`serveConfigV2` that is missing, a mapping, or text whose lines are joined."""
    where: Path = ("spec", "serveConfigV2")
    spot = tree.spots.get(where) or tree.spots.get(("spec",)) or tree.spots[()]
    inner = spec.get("serveConfigV2") if isinstance(spec, dict) else None
    cure = "write `serveConfigV2: |` and the Serve config below it, indented"
    if folded:
        found = "folded text (`>`), which joins its lines"
        cure = "write `|` in place of `>`"
    elif inner is None or inner == "":
        found = "nothing"
        if isinstance(spec, dict) and "serveConfig" in spec:
            cure = "`serveConfig` is the older key: " + cure
    else:
        kinds = {dict: "a mapping", list: "a list", str: "blank text"}
        found = kinds.get(type(inner), "no text")
        cure = "write `|` behind the colon, which makes the lines below it a block of text"
    return Fault(
        "BTN-010",
        "error",
        f"`spec.serveConfigV2` holds {found}",
        path,
        *spot.key,
        key_path="spec.serveConfigV2",
        found=found,
        allowed="the Serve config as a block of text",
        cure=cure,
    )


def _below(tree: Tree, where: Path) -> Tree:
    """The part of a tree at a path, as a tree of its own."""
    size = len(where)

    def inside(entries: Mapping[Path, Any]) -> dict[Path, Any]:
        return {p[size:]: entry for p, entry in entries.items() if p[:size] == where}

    value = tree.value
    for part in where:
        value = value[part]
    nodes = inside(tree.nodes)
    return Tree(value, inside(tree.spots), [], nodes, inside(tree.written))


def _indent(text: str, first_line: int) -> int:
    for line in text.splitlines()[first_line:]:
        if line.strip():
            return len(line) - len(line.lstrip(" "))
    return 0


def _shifted(tree: Tree, lines: int, columns: int, *, keep_lines: bool) -> Tree:
    """The same tree in the coordinates of the file around it."""

    def move(at: tuple[int, int]) -> tuple[int, int]:
        return (at[0] + lines, at[1] + columns) if keep_lines else (lines + 1, columns + 1)

    spots = {where: Spot(move(spot.key), move(spot.value)) for where, spot in tree.spots.items()}
    problems = [
        Problem(
            p.rule_id,
            p.message,
            *move((p.line, p.column)),
            p.cure,
            p.key_path,
            tuple((what, *move((line, column))) for what, line, column in p.related),
            p.severity,
        )
        for p in tree.problems
    ]
    return Tree(tree.value, spots, problems, tree.nodes, tree.written, tree.empty)


def _fault(problem: Problem, path: str) -> Fault:
    return Fault(
        problem.rule_id,
        problem.severity,
        problem.message,
        path,
        problem.line,
        problem.column,
        problem.key_path,
        cure=problem.cure,
        related=tuple((what, Place(path, line, col)) for what, line, col in problem.related),
    )


def _resolved(tree: Tree, path: str, env: Mapping[str, str], faults: list[Fault]) -> Any:
    def plain(where: Path) -> bool:
        node = tree.nodes.get(where)
        return isinstance(node, ScalarNode) and node.style is None

    def report(where: Path, value: str, message: str, cure: str) -> None:
        spot = tree.spots.get(where)
        line, column = spot.value if spot else (0, 0)
        faults.append(
            Fault(
                "BTN-101",
                "error",
                message,
                path,
                line,
                column,
                dotted(where),
                found=value,
                allowed="a variable that is set, or ${NAME:-default}",
                cure=cure,
            )
        )

    return resolve_variables(tree.value, env, report, plain)
