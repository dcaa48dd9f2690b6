"""What a run would do with what was seen, before it does anything. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.deploy.eks.live.decide import Action, down, up
from baton.deploy.eks.live.parts import created_together
from baton.deploy.eks.live.states import ABSENT, Seen, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from baton.deploy.eks.live.commands import Command
    from baton.deploy.eks.live.parts import Part

SIGNS = {
    "make": "+", "change": "~", "delete": "-", "done": "=", "leave": "=", "wait": "…", "stop": "!",
}  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """One part, what would be done with it, and the commands that a run would give."""

    part: Part
    seen: Seen
    action: Action
    commands: tuple[Command, ...] = ()
    with_: str = ""
    """The part whose command makes this one along with it."""

    @property
    def sign(self) -> str:
        """One character for a list."""
        return SIGNS[self.action.kind]


def nothing_there(parts: Iterable[Part]) -> dict[str, Seen]:
    """As an empty account would be seen."""
    return {part.name: ABSENT for part in parts}


def planned_up(parts: Iterable[Part], seen: Mapping[str, Seen]) -> list[Planned]:
    """The way up from what was seen."""
    listed = list(parts)
    along: dict[str, str] = {}
    found = []
    foreign_cluster = False
    for part in listed:
        if foreign_cluster and part.step == "cluster":
            continue
        action = up(part, seen[part.name])
        if part.kind == "cluster" and action.kind == "leave":
            foreign_cluster = True
        commands: tuple[Command, ...] = ()
        if part.name not in along and action.kind in ("make", "change"):
            commands = action.commands
        if action.kind == "make" and part.name not in along:
            missing = tuple(
                p.name
                for p in listed
                if p.name in part.makes and seen[p.name].state is State.ABSENT
            )
            along.update(dict.fromkeys(missing, part.name))
            if part.kind == "nodegroup":
                commands = created_together(part, missing)
        found.append(Planned(part, seen[part.name], action, commands, along.get(part.name, "")))
    return found


def planned_down(parts: Iterable[Part], seen: Mapping[str, Seen]) -> list[Planned]:
    """The way down from what was seen."""
    found = []
    for part in reversed(list(parts)):
        action = down(part, seen[part.name])
        found.append(Planned(part, seen[part.name], action, action.commands))
    return found
