"""Log messages as they stand in a program's source: the words that are its own and nobody's prompt.

`logger.info("Loading weights took %.2f seconds", …)` is a template of the words around one slot. A
line that fits it can be shown with its words and, of the slots, numbers and request ids. So what is
shown of a line is proven by the source, whatever anybody has written into a log.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LEFT_OUT = "…"
_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_PRINTF = re.compile(r"%(?:\((\w+)\))?[-+ #0]*\d*(?:\.\d+)?[sdrifgxXeac]")
# A number with its unit, or a request id as gateways send it: the caller's, then ours.
_SHOWN = re.compile(
    r"[-+]?[0-9][0-9,]{0,20}(?:\.[0-9]{1,12})?(?:e[-+]?[0-9]{1,3})?(?:%|ms|s|GiB|MiB|B)?"
    r"|prefill|decode|(?:chat)?(?:cmpl-)?[A-Za-z0-9._-]{1,64}-[0-9a-f]{12}-[pd][0-9]{1,3}(?:-[0-9a-f-]{1,20})?"
)
_LONGEST_SHOWN = 160
_SLOT = None
_LETTERS = 3
"""A template with fewer letters of its own would fit anything."""
Parts = tuple[str | None, ...]


@dataclass(frozen=True)
class Template:
    """Words, and slots (None) between them."""

    parts: Parts
    first_line: int
    last_line: int

    def show(self, message: str) -> str | None:
        """The message with what may be shown of it; None when it does not fit.

        Each word is taken where it comes first, so the time grows with the line and not with the
        ways to read it: lines are written by whoever likes to.
        """
        shown: list[str] = []
        parts = [part for part in self.parts if part != ""]
        at, is_open = 0, False
        for number, part in enumerate(parts):
            if part is None:
                is_open = True
            else:
                ends = number == len(parts) - 1 and message.endswith(part)
                found = len(message) - len(part) if ends else message.find(part, at)
                if found < at or (found > at and not is_open):
                    return None
                shown += [_slot(message[at:found]), part]
                at, is_open = found + len(part), False
        if at < len(message) and not is_open:
            return None
        return "".join(shown) + _slot(message[at:])


def _slot(value: str) -> str:
    if len(value) <= _LONGEST_SHOWN and _SHOWN.fullmatch(value):
        return value
    return LEFT_OUT if value else ""


def templates_in(source: str) -> Iterator[Template]:
    """Every log message of a Python file that has words."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        method = node.func.attr.removesuffix("_once")
        if method not in _METHODS:
            continue
        message = node.args[1] if method == "log" and len(node.args) > 1 else node.args[0]
        parts = _parts(message, printf=len(node.args) > 1)
        if sum(c.isalpha() for part in parts if part for c in part) >= _LETTERS:
            yield Template(parts, node.lineno, node.end_lineno or node.lineno)


def _parts(node: ast.expr, *, printf: bool) -> Parts:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _printf(node.value) if printf else (node.value,)
    if isinstance(node, ast.JoinedStr):
        return tuple(
            part
            for value in node.values
            for part in (
                _parts(value, printf=printf) if isinstance(value, ast.Constant) else (None,)
            )
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _parts(node.left, printf=printf) + _parts(node.right, printf=printf)
    return (_SLOT,)


def _printf(text: str) -> Parts:
    parts: list[str | None] = []
    at = 0
    for found in _PRINTF.finditer(text):
        parts += [text[at : found.start()].replace("%%", "%"), _SLOT]
        at = found.end()
    return (*parts, text[at:].replace("%%", "%"))


@dataclass
class Templates:
    """Of all files below some folders; each is read when it is first needed."""

    _files: dict[str, list[Path]] = field(default_factory=dict)
    _read: dict[str, list[Template]] = field(default_factory=dict)
    _all: list[Template] | None = None

    @classmethod
    def below(cls, folders: Iterable[Path]) -> Templates:
        """An index by file name."""
        files: dict[str, list[Path]] = {}
        for folder in folders:
            for path in sorted(folder.rglob("*.py")):
                files.setdefault(path.name, []).append(path)
        return cls(files)

    def at(self, file_name: str, line: int, message: str) -> str | None:
        """What may be shown of a message that a line of a file has logged."""
        for template in self._of(file_name):
            if template.first_line <= line <= template.last_line:
                shown = template.show(message)
                if shown is not None:
                    return shown
        return None

    def knows(self, file_name: str) -> bool:
        """Whether there is a file of that name."""
        return file_name in self._files

    def anywhere(self, message: str) -> str | None:
        """The same where the line is not known: the template with the most words that fits."""
        if self._all is None:
            found = [one for name in self._files for one in self._of(name)]
            self._all = sorted(found, key=lambda one: -sum(len(part or "") for part in one.parts))
        for template in self._all:
            head = template.parts[0]
            if head is None or message.startswith(head):
                shown = template.show(message)
                if shown is not None:
                    return shown
        return None

    def _of(self, file_name: str) -> list[Template]:
        if file_name not in self._read:
            found: list[Template] = []
            for path in self._files.get(file_name, ()):
                try:
                    found += templates_in(path.read_text(encoding="utf-8"))
                except (OSError, SyntaxError, ValueError):
                    continue
            self._read[file_name] = found
        return self._read[file_name]
