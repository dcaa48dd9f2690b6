"""Problems of the text itself: what the parser stumbles over, and characters nobody meant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.reader import ReaderError

if TYPE_CHECKING:
    from ruamel.yaml.error import YAMLError

MAX_DEPTH = 60


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


def too_deep(line: int, column: int) -> Problem:
    """More levels than any config has."""
    return Problem(
        "BTN-006",
        f"values are nested more than {MAX_DEPTH} levels deep",
        line,
        column,
        "a Serve config needs about ten levels",
    )


def syntax_problems(exc: YAMLError, text: str) -> list[Problem]:
    """What the parser stumbled over, in words that say what to do."""
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
ODD = {
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
INVISIBLE = frozenset(mark for mark, (_, instead) in ODD.items() if "straight" not in instead)


def _odd_character(text: str, line: int) -> Problem | None:
    """The first odd character of the line that the parser stumbled over, or of the one before."""
    lines = text.splitlines()
    for number in (line - 1, line):
        found = lines[number - 1] if 0 < number <= len(lines) else ""
        for column, mark in enumerate(found, start=1):
            if mark in ODD:
                return odd_problem(mark, number, column)
    return None


def odd_problem(
    mark: str, line: int, column: int, severity: Literal["error", "warning"] = "error"
) -> Problem:
    """One odd character and what to write in its place."""
    name, instead = ODD[mark]
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
