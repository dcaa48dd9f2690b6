"""Baton's own log lines, as text for people or JSON for machines.

Code logs with `logging.getLogger("baton....")` and puts structured fields into `extra=`. Both
formats show them: text as `key=value`, JSON as keys of their own.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from baton.spec.schema import Logging

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in record.__dict__.items() if key not in _STANDARD}


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, separators=(",", ":"))


@functools.lru_cache(maxsize=2)
def _second(since_epoch: int) -> str:
    """Thousands of lines share it."""
    return datetime.fromtimestamp(since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class TextFormatter(logging.Formatter):
    """Time in UTC, level, logger, message, then the fields as `key=value`.

    The whole time: `baton logs` puts lines of many programs in order by it.
    """

    def format(self, record: logging.LogRecord) -> str:
        second, millisecond = divmod(int(record.created * 1000), 1000)
        at = f"{_second(second)}.{millisecond:03}Z"
        parts = [at, record.levelname.lower().ljust(7), record.name, record.getMessage()]
        parts += [
            f"{key}={value}"
            for key, value in record.__dict__.items()
            if value is not None and key not in _STANDARD
        ]
        line = " ".join(parts)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        # A request id or an engine's message must not be able to forge a second line.
        return line if record.exc_info else line.replace("\n", "\\n").replace("\r", "\\r")


def say(logger: logging.Logger, message: str, *values: Any, fields: dict[str, Any]) -> None:
    """`logger.info` for a line that every request writes: at half its cost.

    It does not look for the line of code that it comes from, and takes `fields` as they are: none
    may be called as logging's own are.
    """
    if logger.isEnabledFor(logging.INFO):
        record = logging.LogRecord(logger.name, logging.INFO, "", 0, message, values, None)
        record.__dict__.update(fields)
        logger.handle(record)


def configure(settings: Logging, stream: TextIO | None = None) -> None:
    """Set up the `baton` logger. Safe to call again: the last call wins.

    Args:
        settings: `baton.logging` of the YAML.
        stream: Where lines go; stderr by default, since stdout is for data.
    """
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logger = logging.getLogger("baton")
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(settings.level.upper())
    logger.propagate = False
