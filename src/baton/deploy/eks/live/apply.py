"""The way up: every part to ready, in order, and an end at the first that cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.deploy.eks.live.decide import Action, up
from baton.deploy.eks.live.parts import created_together
from baton.deploy.eks.live.states import State
from baton.deploy.eks.live.walk import Pace, Watch, settle
from baton.errors import DeployFailed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.deploy.eks.live.commands import Command, Runner
    from baton.deploy.eks.live.observe import Eyes
    from baton.deploy.eks.live.parts import Part


def apply(parts: Iterable[Part], eyes: Eyes, runner: Runner, pace: Pace) -> None:
    """Brings all parts to ready.

    Raises:
        DeployFailed: at the first part that cannot be, with the reason that AWS or Kubernetes gave.
    """
    listed = list(parts)
    by_name = {part.name: part for part in listed}
    foreign_cluster = False
    for part in listed:
        if foreign_cluster and part.step == "cluster":
            continue
        ended = _Bringing(part, by_name, Watch(part, eyes, pace), runner).to_ready()
        if ended.kind == "leave" and part.kind == "cluster":
            # Somebody else's cluster: its add-ons and nodes are theirs as well.
            foreign_cluster = True


@dataclass
class _Bringing:
    part: Part
    by_name: dict[str, Part]
    watch: Watch
    runner: Runner

    def to_ready(self) -> Action:
        part, pace = self.part, self.watch.pace
        ended, _ = settle(self.watch, up, self._act)
        if ended.kind == "stop":
            raise _stopped(part, ended)
        pace.say(f"{part.name}: {ended.reason or 'ready'}")
        return ended

    def _act(self, action: Action) -> None:
        for each in self._commands(action):
            self._run(each)

    def _commands(self, action: Action) -> tuple[Command, ...]:
        if action.kind != "make" or self.part.kind != "nodegroup":
            return action.commands
        also = [self.by_name[name] for name in self.part.makes if name in self.by_name]
        missing = [p.name for p in also if self.watch.eyes.see(p).state is State.ABSENT]
        return created_together(self.part, tuple(missing))

    def _run(self, command: Command) -> None:
        part, eyes, pace = self.part, self.watch.eyes, self.watch.pace
        pace.say(f"{part.name}: {command.text}")
        done = self.runner.change(command, self._look)
        if done.code == 0:
            return
        seen = eyes.see(part)
        if seen.state in (State.CREATING, State.READY) and not seen.fatal:
            pace.say(f"{part.name}: {done.reason}; it is {seen.state.value} all the same")
            return
        # eksctl's own words are often the last of a chain; the stack knows the first.
        reason = seen.fatal or (seen.detail if seen.state is State.FAILED else "") or done.reason
        raise DeployFailed(
            f"{part.name}: {reason}", place=command.text,
            cure="put it right and run the same again: what is made is kept",
        )  # fmt: skip

    def _look(self) -> None:
        """While the command runs: what is new, and whether it can still come to anything."""
        self.watch.look()
        if self.part.kind == "nodegroup":
            seen = self.watch.eyes.see(self.part)
            if seen.fatal:
                raise _stopped(self.part, up(self.part, seen))


def _stopped(part: Part, action: Action) -> DeployFailed:
    return DeployFailed(f"{part.name}: {action.reason}", place=part.title, cure=action.cure or None)
