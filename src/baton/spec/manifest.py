"""Reads the Serve config out of a KubeRay RayService: `spec.serveConfigV2`, a block of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ruamel.yaml.nodes import ScalarNode

from baton.spec.faults import Fault, Path, Spot
from baton.spec.indentation import looks_flat
from baton.spec.loaded import LoadedFile, fault_of, resolved
from baton.spec.odd_text import Problem
from baton.spec.yaml_tree import Tree, parse

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_manifest(value: Any) -> bool:
    """Whether a document is a RayService."""
    return (
        isinstance(value, dict)
        and value.get("kind") == "RayService"
        and isinstance(value.get("apiVersion", "ray.io"), str)
    )


def from_manifest(
    manifests: list[Tree], text: str, path: str, env: Mapping[str, str]
) -> LoadedFile:
    """The Serve config inside a manifest, with the places of the file around it."""
    tree = manifests[0]
    faults = [fault_of(problem, path) for problem in tree.problems]
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
        document = resolved(config, path, env, faults)
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
    faults.extend(fault_of(problem, path) for problem in config.problems)
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
        line, column = second.spots[()].key if second.spots else (line_shift, 1)
        faults.append(
            Fault(
                "BTN-009",
                "error",
                "`spec.serveConfigV2` holds more than one YAML document",
                path,
                line,
                column,
                key_path="spec.serveConfigV2",
                cure="one Serve config: Ray reads only a single document",
            )
        )
    document = resolved(config, path, env, faults)
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
        found = next((word for kind, word in kinds.items() if isinstance(inner, kind)), "no text")
        cure = "write `|` behind the colon, which makes the lines below it a block of text"
    return Fault(
        "BTN-010",
        "error",
        f"`spec.serveConfigV2` holds {found}",
        path,
        *spot.key,
        "spec.serveConfigV2",
        found,
        "the Serve config as a block of text",
        cure,
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
