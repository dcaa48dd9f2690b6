"""A file as it was read: plain values, the place of each, and what is wrong with the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ruamel.yaml.nodes import ScalarNode

from baton.spec.faults import Fault, Path, Place, Spot, dotted
from baton.spec.variables import resolve_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.spec.odd_text import Problem
    from baton.spec.yaml_tree import Tree


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


def fault_of(problem: Problem, path: str) -> Fault:
    """A problem of the text as a fault of the file."""
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


def resolved(tree: Tree, path: str, env: Mapping[str, str], faults: list[Fault]) -> Any:
    """The values of a tree with its variables replaced; what cannot be is added to `faults`."""

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
