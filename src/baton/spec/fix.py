"""Writes the corrected file: `baton validate --fix`.

Only slips with one meaning are written. Each edit touches the lines that it is about and no others,
so that comments, order and layout stay; the marks of ruamel.yaml's nodes say which lines these are.
Whatever comes out is read again and must hold exactly the corrected values. If a file is laid out
so that this fails, ruamel.yaml's round trip writes it instead, which also keeps comments and order.
"""

from __future__ import annotations

import copy
import difflib
import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from baton.spec.faults import Change, Edit, Path, shown
from baton.spec.slips import apply_edit
from baton.spec.yaml_tree import Tree, hide_variables, parse, show_variables

if TYPE_CHECKING:
    from baton.spec.loaded import LoadedFile

_SLIPS = ("BTN-110", "BTN-111", "BTN-112", "BTN-113", "BTN-114", "BTN-115")
_NO_LIMIT = 1_000_000


@dataclass(frozen=True)
class Fixed:
    """The outcome: the new text of the file and its difference, or why there is none."""

    text: str
    diff: str
    changed: bool


def fix(loaded: LoadedFile, changes: tuple[Change, ...]) -> Fixed | None:
    """The file with its slips put right; None when it cannot be written without doubt.

    Args:
        loaded: The file as read.
        changes: What the check put right, in order.
    """
    edits = [change.edit for change in changes if change.rule_id in _SLIPS]
    start = loaded.rebuilt if loaded.rebuilt is not None else loaded.text
    text: str | None
    if not edits:
        text = start
    elif loaded.kind == "rayservice":
        text = _fix_manifest(loaded, edits)
    else:
        text = _edited(start, edits)
    if text is None:
        return None
    ends = loaded.text.count("\r\n")
    if ends and ends == loaded.text.count("\n"):
        # Lines that an edit made end like the others.
        text = text.replace("\r\n", "\n").replace("\n", "\r\n")
    diff = "".join(
        difflib.unified_diff(
            loaded.text.splitlines(keepends=True),
            text.splitlines(keepends=True),
            f"{loaded.path} (as it is)",
            f"{loaded.path} (put right)",
        )
    )
    return Fixed(text, diff, changed=text != loaded.text)


def _fix_manifest(loaded: LoadedFile, edits: list[Edit]) -> str | None:
    """Edits the Serve config inside a manifest and puts it back in place."""
    lines = loaded.text.splitlines(keepends=True)
    first, indent = loaded.inner_line, loaded.inner_column
    last = first
    while last < len(lines) and (not lines[last].strip() or lines[last][:indent].isspace()):
        last += 1
    if not indent or last == first:
        return None
    inner = "".join(line[indent:] if line.strip() else "\n" for line in lines[first:last])
    fixed = _edited(inner, edits)
    if fixed is None:
        return None
    padded = [
        " " * indent + line if line.strip() else line for line in fixed.splitlines(keepends=True)
    ]
    return "".join([*lines[:first], *padded, *lines[last:]])


def _edited(text: str, edits: list[Edit]) -> str | None:
    wanted = _one(text)
    if wanted is None:
        return None
    goal = copy.deepcopy(wanted.value)
    for edit in edits:
        apply_edit(goal, edit)
    for attempt in (_by_lines, _by_round_trip):
        result = attempt(text, edits)
        if result is not None:
            tree = _one(result)
            if tree is not None and tree.value == goal:
                return result
    return None


def _one(text: str) -> Tree | None:
    trees = parse(text)
    return trees[0] if len(trees) == 1 and not trees[0].broken else None


def _by_lines(text: str, edits: list[Edit]) -> str | None:
    for edit in edits:
        tree = _one(text)
        if tree is None:
            return None
        changed = _one_edit(text, tree, edit)
        if changed is None:
            return None
        text = changed
    return text


def _one_edit(text: str, tree: Tree, edit: Edit) -> str | None:
    if edit.kind == "set":
        node = tree.nodes.get(edit.path)
        return None if node is None else _replaced(text, node, shown(edit.value, _NO_LIMIT))
    if edit.kind == "move" and edit.path[:-1] == edit.to[:-1]:
        key = _key_node(tree, edit.path)
        return None if key is None else _replaced(text, key, str(edit.to[-1]))
    return _moved(text, tree, edit)


def _replaced(text: str, node: Node, new: str) -> str | None:
    """Puts `new` where a node of one line stands."""
    if not isinstance(node, ScalarNode) or node.start_mark.line != node.end_mark.line:
        return None
    lines = text.splitlines(keepends=True)
    line = lines[node.start_mark.line]
    lines[node.start_mark.line] = (
        line[: node.start_mark.column] + new + line[node.end_mark.column :]
    )
    return "".join(lines)


def _key_node(tree: Tree, path: Path) -> Node | None:
    parent = tree.nodes.get(path[:-1])
    if not isinstance(parent, MappingNode):
        return None
    return next((key for key, _ in parent.value if key.value == path[-1]), None)


def _moved(text: str, tree: Tree, edit: Edit) -> str | None:
    """Moves a key with all of its lines into another mapping, comments above it included."""
    source, key = tree.nodes.get(edit.path[:-1]), _key_node(tree, edit.path)
    value = tree.nodes.get(edit.path)
    if not isinstance(source, MappingNode) or key is None or value is None:
        return None
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    if source.flow_style or len(source.value) == 1:
        return None
    first, last = key.start_mark.line, _last_line(value, key)
    column = key.start_mark.column
    if lines[first][:column].strip():
        return None  # the key stands behind a dash
    while (
        first > 0
        and lines[first - 1].strip().startswith("#")
        and (_indent_of(lines[first - 1]) == column)
    ):
        first -= 1
    block = lines[first : last + 1]
    place = _goal(lines, tree, edit, column)
    if place is None:
        return None
    at, goal_column, opening = place
    moved = [*opening, *(_shift(line, goal_column - column) for line in block)]
    if first < at <= last:
        return None
    if at > last:
        result = lines[:first] + lines[last + 1 : at] + moved + lines[at:]
    else:
        result = lines[:at] + moved + lines[at:first] + lines[last + 1 :]
    return "".join(result)


def _goal(
    lines: list[str], tree: Tree, edit: Edit, column: int
) -> tuple[int, int, list[str]] | None:
    """Line to insert at, column of the moved key there, and lines that open its mapping."""
    missing: list[Any] = []
    where = edit.to[:-1]
    while where and where not in tree.nodes:
        missing.insert(0, where[-1])
        where = where[:-1]
    target = tree.nodes[where]
    if not isinstance(target, MappingNode) or target.flow_style or not target.value:
        return None
    keys = [(k, v) for k, v in target.value if edit.path[: len(where) + 1] != (*where, k.value)]
    if missing and len(keys) != len(target.value):
        # Into a sibling that does not exist yet: it takes the place of the key itself.
        start = next(k for k, _ in target.value if (*where, k.value) == edit.path[: len(where) + 1])
        at = _last_line(tree.nodes[(*where, start.value)], start) + 1
    else:
        last_key, last_value = target.value[-1]
        at = _last_line(last_value, last_key) + 1
    here = target.value[0][0].start_mark.column
    opening = []
    for name in missing:
        opening.append(f"{' ' * here}{name}:\n")
        here += 2
    del lines, column
    return at, here, opening


def _last_line(value: Node, key: Node) -> int:
    """The last line that a value has text on."""
    end_line: int = value.end_mark.line
    start_line: int = key.start_mark.line
    if isinstance(value, ScalarNode):
        if value.style in {"|", ">"}:
            return max(end_line - 1, start_line)
        return end_line if value.value or value.style else start_line
    if isinstance(value, (MappingNode, SequenceNode)) and value.flow_style:
        return end_line
    if isinstance(value, MappingNode):
        return max((_last_line(v, k) for k, v in value.value), default=start_line)
    if isinstance(value, SequenceNode):
        return max((_last_line(item, item) for item in value.value), default=start_line)
    return start_line


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _shift(line: str, by: int) -> str:
    if not line.strip():
        return line
    return " " * by + line if by >= 0 else line[min(-by, _indent_of(line)) :]


def _by_round_trip(text: str, edits: list[Edit]) -> str | None:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    if "\n  - " in text and "\n- " not in text:
        yaml.indent(mapping=2, sequence=4, offset=2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = yaml.load(hide_variables(text))
            for edit in edits:
                apply_edit(document, edit)
            out = io.StringIO()
            yaml.dump(document, out)
    except (YAMLError, KeyError, TypeError, AttributeError):
        return None
    return show_variables(out.getvalue())
