"""In which state something is, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class State(Enum):
    """UNKNOWN is a state of our knowledge. It is never taken for ABSENT."""

    ABSENT = "absent"
    CREATING = "creating"
    READY = "ready"
    FAILED = "failed"
    DELETING = "deleting"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Drift:
    """A difference between what is there and what the files say."""

    text: str
    by: str = ""
    """What puts it right, such as `apply` or `scale`; nothing when only deletion would."""


@dataclass(frozen=True)
class Seen:
    """A part as it was observed."""

    state: State
    detail: str = ""
    ours: bool | None = None
    """Whether it carries our tag or label; None when that cannot be told."""
    fatal: str = ""
    """Why what is being made will never be ready."""
    drifts: tuple[Drift, ...] = field(default=())


ABSENT = Seen(State.ABSENT)


def unknown(why: str) -> Seen:
    """Could not be seen."""
    return Seen(State.UNKNOWN, why)
