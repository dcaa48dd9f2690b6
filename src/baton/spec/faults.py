"""What a check finds: faults with their place, and changes with what stood there before.

A path is the way from the root of the document to a value: `("applications", 0, "args")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Path = tuple[Any, ...]
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Place:
    """Where something stands. Lines and columns count from 1; 0 means unknown."""

    file: str = ""
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Spot:
    """The places of one entry: its key and its value (lines and columns from 1)."""

    key: tuple[int, int]
    value: tuple[int, int]


@dataclass(frozen=True)
class Fault:
    """One finding.

    `severity` is `error` (must not start), `warning` (put right, or has no effect) or `note`
    (worth knowing, never counted).
    """

    rule_id: str
    severity: Severity
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    key_path: str = ""
    found: str | None = None
    allowed: str | None = None
    cure: str | None = None
    related: tuple[tuple[str, Place], ...] = ()

    @property
    def place(self) -> Place:
        """File, line and column as one value."""
        return Place(self.file, self.line, self.column)

    def as_dict(self) -> dict[str, Any]:
        """For `--format json`."""
        return {
            "rule_id": self.rule_id,
            "severity": self.severity,
            "message": self.message,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "key_path": self.key_path,
            "found": self.found,
            "allowed": self.allowed,
            "cure": self.cure,
            "related": [
                {"what": what, "file": at.file, "line": at.line, "column": at.column}
                for what, at in self.related
            ],
        }


@dataclass(frozen=True)
class Edit:
    """One step on a document, also played back on the commented YAML by `--fix`."""

    kind: Literal["set", "move", "delete"]
    path: Path
    to: Path = ()
    value: Any = None


@dataclass(frozen=True)
class Change:
    """What was put right or adapted: shown as before and after."""

    rule_id: str
    summary: str
    key_path: str
    before: str
    after: str
    edit: Edit
    place: Place = field(default_factory=Place)

    def as_dict(self) -> dict[str, Any]:
        """For `--format json`."""
        return {
            "rule_id": self.rule_id,
            "summary": self.summary,
            "key_path": self.key_path,
            "before": self.before,
            "after": self.after,
            "file": self.place.file,
            "line": self.place.line,
            "column": self.place.column,
        }


def dotted(path: Path) -> str:
    """`("applications", 0, "args")` as `applications[0].args`."""
    text = ""
    for part in path:
        if isinstance(part, int) and not isinstance(part, bool):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def shown(value: Any, limit: int = 80) -> str:
    """A value as YAML would write it on one line, shortened."""
    text = _flow(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _flow(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_flow(v) for v in value) + "]"
    text = str(value)
    return repr(text) if isinstance(value, str) and _needs_quotes(text) else text


def _needs_quotes(text: str) -> bool:
    if not text or text != text.strip() or text[0] in "&*!|>%@`\"'#{}[],?-":
        return True
    if any(mark in text for mark in (": ", " #", "\n", "\t")):
        return True
    return text.lower() in {"null", "~", "true", "false", "yes", "no", "on", "off"} or _numeric(
        text
    )


def _numeric(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
