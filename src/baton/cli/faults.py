"""Shows faults and changes: plain text in uv's manner, JSON, and GitHub annotations.

Used by `validate` and by every verb that refuses a file. Readable without colour: the severity is a
word, and the place comes first on its line, so that editors and terminals can jump to it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from baton.spec.faults import Change, Fault

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def text_of(faults: Sequence[Fault]) -> str:
    """All faults as text: a block for each error and warning, then a line for each note."""
    loud = [_block(fault) for fault in faults if fault.severity != "note"]
    quiet = [_line(fault) for fault in faults if fault.severity == "note"]
    return "\n".join([*loud, *quiet])


def _line(fault: Fault) -> str:
    word = click.style("note", fg=_COLOURS["note"])
    place = str(fault.place) or fault.key_path
    cure = f" ({fault.cure})" if fault.cure else ""
    return f"{word}[{fault.rule_id}] {place}: {fault.message}{cure}"


def _block(fault: Fault) -> str:
    word = click.style(fault.severity, fg=_COLOURS[fault.severity], bold=True)
    lines = [f"{word}[{fault.rule_id}]: {fault.message}"]
    place = str(fault.place)
    if place and fault.key_path:
        lines.append(f"  at {place} ({fault.key_path})")
    elif place or fault.key_path:
        lines.append(f"  at {place or fault.key_path}")
    if fault.found is not None:
        lines.append(f"  found:   {fault.found}")
    if fault.allowed is not None:
        lines.append(f"  allowed: {fault.allowed}")
    lines.extend(f"  {what}: {at}" for what, at in fault.related if str(at))
    if fault.cure is not None:
        lines.extend(["", f"  {click.style('hint', bold=True)}: {fault.cure}"])
    return "\n".join(lines) + "\n"


def changes_text(changes: Sequence[Change]) -> str:
    """Changes as a list: what, where, before and after."""
    lines = []
    for change in changes:
        place = f" ({change.place})" if str(change.place) else ""
        lines.append(f"  {change.rule_id} {change.summary}{place}")
        lines.append(f"    - {_with_key(change, change.before)}")
        lines.append(f"    + {_with_key(change, change.after)}")
    return "\n".join(lines)


def _with_key(change: Change, value: str) -> str:
    if change.edit.kind == "move" or value in {"nothing", "removed"}:
        return value
    return f"{change.edit.path[-1]}: {value}"


def as_json(files: Sequence[dict[str, object]], exit_status: int) -> str:
    """The whole run as one JSON object."""
    return json.dumps(
        {"ok": exit_status == 0, "exit_status": exit_status, "files": files}, indent=2
    )


def github_lines(faults: Iterable[Fault]) -> str:
    """Workflow commands that GitHub turns into annotations on the lines of a pull request."""
    kinds = {"error": "error", "warning": "warning", "note": "notice"}
    lines = []
    for fault in faults:
        where = [f"file={_property(fault.file)}"] if fault.file else []
        if fault.line:
            where += [f"line={fault.line}", f"col={fault.column}"]
        where.append(f"title={_property(fault.rule_id)}")
        body = fault.message + (f" hint: {fault.cure}" if fault.cure else "")
        lines.append(f"::{kinds[fault.severity]} {','.join(where)}::{_data(body)}")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summary(faults: Sequence[Fault], files: int) -> str:
    """One line for stderr: how many of what."""
    counts = {kind: sum(f.severity == kind for f in faults) for kind in _COLOURS}
    parts = [f"{n} {kind}{'s' if n != 1 else ''}" for kind, n in counts.items() if n]
    where = f"{files} file{'s' if files != 1 else ''}"
    return f"{where}: {', '.join(parts) if parts else 'nothing to report'}"
