"""Reads a trace of requests: when each came, and how long it was. JSON Lines or CSV, row by row.

| form     | keys or columns                                  | what is special                    |
| -------- | ------------------------------------------------ | ---------------------------------- |
| our own  | `arrival_s`, `prompt_tokens`, `output_tokens`    |                                    |
| Mooncake | `timestamp`, `input_length`, `output_length`     | milliseconds; `hash_ids`, one for  |
|          |                                                  | 512 tokens of the prompt each,     |
|          |                                                  | equal where the tokens are         |
| BurstGPT | `Timestamp`, `Request tokens`, `Response tokens` | an answer of 0 tokens failed       |
| Azure    | `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`  | dates, taken for UTC               |

Mooncake: github.com/kvcache-ai/Mooncake, FAST25-release/traces. BurstGPT:
github.com/HPMLL/BurstGPT. Azure: github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.
The file is never held: a trace of ten million rows costs what its reader keeps of it. Rows come in
the file's order. A byte order mark, lines that end in CR and LF and blank lines, wherever they
stand, are nobody's mistake.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from baton.errors import TraceRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Self, TextIO

MOONCAKE_BLOCK = 512
"""Tokens that a hash id stands for."""
_LONGEST_LINE = 1 << 20
_MILLI = 1e-3


class _Form(NamedTuple):
    when: str
    prompt: str
    output: str


_MOONCAKE = _Form("timestamp", "input_length", "output_length")
_AZURE = _Form("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_FORMS = (
    _Form("arrival_s", "prompt_tokens", "output_tokens"),
    _MOONCAKE,
    _Form("Timestamp", "Request tokens", "Response tokens"),
    _AZURE,
)


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request.

    Args:
        line: Where it stands.
        at_s: When it came, in seconds since any begin.
        prompt_tokens: 1 or more.
        output_tokens: 0 for a request that failed when it was recorded.
        hash_ids: Names of the prompt's blocks of `MOONCAKE_BLOCK` tokens, as far as it has any.
    """

    line: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[Any, ...] = ()


def trace_rows(path: Path) -> Iterator[TraceRow]:
    """The rows of a trace, as long as somebody wants more.

    Raises:
        TraceRefused: It cannot be read, is none, or has a row that is wrong; with the line.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _read(file, path)
    except UnicodeDecodeError as exc:
        raise TraceRefused("the trace is not UTF-8", place=str(path)) from exc
    except OSError as exc:
        why = exc.strerror or str(exc)
        raise TraceRefused(f"cannot read the trace: {why}", place=str(path)) from exc


class _Lines:
    """Lines with something in them, wherever blank ones stand; `number` is the last one's."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.number = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        while text := self._file.readline(_LONGEST_LINE):
            self.number += 1
            if text.strip():
                return text
        raise StopIteration


def _read(file: TextIO, path: Path) -> Iterator[TraceRow]:
    lines = _Lines(file)
    head = next(lines, None)
    if head is None:
        raise TraceRefused("the trace is empty", place=str(path))
    reading = _objects if head.lstrip().startswith("{") else _columns
    rows = reading(head, lines, path)
    form: _Form | None = None
    for line, row in rows:
        if form is None or not row.keys() >= set(form):
            form = _form_of(row, path, line)
        place = f"{path}:{line}"
        ids = row.get("hash_ids")
        yield TraceRow(
            line,
            _seconds(form, row[form.when], place),
            _count(form.prompt, row[form.prompt], place, least=1),
            _count(form.output, row[form.output], place, least=0),
            tuple(ids) if isinstance(ids, list) else (),
        )


def _form_of(row: Mapping[str, Any], path: Path, line: int) -> _Form:
    for form in _FORMS:
        if row.keys() >= set(form):
            return form
    keys = ", ".join(str(key) for key in row if key) or "none"
    raise TraceRefused(f"a row has the keys {keys:.200}", place=f"{path}:{line}", cure=_known())


def _known() -> str:
    return "give each request " + ", or ".join(" / ".join(form) for form in _FORMS)


def _objects(head: str, lines: _Lines, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for text in chain([head], lines):
        place = f"{path}:{lines.number}"
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise TraceRefused(f"no JSON: {exc}", place=place) from exc
        if not isinstance(row, dict):
            raise TraceRefused("a row is no mapping", place=place)
        yield lines.number, row


def _columns(head: str, lines: _Lines, path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(chain([head], lines))
    try:
        if not any(set(form) <= set(reader.fieldnames or ()) for form in _FORMS):
            raise TraceRefused(
                f"this is no trace that Baton knows; it begins with {head.strip()[:60]!r}",
                place=f"{path}:{lines.number}",
                cure=_known(),
            )
        for row in reader:
            yield lines.number, row
    except csv.Error as exc:
        raise TraceRefused(f"not CSV: {exc}", place=f"{path}:{lines.number}") from exc


def _seconds(form: _Form, value: Any, place: str) -> float:
    try:
        if form is _AZURE:
            date = datetime.fromisoformat(str(value).strip())
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
        seconds = float(str(value)) * (_MILLI if form is _MOONCAKE else 1)
    except (ValueError, OverflowError) as exc:
        raise TraceRefused(
            f"{form.when} is {value!r:.60}", place=place, cure="give a time"
        ) from exc
    if not math.isfinite(seconds) or seconds < 0:
        raise TraceRefused(
            f"{form.when} is {value}", place=place, cure="give times of 0 or more, since any begin"
        )
    return seconds


def _count(name: str, value: Any, place: str, *, least: int) -> int:
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not number.is_integer() or number < least:
        raise TraceRefused(
            f"{name} is {value!r:.60}", place=place, cure=f"give a whole number of {least} or more"
        )
    return int(number)
