"""What a person wrote, where YAML makes something else of it.

`yes` is true, `012` is ten and `1:30` is ninety to YAML 1.1, which Ray reads. Messages show what
stands in the file, and numbers that mean something else than they look get a warning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from baton.spec.faults import Path, shown
from baton.spec.rules.registry import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_BASE_60 = re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?")


def as_written(finding: Finding, text: str | None) -> tuple[str | None, str | None]:
    """What was found and the cure, in the words of the file."""
    if text is None or not finding.at_value or finding.found is None:
        return finding.found, finding.cure
    cure = finding.cure
    if cure == f'quote it: "{finding.found}"':
        cure = f'quote it: "{text}"'
    plain = re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", text) and not _OCTAL.fullmatch(text)
    found = text if plain else f"{text} (YAML reads {finding.found})"
    return found, cure


def odd_numbers(written: Mapping[Path, str], document: Any) -> Iterator[Finding]:
    """Numbers in base 8 and base 60, which few people mean."""
    for path, text in written.items():
        if "env_vars" in path:
            continue  # text in any case, and put right as that (BTN-113)
        if _OCTAL.fullmatch(text):
            reason, cure = "a leading zero means base 8", f"write {text.lstrip('+-0_') or '0'}, or"
        elif _BASE_60.fullmatch(text):
            reason, cure = "colons mean base 60", f'write "{text}" if it is text, or'
        else:
            continue
        value: Any = document
        for part in path:
            value = value[part]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        yield Finding(
            path,
            f"`{text}` is read as {shown(value)}: {reason}",
            found=shown(value),
            allowed="a decimal number",
            cure=f"{cure} {shown(value)}",
            at_value=True,
        )
