"""Reads plain YAML scalars the way Ray does.

Ray Serve parses its files with PyYAML, which follows YAML 1.1: `on` is true, `1e9` is text, `0o17`
is text and `12:30` is 750. What Baton checks has to be what Ray deploys, so plain scalars are
resolved here by the YAML 1.1 types (https://yaml.org/type/) as PyYAML implements them.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Any

_BOOLS = {
    **dict.fromkeys(("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_WORDS: dict[str, bool | None] = {
    **_BOOLS,
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
}
_INT = re.compile(
    r"""[-+]?0b[0-1_]+ | [-+]?0[0-7_]+ | [-+]?(?:0|[1-9][0-9_]*) | [-+]?0x[0-9a-fA-F_]+
      | [-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+""",
    re.VERBOSE,
)
_FLOAT = re.compile(
    r"""[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+][0-9]+)? | \.[0-9][0-9_]*(?:[eE][-+][0-9]+)?
      | [-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]* | [-+]?\.(?:inf|Inf|INF) | \.(?:nan|NaN|NAN)""",
    re.VERBOSE,
)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def resolve(text: str) -> Any:
    """The value of a plain (unquoted) scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return to_int(text)
    if _FLOAT.fullmatch(text):
        return to_float(text)
    if _DATE.fullmatch(text):
        try:
            return dt.date.fromisoformat(text)
        except ValueError:
            return text
    return text


def to_int(text: str) -> int | str:
    """An integer in any of YAML 1.1's spellings; the text itself when it is none."""
    digits = text.replace("_", "")
    sign = -1 if digits.startswith("-") else 1
    digits = digits.lstrip("+-")
    try:
        if digits.startswith("0b"):
            return sign * int(digits, 0)
        if digits.startswith("0x"):
            return sign * int(digits, 0)
        if ":" in digits:
            return sign * int(_base_60(digits))
        if digits.startswith("0") and digits != "0":
            return sign * int(digits, 8)
        return sign * int(digits)
    except ValueError:
        return text


def to_float(text: str) -> float | str:
    """A float in any of YAML 1.1's spellings; the text itself when it is none."""
    digits = text.replace("_", "").lower()
    sign = -1.0 if digits.startswith("-") else 1.0
    digits = digits.lstrip("+-")
    if digits == ".inf":
        return sign * math.inf
    if digits == ".nan":
        return math.nan
    try:
        return sign * (_base_60(digits) if ":" in digits else float(digits))
    except ValueError:
        return text


def _base_60(digits: str) -> float:
    total = 0.0
    for part in digits.split(":"):
        total = total * 60 + float(part)
    return total
