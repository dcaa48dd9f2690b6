"""Reads a trace: when requests came, and how long they were.

Two public formats, told apart by what the file begins with:

- Mooncake's (github.com/kvcache-ai/Mooncake, FAST25-release/traces): a JSON object a line with
  `timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`, one for each 512
  tokens of the prompt; equal ids are equal tokens, so shared prefixes survive.
- BurstGPT's (github.com/HPMLL/BurstGPT): CSV with `Timestamp` in seconds, `Request tokens` and
  `Response tokens`; 0 response tokens stand for a request that failed there, and are left out.

The file is read row by row and never held: a trace of ten million rows costs the memory of what is
asked of it.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.bench.traffic import MAX_PROMPT_TOKENS, MAX_REQUESTS, Block, Planned, checked
from baton.errors import LoadRefused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import TextIO

MOONCAKE_BLOCK = 512
LONGEST_PAUSE_S = 60.0
"""A longer pause in a trace measures nothing; it must be wanted."""
_LONGEST_LINE = 1 << 20
_MILLI = 1e-3


@dataclass
class Trace:
    """What was read, and what was done to it, in words."""

    planned: list[Planned]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Row:
    line: int
    at_s: float
    blocks: tuple[Block, ...]
    output_tokens: int

    @property
    def input_tokens(self) -> int:
        return sum(block.tokens for block in self.blocks)


def read(
    path: Path,
    *,
    requests: int | None = None,
    max_pause_s: float | None = None,
    speed: float = 1.0,
) -> Trace:
    """Read a trace.

    Args:
        path: The file.
        requests: Only the first so many. Reading stops there.
        max_pause_s: Longer pauses are shortened to this.
        speed: 2 plays it in half the time.

    Raises:
        LoadRefused: With the line, for anything that cannot be replayed as it stands.
    """
    clock = _Clock(path, speed, max_pause_s)
    trace = Trace([])
    failed = tokens = 0
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in _rows(file, path):
                if len(trace.planned) >= min(requests or MAX_REQUESTS, MAX_REQUESTS):
                    _refuse_more(path, requests)
                    break
                if row.output_tokens == 0:
                    failed += 1
                    continue
                if (tokens := tokens + row.input_tokens) > MAX_PROMPT_TOKENS:
                    raise _too_large(path, len(trace.planned))
                trace.planned.append(Planned(clock.at(row), row.blocks, row.output_tokens))
    except UnicodeDecodeError as exc:
        raise LoadRefused("the trace is not UTF-8", place=str(path)) from exc
    except OSError as exc:
        why = exc.strerror or str(exc)
        raise LoadRefused(f"cannot read the trace: {why}", place=str(path)) from exc
    checked(trace.planned)
    if failed:
        trace.notes.append(f"{failed} rows without an answer (failed when recorded) are left out")
    if clock.shortened:
        trace.notes.append(f"{clock.shortened} pauses were shortened to {max_pause_s:g} s")
    if requests is not None:
        trace.notes.append(f"the first {len(trace.planned)} requests of {path.name}")
    return trace


class _Clock:
    """Turns a trace's times into times since the start, row after row."""

    def __init__(self, path: Path, speed: float, max_pause_s: float | None) -> None:
        self.shortened = 0
        self._path = path
        self._speed = speed
        self._max_pause_s = max_pause_s
        self._last: float | None = None
        self._now = 0.0

    def at(self, row: _Row) -> float:
        """When the row's request leaves. Raises LoadRefused."""
        pause = 0.0 if self._last is None else (row.at_s - self._last) / self._speed
        if pause < 0:
            raise _wrong(
                self._path,
                row.line,
                f"time goes back from {self._last:g} s to {row.at_s:g} s",
                "sort the trace by its time",
            )
        if pause > (LONGEST_PAUSE_S if self._max_pause_s is None else self._max_pause_s):
            if self._max_pause_s is None:
                raise _wrong(
                    self._path,
                    row.line,
                    f"nothing happens for {pause:,.0f} s before this row",
                    "--max-pause S shortens such pauses to S (inf keeps them); --speed X plays "
                    "faster",
                )
            pause = self._max_pause_s
            self.shortened += 1
        self._last = row.at_s
        self._now += pause
        return self._now


def _too_large(path: Path, read_so_far: int) -> LoadRefused:
    return LoadRefused(
        f"after {read_so_far:,} requests the prompts pass {MAX_PROMPT_TOKENS:,} tokens, which the "
        "generator holds in memory",
        place=str(path),
        cure=f"--requests {max(1, read_so_far)} takes those",
    )


def _refuse_more(path: Path, requests: int | None) -> None:
    if requests is None or requests > MAX_REQUESTS:
        raise LoadRefused(
            f"the trace has more than {MAX_REQUESTS:,} requests",
            place=str(path),
            cure=f"--requests N takes the first N, up to {MAX_REQUESTS:,}",
        )


def _rows(file: TextIO, path: Path) -> Iterator[_Row]:
    head = file.readline(_LONGEST_LINE).strip()
    file.seek(0)
    if head.startswith("{"):
        yield from _mooncake(file, path)
    elif "Timestamp" in head and "," in head:
        yield from _burstgpt(file, path)
    else:
        raise LoadRefused(
            f"this is no trace that Baton knows; it begins with {head[:60]!r}",
            place=str(path),
            cure="give Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids) or "
            "BurstGPT's CSV (Timestamp, Request tokens, Response tokens)",
        )


def _mooncake(file: TextIO, path: Path) -> Iterator[_Row]:
    line = 0
    while text := file.readline(_LONGEST_LINE):
        line += 1
        if not text.strip():
            continue
        try:
            row = json.loads(text)
            at, inputs, outputs = row["timestamp"], row["input_length"], row["output_length"]
            ids = row.get("hash_ids") or []
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            problem = f"not a row of a trace: {type(exc).__name__} {exc}"
            raise _wrong(path, line, problem) from exc
        at_s = _time(path, line, at) * _MILLI
        tokens = _count(path, line, "input_length", inputs, least=1)
        yield _Row(
            line, at_s, _blocks(ids, tokens, line), _count(path, line, "output_length", outputs)
        )


def _blocks(ids: Any, tokens: int, line: int) -> tuple[Block, ...]:
    """The prompt in blocks of 512; what has no id of its own is shared with nobody."""
    blocks, left = [], tokens
    for one in ids if isinstance(ids, list) else ():
        if left <= 0:
            break
        blocks.append(Block(f"hash{one}", min(MOONCAKE_BLOCK, left)))
        left -= MOONCAKE_BLOCK
    if left > 0:
        blocks.append(Block(f"row{line}", left))
    return tuple(blocks)


def _burstgpt(file: TextIO, path: Path) -> Iterator[_Row]:
    reader = csv.DictReader(file)
    try:
        for row in reader:
            line = reader.line_num
            try:
                at, inputs, outputs = (
                    row["Timestamp"],
                    row["Request tokens"],
                    row["Response tokens"],
                )
            except KeyError as exc:
                raise _wrong(path, line, f"there is no column {exc}") from exc
            tokens = _count(path, line, "Request tokens", inputs, least=1)
            blocks = (Block(f"row{line}", tokens),)
            answer = _count(path, line, "Response tokens", outputs)
            yield _Row(line, _time(path, line, at), blocks, answer)
    except csv.Error as exc:
        raise _wrong(path, reader.line_num, f"not CSV: {exc}") from exc


def _time(path: Path, line: int, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise _wrong(path, line, f"the time is {value!r}") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise _wrong(path, line, f"the time is {value!r}", "times are 0 or more, since the start")
    return seconds


def _count(path: Path, line: int, name: str, value: Any, *, least: int = 0) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(path, line, f"{name} is {value!r}") from None
    if count < least:
        raise _wrong(path, line, f"{name} is {count}", f"{name} is {least} or more")
    return count


def _wrong(path: Path, line: int, fact: str, cure: str | None = None) -> LoadRefused:
    return LoadRefused(fact, place=f"{path}:{line}", cure=cure)
