"""Decides what became of a request, and when a service was well again. Pure.

Each request is counted in one column only, the first that fits:

| verdict  | the caller …                                                                        |
| -------- | ----------------------------------------------------------------------------------- |
| error    | got no answer, or a status other than 200                                           |
| broken   | got a 200 whose answer is not whole: cut, an error event, no [DONE], no reason      |
| mismatch | got a whole answer with other text, usage or finish reason than when undisturbed    |
| right    | got the same answer                                                                 |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from baton.drill.client import OK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.drill.asks import Case
    from baton.drill.client import Seen

Verdict = Literal["right", "error", "broken", "mismatch"]


class Judged(NamedTuple):
    """One request, and what became of it. `detail` says why it is not right."""

    case: Case
    seen: Seen
    verdict: Verdict
    detail: str


def judge(case: Case, seen: Seen) -> Judged:
    """Compare an answer with the undisturbed one."""
    if seen.status != OK:
        return Judged(case, seen, "error", f"status {seen.status}: {seen.fault}")
    if seen.fault:
        return Judged(case, seen, "broken", seen.fault)
    if detail := difference(case.expected, seen):
        return Judged(case, seen, "mismatch", detail)
    return Judged(case, seen, "right", "")


def difference(expected: Seen, seen: Seen) -> str:
    """What an answer says otherwise; empty when nothing."""
    for name in ("reasoning", "text"):
        said, meant = getattr(seen, name), getattr(expected, name)
        if said != meant:
            place = same_length(meant, said)
            return (
                f"{name} differs at character {place}: "
                f"{said[place : place + 20]!r} instead of {meant[place : place + 20]!r}"
            )
    if seen.finish_reason != expected.finish_reason:
        return f"finish_reason {seen.finish_reason!r} instead of {expected.finish_reason!r}"
    if seen.usage != expected.usage:
        return f"usage {seen.usage} instead of {expected.usage}"
    return ""


def is_beginning(expected: Seen, seen: Seen) -> bool:
    """Whether what a caller read before he hung up is how the undisturbed answer begins."""
    return expected.text.startswith(seen.text) and expected.reasoning.startswith(seen.reasoning)


def same_length(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))


def recovered_at(judged: Sequence[Judged], fault_at: float) -> float | None:
    """When the service was well again, on the clock of the requests; None when it never was.

    That is the end of the first right answer to a request sent after the fault and after the last
    request that was lost.
    """
    after = [one for one in judged if one.seen.sent_at >= fault_at]
    lost = [one.seen.sent_at for one in after if one.verdict != "right"]
    start = max(lost, default=fault_at)
    ends = [
        one.seen.ended_at for one in after if one.verdict == "right" and one.seen.sent_at >= start
    ]
    return min(ends, default=None)
