"""Turns YAML text into plain values and remembers where each of them stands.

Only the node graph of ruamel.yaml is used: it has a mark for every key and value, shows duplicate
keys (which every loader silently merges), and lets aliases be counted before they are expanded.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from baton.spec.faults import Path, Spot, dotted, shown
from baton.spec.scalars import resolve, to_float, to_int

MAX_NODES = 20_000
"""More values than this after aliases are expanded is no config (an alias bomb has billions)."""
MAX_DEPTH = 60
_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Problem:
    """Something wrong with the text itself. Line and column count from 1."""

    rule_id: str
    message: str
    line: int
    column: int
    cure: str | None = None
    key_path: str = ""
    related: tuple[tuple[str, int, int], ...] = ()
    severity: Literal["error", "warning"] = "error"


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
        return [Tree(problems=[_too_deep(1, 1)])]
    except YAMLError as exc:
        return [Tree(problems=_syntax_problems(exc, text))]
    except Exception as exc:  # noqa: BLE001 - a bug of the parser is the file's fault to the user
        problem = Problem("BTN-001", f"this is not YAML ({type(exc).__name__}: {exc})", 1, 1)
        return [Tree(problems=[problem])]
    trees = [_Builder().build(node) for node in documents if node is not None]
    return [tree for tree in trees if not tree.empty] or [Tree(empty=True)]


def _too_deep(line: int, column: int) -> Problem:
    return Problem(
        "BTN-006",
        f"values are nested more than {MAX_DEPTH} levels deep",
        line,
        column,
        "a Serve config needs about ten levels",
    )


def _syntax_problems(exc: YAMLError, text: str) -> list[Problem]:
    if isinstance(exc, ReaderError):
        before = text[: exc.position] if isinstance(exc.position, int) else ""
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        code = exc.character if isinstance(exc.character, int) else ord(str(exc.character)[:1])
        return [
            Problem(
                "BTN-004",
                f"character U+{code:04X} is not allowed in YAML",
                line,
                column,
                "remove it; it is invisible in most editors",
            )
        ]
    line = column = 1
    message = "this is not YAML"
    if isinstance(exc, MarkedYAMLError):
        mark = exc.problem_mark or exc.context_mark
        if mark is not None:
            line, column = mark.line + 1, mark.column + 1
        message = " ".join(part for part in (exc.context, exc.problem) if part) or message
    tabs = _tab_problems(text)
    if tabs and ("\\t" in message or any(tab.line == line for tab in tabs)):
        return tabs
    if "\\t" in message:
        wrong = "a tab; YAML allows spaces only"
        return [Problem("BTN-002", wrong, line, column, "replace the tab with a space")]
    odd = _odd_character(text, line)
    if odd is not None:
        return [odd]
    cure = "compare these lines with the ones around them: indentation, colons, quotes, brackets"
    if "mapping values are not allowed" in message:
        cure = "look at the indentation of this line and the one before; quote text that has `: `"
    elif "undefined alias" in message:
        cure = "define it first with `&name`, or quote the value if the `*` is meant as text"
    return [Problem("BTN-001", f"this is not YAML: {message}", line, column, cure)]


# What copying from a web page, a chat or a word processor puts in place of a space or a quote.
_ODD = {
    "\u00a0": ("a no-break space", "a space"),
    "\u2007": ("a figure space", "a space"),
    "\u202f": ("a narrow no-break space", "a space"),
    "\u200b": ("a zero-width space", "nothing"),
    "\u200c": ("a zero-width character", "nothing"),
    "\u200d": ("a zero-width character", "nothing"),
    "\u2060": ("a zero-width character", "nothing"),
    "\ufeff": ("a byte order mark", "nothing"),
    "\u201c": ("a typographic quote", 'a straight "'),
    "\u201d": ("a typographic quote", 'a straight "'),
    "\u201e": ("a typographic quote", 'a straight "'),
    "\u2018": ("a typographic quote", "a straight '"),
    "\u2019": ("a typographic quote", "a straight '"),
}
_INVISIBLE = frozenset(mark for mark, (_, instead) in _ODD.items() if "straight" not in instead)


def _odd_character(text: str, line: int) -> Problem | None:
    """The first odd character of the line that the parser stumbled over, or of the one before."""
    lines = text.splitlines()
    for number in (line - 1, line):
        found = lines[number - 1] if 0 < number <= len(lines) else ""
        for column, mark in enumerate(found, start=1):
            if mark in _ODD:
                return _odd_problem(mark, number, column)
    return None


def _odd_problem(
    mark: str, line: int, column: int, severity: Literal["error", "warning"] = "error"
) -> Problem:
    name, instead = _ODD[mark]
    return Problem(
        "BTN-015",
        f"{name} (U+{ord(mark):04X})",
        line,
        column,
        f"write {instead} in its place" if instead != "nothing" else "remove it",
        severity=severity,
    )


def _tab_problems(text: str) -> list[Problem]:
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        indent = line[: len(line) - len(line.lstrip(" \t"))]
        if "\t" in indent and line.strip() and not line.lstrip().startswith("#"):
            found.append(
                Problem(
                    "BTN-002",
                    "a tab in the indentation; YAML allows spaces only",
                    number,
                    indent.index("\t") + 1,
                    "replace the tab with spaces",
                )
            )
    return found


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
            self.tree.problems.append(_too_deep(*_at(node)))
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
                size = len(path) + 1
                for where, spot in inner.tree.spots.items():
                    if where[:size] == (*path, key):
                        self.tree.spots.setdefault(where, spot)
                for where, child in inner.tree.nodes.items():
                    if where[:size] == (*path, key):
                        self.tree.nodes.setdefault(where, child)
                for where, written in inner.tree.written.items():
                    if where[:size] == (*path, key):
                        self.tree.written.setdefault(where, written)

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
        if self.tree.nodes.get(path) is node and not isinstance(value, str) and text:
            if shown(value) != text:
                self.tree.written[path] = text
        return value

    def look_for_odd_characters(self, node: ScalarNode, text: str) -> None:
        """They are part of the word, which nobody can see or wanted."""
        line, column = _at(node)
        for at, mark in enumerate(text):
            if mark in _INVISIBLE or (mark in _ODD and at in {0, len(text) - 1}):
                problem = _odd_problem(mark, line, column + at, "warning")
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
