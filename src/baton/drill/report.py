"""The drill's results as data, in the form that `--json` writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.drill.stage import Result

COLUMNS = (
    "name",
    "requests",
    "errors",
    "broken_streams",
    "mismatched_answers",
    "kv_blocks_left",
    "recovery_s",
)


def as_data(results: Sequence[Result]) -> dict[str, Any]:
    """`{"scenarios": [...]}`: the columns, then what else is known of each."""
    return {"scenarios": [_row(result) for result in results]}


def _row(result: Result) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(result, name) for name in COLUMNS}
    row["verdict"] = result.verdict
    for name in ("skipped", "problem", "proof", "notes", "examples"):
        if value := getattr(result, name):
            row[name] = value
    return row


def failed(results: Sequence[Result]) -> list[Result]:
    """Scenarios in which something was lost or nothing was proved."""
    return [result for result in results if result.verdict == "failed"]
