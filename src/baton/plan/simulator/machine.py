"""A machine whose engines share processors, and how far an engine has come with a segment of work.

Each busy engine slows the others, where that was measured (`StepCosts.beside`); GPUs of their own
need no such thing. An engine counts its work in seconds that it would take alone, and asks its
machine how fast they pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton.plan.simulator.engine import Engine


class Progress:
    """Of one segment. `lead_s` is waking up, which comes before the work."""

    __slots__ = ("_at_s", "_done_s", "_lead_s", "_pace", "work_s")

    def __init__(self) -> None:
        self.work_s = self._lead_s = self._done_s = self._at_s = 0.0
        self._pace = 1.0

    def begin(self, now: float, work_s: float, lead_s: float, pace: float) -> float:
        """A new segment; when it will end."""
        self.work_s, self._lead_s, self._done_s = work_s, lead_s, 0.0
        self._at_s, self._pace = now, pace
        return self.ends_s(now)

    def worked_s(self, now: float) -> float:
        """Seconds of work that are done."""
        return self._done_s + (now - self._at_s) * self._pace - self._lead_s

    def ends_s(self, now: float) -> float:
        """When it ends, at this pace."""
        return now + max(self.work_s - self.worked_s(now), 0.0) / self._pace

    def repace(self, now: float, pace: float) -> float:
        """Go on at another pace; when it will end."""
        self._done_s += (now - self._at_s) * self._pace
        self._at_s, self._pace = now, pace
        return self.ends_s(now)


class Machine:
    """Who is busy on it."""

    def __init__(self) -> None:
        self._busy: dict[Engine, None] = {}

    def pace(self, engine: Engine, *, reading: bool, ending: Engine | None = None) -> float:
        """Seconds of work that pass in a second, in a step that reads prompts or not.

        `ending` counts no longer.
        """
        share = engine.costs.beside.reading if reading else engine.costs.beside.writing
        others = len(self._busy) - (engine in self._busy) - (ending in self._busy)
        return 1.0 / (1.0 + share * others)

    def turn(self, engine: Engine, now: float, *, busy: bool) -> None:
        """An engine has begun or has nothing more to do: the others go on at another pace."""
        if busy == (engine in self._busy):
            return
        if busy:
            self._busy[engine] = None
        else:
            del self._busy[engine]
        for other in list(self._busy):
            if other is not engine:
                other.repace(now)
