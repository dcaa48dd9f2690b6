"""Two endpoints case by case: where they differ, and why.

A difference is explained by what is known of it (`KNOWN`, each with its reason), or by the way that
the request went and said so in its headers. What neither explains is called unexplained: that is a
finding, never a footnote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.conformance.case import Outcome
    from baton.conformance.run import Report


@dataclass(frozen=True)
class Difference:
    """A case in which two endpoints did not do the same.

    Args:
        id: The case.
        first: What the first endpoint did, in words.
        second: What the other did.
        why: The explanation; empty where there is none.
    """

    id: str
    first: str
    second: str
    why: str

    @property
    def explained(self) -> bool:
        return bool(self.why)


@dataclass(frozen=True)
class _Known:
    """A difference that has a reason.

    Args:
        fact: The fact that differs; `status of the case` for pass, fail and not offered.
        why: The reason.
        applies: Whether the two outcomes differ in just this way.
    """

    cases: tuple[str, ...]
    why: str
    applies: Callable[[Outcome, Outcome], bool]


def _only(*facts: str) -> Callable[[Outcome, Outcome], bool]:
    return lambda one, two: one.status == two.status and set(differing(one, two)) <= set(facts)


def _better(one: Outcome, two: Outcome) -> bool:
    return one.status == "pass" and two.status == "fail"


KNOWN: tuple[_Known, ...] = (
    _Known(
        ("models.list",),
        "Baton's card of a model leaves out vLLM's `permission`: OpenAI's model object has no such "
        "field (openai-python 3.57.0, types/model.py), and nothing in it is true of a deployment",
        _only("keys"),
    ),
    _Known(
        ("models.retrieve",),
        "vLLM 0.29 has no route for one model (openai/models/api_router.py); Baton answers it, as "
        "the standard says",
        lambda one, two: one.status == "pass" and two.status != "pass",
    ),
    _Known(
        ("errors.context",),
        "vLLM 0.29 answers 400 with the number 400 as its code; Baton puts OpenAI's code there, by "
        "which clients know that the prompt is too long",
        _better,
    ),
    _Known(
        ("errors.unknown_route", "errors.method", "models.unknown"),
        'FastAPI answers `{"detail": …}` for what it does not route; Baton gives OpenAI\'s error '
        "object",
        _better,
    ),
    _Known(
        ("errors.", "models.unknown", "responses.unknown", "stream.chat.error_first"),
        "the status is the same; Baton's own refusals have OpenAI's `type` and `code`, vLLM's have "
        "the name of an exception and the number of the status",
        _only("type", "code"),
    ),
)


def compare(one: Report, two: Report) -> list[Difference]:
    """The differences between two reports of the same cases, in their order."""
    others = {outcome.case.id: outcome for outcome in two.outcomes}
    found = []
    for outcome in one.outcomes:
        other = others[outcome.case.id]
        facts = differing(outcome, other)
        if outcome.status == other.status and not facts:
            continue
        found.append(
            Difference(
                outcome.case.id,
                _told(outcome, facts, own=0),
                _told(other, facts, own=1),
                _why(outcome, other),
            )
        )
    return found


def differing(one: Outcome, two: Outcome) -> dict[str, tuple[Any, Any]]:
    """The facts that both saw, or only one did, and that are not the same."""
    if one.status != two.status:
        return {}
    missing = object()
    names = [*one.seen, *(name for name in two.seen if name not in one.seen)]
    pairs = {name: (one.seen.get(name, missing), two.seen.get(name, missing)) for name in names}
    return {
        name: (
            None if first is missing else first,
            None if second is missing else second,
        )
        for name, (first, second) in pairs.items()
        if first != second
    }


def _told(outcome: Outcome, facts: dict[str, tuple[Any, Any]], *, own: int) -> str:
    if not facts:
        return outcome.status + (f": {outcome.detail}" if outcome.detail else "")
    return "; ".join(f"{name} {pair[own]!r:.100}" for name, pair in facts.items())


def _why(one: Outcome, two: Outcome) -> str:
    for known in KNOWN:
        applies = any(one.case.id.startswith(name) for name in known.cases)
        if applies and known.applies(one, two):
            return known.why
        if applies and known.applies(two, one):
            return known.why + " (here it is the second endpoint)"
    return ""
