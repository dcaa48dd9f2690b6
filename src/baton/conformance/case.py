"""A case: what is asked, what the standard says, and how the answer was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from baton.conformance.probe import Probe

Status = Literal["pass", "fail", "not offered"]


class Fails(Exception):
    """The endpoint does otherwise than the standard says."""


class NotOffered(Exception):
    """The endpoint does not have this, and says so properly."""


@dataclass(frozen=True)
class Case:
    """One claim about an endpoint.

    Args:
        id: `AREA.NAME`; stays the same between versions.
        says: What the standard says, in our words.
        source: Where it says so.
        act: Asks the endpoint. Raises `Fails` or `NotOffered`; returns for a pass.
    """

    id: str
    says: str
    source: str
    act: Callable[[Probe], Awaitable[None]]


@dataclass
class Outcome:
    """How an endpoint did in a case.

    `seen` are the facts that can be compared with another endpoint's; `notes` are not compared but
    help to explain (which way the request went, for instance).
    """

    case: Case
    status: Status
    detail: str = ""
    seen: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    took_s: float = 0.0


def check(holds: object, otherwise: str) -> None:
    """Raises `Fails` with `otherwise` unless it holds."""
    if not holds:
        raise Fails(otherwise)
