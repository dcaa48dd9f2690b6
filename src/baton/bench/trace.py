"""Plans a load from a trace (`spec/trace.py`): each request when it came, as long as it was.

Equal `hash_ids` are equal tokens, so shared prefixes survive. Rows without an answer failed when
they were recorded, and are left out. No more of the file is read than is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton.bench.traffic import MAX_PROMPT_TOKENS, MAX_REQUESTS, Block, Planned, checked
from baton.errors import LoadRefused
from baton.spec.trace import MOONCAKE_BLOCK, trace_rows

if TYPE_CHECKING:
    from pathlib import Path

    from baton.spec.trace import TraceRow

LONGEST_PAUSE_S = 60.0
"""A longer pause in a trace measures nothing; it must be wanted."""


@dataclass
class Trace:
    """What was read, and what was done to it, in words."""

    planned: list[Planned]
    notes: list[str] = field(default_factory=list)


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
        TraceRefused: It cannot be read, or a row is wrong.
        LoadRefused: It cannot be replayed as it stands; with the line.
    """
    clock = _Clock(path, speed, max_pause_s)
    trace = Trace([])
    failed = tokens = 0
    for row in trace_rows(path):
        if len(trace.planned) >= min(requests or MAX_REQUESTS, MAX_REQUESTS):
            _refuse_more(path, requests)
            break
        if row.output_tokens == 0:
            failed += 1
            continue
        if (tokens := tokens + row.prompt_tokens) > MAX_PROMPT_TOKENS:
            raise _too_large(path, len(trace.planned))
        trace.planned.append(Planned(clock.at(row), _blocks(row), row.output_tokens))
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

    def at(self, row: TraceRow) -> float:
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


def _blocks(row: TraceRow) -> tuple[Block, ...]:
    """The prompt in blocks; what has no id of its own is shared with nobody."""
    blocks, left = [], row.prompt_tokens
    for one in row.hash_ids:
        if left <= 0:
            break
        blocks.append(Block(f"hash{one}", min(MOONCAKE_BLOCK, left)))
        left -= MOONCAKE_BLOCK
    if left > 0:
        blocks.append(Block(f"row{row.line}", left))
    return tuple(blocks)


def _wrong(path: Path, line: int, fact: str, cure: str | None = None) -> LoadRefused:
    return LoadRefused(fact, place=f"{path}:{line}", cure=cure)
