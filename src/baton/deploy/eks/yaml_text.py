"""Writes plain values as YAML that every reader takes for the same values.

eksctl, Helm and kubectl read YAML with Go's libraries, Ray with PyYAML: they disagree on `on`,
`1e3`, `012` and `1:30`. So text that is not plainly a word is quoted, and text of several lines is
a literal block. Keys stay in the order in which they were put in.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*")
_NO_WORDS = frozenset(
    {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"}
)


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:  # noqa: ARG002 - PyYAML's own name
        return super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - an anchor would surprise a reader
        return True


def _text(dumper: _Dumper, value: str) -> Any:
    style = None
    if "\n" in value:
        style = "|"
    elif not _WORD.fullmatch(value) or value.lower() in _NO_WORDS:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(*documents: Any, head: str = "") -> str:
    """Documents as one YAML text, below a comment.

    Args:
        documents: Mappings of plain values.
        head: What the first lines say; `# ` is put before each.
    """
    comment = "".join(f"# {line}".rstrip() + "\n" for line in head.strip().splitlines())
    bodies = [
        yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, default_flow_style=False)
        for document in documents
    ]
    return comment + "---\n".join(bodies)
