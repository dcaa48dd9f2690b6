"""Turns YAML text into plain values and remembers where each of them stands.

Only the node graph of ruamel.yaml is used: it has a mark for every key and value, shows duplicate
keys (which every loader silently merges), and lets aliases be counted before they are expanded.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from baton.spec.faults import Path, Spot, dotted, shown
from baton.spec.odd_text import (
    INVISIBLE,
    MAX_DEPTH,
    ODD,
    Problem,
    odd_problem,
    syntax_problems,
    too_deep,
)
from baton.spec.scalars import resolve, to_float, to_int

MAX_NODES = 20_000
"""More values than this after aliases are expanded is no config (an alias bomb has billions)."""
_TAG = "tag:yaml.org,2002:"


@dataclass
class Tree:
    """A document as plain values, with the place of each."""

    value: Any = None
    spots: dict[Path, Spot] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nodes: dict[Path, Node] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)
    """How a value is written, where YAML makes something else of it (`yes`, `012`, `1_000`)."""
    empty: bool = False

    @property
    def broken(self) -> bool:
        """Whether something is wrong with the text that forbids to use it."""
        return any(problem.severity == "error" for problem in self.problems)


# `{model_source: ${MODEL_ID}}` is no YAML: the inner brace opens a mapping. People write it all the
# same, so `${…}` is read with private characters of the same length in place of its own.
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}\n]*)?\}")
_HIDE = str.maketrans("{}:-,[]#&*!|>'\"%@`", "".join(chr(0xE000 + n) for n in range(18)))
_SHOW = {0xE000 + n: mark for n, mark in enumerate("{}:-,[]#&*!|>'\"%@`")}


def hide_variables(text: str) -> str:
    """The same text, with `${NAME}` written so that it is a plain word anywhere in YAML."""
    return _VARIABLE.sub(lambda match: match[0].translate(_HIDE), text)


def show_variables(text: str) -> str:
    """Turns `hide_variables` back."""
    return text.translate(_SHOW)


class _TooLarge(Exception):
    pass


def parse(text: str) -> list[Tree]:
    """All documents of a text. Text that is no YAML gives one tree with problems and no value."""
    # Refused before the parser takes a minute over them.
    for many, what in (
        (text.count("[") + text.count("{"), "brackets are opened"),
        (text.count("\n"), "lines"),
    ):
        if many > MAX_NODES:
            message = f"more than {MAX_NODES} {what}: no config"
            return [Tree(problems=[Problem("BTN-006", message, 1, 1, "name the Serve config")])]
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            documents = list(reader.compose_all(hide_variables(text)))
    except RecursionError:
        return [Tree(problems=[too_deep(1, 1)])]
    except YAMLError as exc:
        return [Tree(problems=syntax_problems(exc, text))]
    except Exception as exc:  # noqa: BLE001 - a bug of the parser is the file's fault to the user
        problem = Problem("BTN-001", f"this is not YAML ({type(exc).__name__}: {exc})", 1, 1)
        return [Tree(problems=[problem])]
    trees = [_Builder().build(node) for node in documents if node is not None]
    return [tree for tree in trees if not tree.empty] or [Tree(empty=True)]


class _Builder:
    """Builds one tree from one node graph."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.count = 0
        self.open: set[int] = set()

    def build(self, node: Node) -> Tree:
        if isinstance(node, ScalarNode) and not str(node.value).strip() and node.style is None:
            self.tree.empty = True
            return self.tree
        try:
            self.tree.spots[()] = Spot(_at(node), _at(node))
            self.tree.value = self.value(node, ())
            self.tree.empty = self.tree.value is None and not self.tree.problems
        except _TooLarge:
            line, column = _at(node)
            self.tree.value = None
            self.tree.problems = [
                Problem(
                    "BTN-005",
                    f"more than {MAX_NODES} values, aliases written out",
                    line,
                    column,
                    "name the Serve config; one of this size has another purpose",
                )
            ]
        return self.tree

    def problem(self, rule_id: str, message: str, node: Node, **more: Any) -> None:
        line, column = _at(node)
        self.tree.problems.append(Problem(rule_id, message, line, column, **more))

    def value(self, node: Node, path: Path) -> Any:
        self.count += 1
        if self.count > MAX_NODES:
            raise _TooLarge
        self.tree.nodes[path] = node
        if id(node) in self.open:
            self.problem(
                "BTN-005",
                "an alias contains itself",
                node,
                key_path=dotted(path),
                cure="write the value out",
            )
            return None
        if len(path) > MAX_DEPTH:
            self.tree.problems.append(too_deep(*_at(node)))
            return None
        if isinstance(node, ScalarNode):
            return self.scalar(node, path)
        self.open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return self.sequence(node, path)
            if isinstance(node, MappingNode):
                return self.mapping(node, path)
            return None
        finally:
            self.open.discard(id(node))

    def sequence(self, node: SequenceNode, path: Path) -> list[Any]:
        items = []
        for index, item in enumerate(node.value):
            self.tree.spots[(*path, index)] = Spot(_at(item), _at(item))
            items.append(self.value(item, (*path, index)))
        return items

    def mapping(self, node: MappingNode, path: Path) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        first_at: dict[Any, tuple[int, int]] = {}
        merges = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self.problem(
                    "BTN-007",
                    "a key must be a word, not a list or a mapping",
                    key_node,
                    key_path=dotted(path),
                    cure="put quotes around it; a template is rendered first:"
                    " helm template … | baton validate -",
                )
                continue
            if key_node.value == "<<" and key_node.style is None:
                merges.append(value_node)
                continue
            key = self.scalar(key_node, path)
            here = (*path, key)
            if key in first_at:
                line, column = first_at[key]
                self.problem(
                    "BTN-003",
                    f"`{key}` stands twice in the same mapping",
                    key_node,
                    key_path=dotted(here),
                    related=(("the first one", line, column),),
                    cure="remove one; YAML readers keep only the last and say nothing",
                )
                continue
            first_at[key] = _at(key_node)
            self.tree.spots[here] = Spot(_at(key_node), _at(value_node))
            result[key] = self.value(value_node, here)
        for merged in merges:
            self.merge(merged, path, result)
        return result

    def merge(self, node: Node, path: Path, result: dict[Any, Any]) -> None:
        """`<<: *base`: keys of `base` that are not set here."""
        sources = node.value if isinstance(node, SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, MappingNode) or id(source) in self.open:
                self.problem(
                    "BTN-007",
                    "`<<` wants a mapping",
                    node,
                    key_path=dotted(path),
                    cure="name an anchor that stands at a mapping",
                )
                continue
            inner = _Builder()
            inner.count, inner.open = self.count, self.open | {id(source)}
            value = inner.mapping(source, path)
            self.count = inner.count
            self.tree.problems.extend(inner.tree.problems)
            for key, item in value.items():
                if key in result:
                    continue
                result[key] = item
                self.adopt(inner.tree, (*path, key))

    def adopt(self, other: Tree, path: Path) -> None:
        """Takes over what another tree knows of the values below a path."""
        for name in ("spots", "nodes", "written"):
            ours: dict[Path, Any] = getattr(self.tree, name)
            theirs: dict[Path, Any] = getattr(other, name)
            for where, entry in theirs.items():
                if where[: len(path)] == path:
                    ours.setdefault(where, entry)

    def scalar(self, node: ScalarNode, path: Path) -> Any:
        text = show_variables(str(node.value))
        tag = str(node.tag or "")
        explicit = not tag.startswith(_TAG) or tag.removeprefix(_TAG) not in {
            "str",
            "int",
            "float",
            "bool",
            "null",
            "timestamp",
            "merge",
            "value",
        }
        if explicit:
            self.problem(
                "BTN-008",
                f"the tag `{tag}` is not allowed here",
                node,
                key_path=dotted(path),
                cure="write a plain value; Ray reads its files with a safe loader as well",
            )
            return text
        if node.style is not None:
            return text if tag == f"{_TAG}str" else _tagged(tag, text)
        self.look_for_odd_characters(node, text)
        plain = resolve(text)
        wanted = _written_tag(node)
        value = plain if wanted is None else _tagged(wanted, text)
        is_value = self.tree.nodes.get(path) is node  # and no key
        if is_value and text and not isinstance(value, str) and shown(value) != text:
            self.tree.written[path] = text
        return value

    def look_for_odd_characters(self, node: ScalarNode, text: str) -> None:
        """They are part of the word, which nobody can see or wanted."""
        line, column = _at(node)
        for at, mark in enumerate(text):
            if mark in INVISIBLE or (mark in ODD and at in {0, len(text) - 1}):
                problem = odd_problem(mark, line, column + at, "warning")
                self.tree.problems.append(problem)
                return


def _written_tag(node: ScalarNode) -> str | None:
    """The tag that the author wrote (`!!str 12`), if any."""
    ctag = getattr(node, "ctag", None)
    handle = getattr(ctag, "handle", None)
    return str(node.tag) if handle else None


def _tagged(tag: str, text: str) -> Any:
    kind = tag.removeprefix(_TAG)
    if kind == "int":
        return to_int(text)
    if kind == "float":
        return to_float(text)
    return resolve(text) if kind in {"bool", "null"} else text


def _at(node: Node) -> tuple[int, int]:
    mark = node.start_mark
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
