"""Baton's own log lines: text for people, JSON for machines, structured either way.

Loggers live under `baton.`. Fields come through `extra=`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.spec.schema import Logging

# What every LogRecord has anyway: all else came through `extra=`.
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The `extra=` fields of a record."""
    return {key: value for key, value in record.__dict__.items() if key not in _OWN}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time_s`, `level`, `logger`, `message`, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, Any] = {
            "time_s": round(record.created, 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """`time level logger message key=value …`."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{stamp}.{int(record.msecs):03d} {record.levelname.lower():7} {record.name}"
        pairs = "".join(f" {key}={_quoted(value)}" for key, value in fields(record).items())
        text = f"{head} {record.getMessage()}{pairs}"
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return text


def configure(settings: Logging) -> None:
    """Send everything under `baton.` to stderr in the asked format; safe to call again."""
    logger = logging.getLogger("baton")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logger.addHandler(handler)
    logger.setLevel(settings.level.upper())
    logger.propagate = False


def _quoted(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=\n\r\t') else text
