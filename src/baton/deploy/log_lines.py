"""Lines of many logs, in the order in which they were written.

Each program stamps its lines in its own way: Baton with an ISO time in UTC, Ray and Serve with a
local one, vLLM with a local one that has neither year nor fractions. A line without a stamp (a
traceback, a printed dictionary) belongs to the line above it.
"""

from __future__ import annotations

import heapq
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_REACH = 120
"""A stamp stands at the beginning, behind a level and a process at most."""
_ISO = re.compile(
    r"(?<!\d)(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?(Z|[+-]\d\d:\d\d)?(?!\d)"
)
# vLLM 0.29 logger.py: `%m-%d %H:%M:%S`.
_VLLM = re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) ")
_JSON_TIME = re.compile(r'^\{"time":"([^"]{10,40})"')
_DAY_S = 86_400.0


@dataclass(frozen=True, order=True)
class Line:
    """One line. `at` is seconds since the epoch, its own or that of the line it belongs to."""

    at: float
    source: str
    text: str
    stamped: bool = True


def when(text: str, *, no_later_than: float) -> float | None:
    """The time that a line is stamped with, or None.

    Args:
        text: The line.
        no_later_than: When its file was last written: says the year where the line does not.
    """
    head = _COLOUR.sub("", text[: 2 * _REACH])[:_REACH]
    found = _JSON_TIME.match(head)
    try:
        if found is not None:
            return datetime.fromisoformat(found[1]).timestamp()
        iso = _ISO.search(head)
        if iso is not None:
            day, clock, fraction, zone = iso.groups()
            fraction = (fraction or "").ljust(6, "0")
            # Without a zone it is this machine's, and `timestamp` takes it so.
            return datetime.fromisoformat(f"{day}T{clock}.{fraction}{zone or ''}").timestamp()
        vllm = _VLLM.search(head)
        if vllm is None:
            return None
        month, day_of, hour, minute, second = (int(part) for part in vllm.groups())
        year = datetime.fromtimestamp(no_later_than, tz=UTC).year
        for guess in (year, year - 1):
            stamp = datetime(  # noqa: DTZ001 - this machine's
                guess, month, day_of, hour, minute, second
            ).timestamp()
            if stamp <= no_later_than + _DAY_S:
                return stamp
    except (ValueError, OverflowError):
        return None  # 30 February, or a number that only looks like a time
    return None


def lines_of(texts: Iterable[str], source: str, *, written_at: float) -> Iterator[Line]:
    """Stamp each line of one file. What comes before the first stamp gets that one."""
    early: list[str] = []
    at: float | None = None
    for raw in texts:
        text = _COLOUR.sub("", raw).rstrip("\r\n")
        if not text:
            continue
        stamp = when(text, no_later_than=written_at)
        if stamp is None and at is None:
            early.append(text)
            continue
        if stamp is not None:
            # Threads write in their own order: within a file the order of lines stays.
            at = stamp if at is None else max(at, stamp)
            for held in early:
                yield Line(at, source, held, stamped=False)
            early.clear()
        yield Line(at or 0.0, source, text, stamped=stamp is not None)
    for held in early:
        yield Line(written_at, source, held, stamped=False)


def merged(files: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """All lines by time; lines of one file keep their order."""
    return heapq.merge(*files, key=lambda line: line.at)


def of_request(request_id: str) -> Callable[[Line], bool]:
    """Tells which lines are about a request: call it for each, in order.

    Engines see the caller's id with a suffix for each leg and vLLM's own prefix (`cmpl-ID-…-p0-0`).
    Lines without a stamp go with the line above them in the same file.
    """
    leg = r"(?:-[0-9a-f]{12}-[pd]\d+|-t)"
    names = re.compile(
        rf"(?<![A-Za-z0-9._])(?:(?<!-)|(?<=cmpl-))"
        rf"{re.escape(request_id)}(?:{leg}|(?![A-Za-z0-9._-]))"
    )
    last: dict[str, bool] = {}

    def about_it(line: Line) -> bool:
        named = names.search(line.text) is not None
        if line.stamped or line.source not in last:
            last[line.source] = named
        return named or last[line.source]

    return about_it


def shown(line: Line) -> str:
    """For a person: local time, source, and the line as it was written."""
    at = datetime.fromtimestamp(line.at).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} {line.source:<16} {line.text}"


def as_json(line: Line) -> str:
    """For a program."""
    at = datetime.fromtimestamp(line.at, UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": at, "source": line.source, "line": line.text})
