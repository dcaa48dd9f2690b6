"""One judgement about an image: a word, a fact, a place, a cure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Word = Literal["pass", "warn", "fail", "unknown"]


@dataclass(frozen=True)
class Finding:
    """What a rule says."""

    word: Word
    fact: str
    place: str = ""
    cure: str = ""
    rule_id: str = ""

    def of(self, rule_id: str) -> Finding:
        """The same, by that rule."""
        return replace(self, rule_id=rule_id)


def passed(fact: str) -> Finding:
    """All is well."""
    return Finding("pass", fact)


def warn(fact: str, place: str, cure: str) -> Finding:
    """For a person to read."""
    return Finding("warn", fact, place, cure)


def fail(fact: str, place: str, cure: str) -> Finding:
    """This must not be deployed."""
    return Finding("fail", fact, place, cure)


def unknown(fact: str, place: str, cure: str) -> Finding:
    """It could not be found out here."""
    return Finding("unknown", fact, place, cure)
