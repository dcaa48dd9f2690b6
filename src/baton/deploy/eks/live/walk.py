"""Observe, decide, act, again and again until one part has come to rest. Both ways use it.

Nothing is remembered from one run to the next: what an interrupted run has made is seen, and what
AWS is still making or deleting is waited for. So a second run ends where the first would have.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.deploy.eks.live.decide import Action
from baton.deploy.eks.live.states import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.deploy.eks.live.observe import Eyes
    from baton.deploy.eks.live.parts import Part
    from baton.deploy.eks.live.states import Seen

TRIES = 3
"""How often a part is acted on, and how often in a row it may be unseen, before a run ends."""
SETTLING_S = 60.0
"""How long after a change an old failure may still be told: Serve is asked every few seconds."""


@dataclass
class Pace:
    """Time, and whom to tell. Tests pass their own."""

    say: Callable[[str], None] = lambda _: None
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    every_s: float = 15.0


@dataclass
class Watch:
    """Tells each new CloudFormation event once, and each change of what is waited for."""

    part: Part
    eyes: Eyes
    pace: Pace
    told: set[str] = field(default_factory=set)
    last: str = ""

    def begin(self) -> None:
        """Events that are older than this moment are not told."""
        self.told |= {str(event.get("EventId")) for event in self._events()}

    def look(self, detail: str = "") -> None:
        """Tells what is new."""
        for event in reversed(self._events()):
            key = str(event.get("EventId"))
            if key not in self.told:
                self.told.add(key)
                self.pace.say(f"  {_event_text(event)}")
        if detail and detail != self.last:
            self.last = detail
            self.pace.say(f"  {self.part.name}: {detail}")

    def _events(self) -> list[dict[str, Any]]:
        kinds = {"cluster": "cluster", "nodegroup": f"nodegroup-{self.part.name}"}
        kind = kinds.get(self.part.kind)
        return [] if kind is None else self.eyes.events(kind)


def _event_text(event: dict[str, Any]) -> str:
    reason = event.get("ResourceStatusReason")
    text = f"{event.get('ResourceStatus')} {event.get('LogicalResourceId')}"
    return f"{text}: {reason}" if reason else text


def settle(
    watch: Watch, decide: Callable[[Part, Seen], Action], act: Callable[[Action], None]
) -> tuple[Action, bool]:
    """Acts on a part until there is nothing more to do.

    Returns:
        The last action (`done`, `leave` or `stop`), and whether anything was done before it.
    """
    part, eyes, pace = watch.part, watch.eyes, watch.pace
    tried = unseen = 0
    begun = pace.now()
    while True:
        seen = eyes.see(part)
        action = decide(part, seen)
        if seen.state is State.UNKNOWN and unseen < TRIES:
            # One call that failed says nothing about twenty minutes of waiting.
            unseen += 1
            pace.sleep(pace.every_s)
            continue
        unseen = 0
        if seen.fatal and action.kind == "stop" and tried and pace.now() - begun < SETTLING_S:
            # Right after a change the old failure may still be told.
            action = Action("wait", f"{action.reason} (told before the change, perhaps)")
        if action.kind in ("done", "leave", "stop"):
            return action, tried > 0
        if action.kind == "wait":
            if pace.now() - begun > part.limit_s:
                text = f"after {part.limit_s // 60} minutes it is still {seen.state.value}"
                return Action(
                    "stop", f"{text}: {seen.detail}", "run it again to go on waiting"
                ), True
            watch.look(action.reason)
            pace.sleep(pace.every_s)
            continue
        tried += 1
        if tried > TRIES:
            text = f"{TRIES} times the command was run, and it is still {seen.state.value}"
            return Action("stop", f"{text}: {seen.detail}"), True
        watch.begin()
        act(action)
        begun = pace.now()
