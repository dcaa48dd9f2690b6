"""A machine whose engines share processors, and how far an engine has come with a segment of work.

Each busy engine slows the others, where that was measured (`StepCosts.beside`); GPUs of their own
need no such thing. An engine counts its work in seconds that it would take alone, and asks its
machine how fast they pass. What an engine does beside its steps (HTTP, tokenizing, the fixed part
of a handoff) is work of the same processors: an errand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

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


class Errand:
    """Work of an engine beside its steps, for one request; what comes after it is `what`."""

    __slots__ = ("engine", "progress", "version", "what")

    def __init__(self, engine: Engine, what: object) -> None:
        self.engine, self.what = engine, what
        self.progress = Progress()
        self.version = 0


class Clock(Protocol):
    """Who is told when an errand will end."""

    def errand_at(self, when: float, errand: Errand, version: int) -> None:
        """Come back then, unless the version has moved on."""


class Machine:
    """Who is busy on it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stepping: dict[Engine, None] = {}
        self._errands: dict[Errand, None] = {}
        self._busy: dict[Engine, int] = {}
        """With how many things."""

    def pace(self, engine: Engine, *, reading: bool) -> float:
        """Seconds of work that pass in a second, in a step that reads prompts or not."""
        share = engine.costs.beside.reading if reading else engine.costs.beside.writing
        return 1.0 / (1.0 + share * (len(self._busy) - (engine in self._busy)))

    def turn(self, engine: Engine, now: float, *, busy: bool) -> None:
        """An engine has begun or has no more steps: the others go on at another pace."""
        if busy == (engine in self._stepping):
            return
        if busy:
            self._stepping[engine] = None
        else:
            del self._stepping[engine]
        self._count(engine, now, 1 if busy else -1)

    def send(self, engine: Engine, work_s: float, what: object, now: float) -> None:
        """An errand begins."""
        errand = Errand(engine, what)
        self._errands[errand] = None
        self._count(engine, now, 1)
        ends = errand.progress.begin(now, work_s, 0.0, self.pace(engine, reading=True))
        self._clock.errand_at(ends, errand, errand.version)

    def end(self, errand: Errand, now: float) -> None:
        """An errand is done."""
        del self._errands[errand]
        errand.version += 1
        self._count(errand.engine, now, -1)

    def _count(self, engine: Engine, now: float, more: int) -> None:
        count = self._busy.get(engine, 0) + more
        if count:
            self._busy[engine] = count
        else:
            del self._busy[engine]
        if count != max(more, 0):  # it was busy already, or is so still
            return
        for other in list(self._stepping):
            if other is not engine:
                other.repace(now)
        for errand in self._errands:
            if errand.engine is not engine:
                errand.version += 1
                pace = self.pace(errand.engine, reading=True)
                self._clock.errand_at(errand.progress.repace(now, pace), errand, errand.version)
