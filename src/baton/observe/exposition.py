"""Puts many processes' metrics on one page: Prometheus' text format in, the same with labels out.

The format wants all samples of a family together under one TYPE, so pages cannot be joined end to
end. What a process writes is not trusted: a line that is no sample is left out and counted, and
whoever writes too many loses the rest.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_SAMPLES = 20_000
"""Of one process. vLLM 0.29 with one engine core writes some hundreds."""
MAX_LINE = 4096
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*"'
_SAMPLE = re.compile(
    rf"({_NAME})(?:\{{((?:{_LABEL}(?:,\s*{_LABEL})*)?),?\}})?[ \t]+({_NUMBER}|[+-]?Inf|NaN)"
    r"(?:[ \t]+-?[0-9]+)?[ \t]*"
)
_META = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.*)")
_TYPES = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_PARTS = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
_LABEL_NAME = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="(?:[^"\\]|\\.)*"')


@dataclass
class _Family:
    kind: str = "untyped"
    text: str | None = None
    lines: list[str] = field(default_factory=list)


class Part:
    """What one process adds to a page. `dropped` counts lines that were no samples."""

    def __init__(self, families: dict[str, _Family], labels: Mapping[str, str]) -> None:
        self._families, self._labels = families, labels
        self._front = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        self._owner: dict[str, str] = {}  # series name → family
        self._samples = 0
        self.dropped = 0

    def feed(self, lines: Iterable[str]) -> None:
        """More lines, in their order."""
        for line in lines:
            if line.startswith("#"):
                self._describe(line)
            elif line and not line.isspace():
                self._sample(line)

    def _sample(self, line: str) -> None:
        found = _SAMPLE.fullmatch(line) if len(line) <= MAX_LINE else None
        if found is None or self._samples >= MAX_SAMPLES:
            self.dropped += 1
            return
        self._samples += 1
        name, own, value = found.groups()
        if own:
            own = _LABEL_NAME.sub(self._renamed, own)
        inside = f"{self._front},{own}" if own else self._front
        family = self._families.setdefault(self._owner.get(name, name), _Family())
        family.lines.append(f"{name}{{{inside}}} {value}")

    def _renamed(self, label: re.Match[str]) -> str:
        return f"exported_{label[0]}" if label[1] in self._labels else label[0]

    def _describe(self, line: str) -> None:
        meta = _META.fullmatch(line) if len(line) <= MAX_LINE else None
        if meta is None:
            return
        what, name, rest = meta.groups()
        family = self._families.setdefault(name, _Family())
        if what == "HELP":
            family.text = family.text if family.text is not None else rest
        elif rest in _TYPES:
            if family.kind == "untyped":
                family.kind = rest
            for part in _PARTS.get(family.kind, ()):
                self._owner[name + part] = name


@dataclass
class Page:
    """A page that grows by one process at a time."""

    _families: dict[str, _Family] = field(default_factory=dict)

    def add(self, text: str, labels: Mapping[str, str]) -> int:
        """Take over a process's samples with these labels in front; how many lines were no samples.

        A label that the process uses itself becomes `exported_…`, as Prometheus does it.
        """
        part = self.part(labels)
        part.feed(text.split("\n"))
        return part.dropped

    def part(self, labels: Mapping[str, str]) -> Part:
        """The same, some lines at a time."""
        return Part(self._families, labels)

    def text(self) -> str:
        """The page."""
        out = []
        for name, family in self._families.items():
            if not family.lines:
                continue
            if family.text is not None:
                out.append(f"# HELP {name} {family.text}")
            out.append(f"# TYPE {name} {family.kind}")
            out.extend(family.lines)
        return "\n".join(out) + "\n" if out else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
