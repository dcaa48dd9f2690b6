"""Where the time between `baton up` and its first handoff went.

Moments are seconds since the epoch, because the engines' own come from other processes: their
leases carry the phases that `baton.engine.startup` has noted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.spec.lease import EngineLease, EngineStart


@dataclass
class Timings:
    """Filled while `up` goes on."""

    began_at: float = field(default_factory=time.time)
    marks: dict[str, float] = field(default_factory=dict)
    engines: tuple[EngineLease, ...] = ()
    clock: Callable[[], float] = time.time

    def mark(self, name: str) -> None:
        """Note that this point was reached, now."""
        self.marks[name] = self.clock()

    def slowest(self) -> dict[str, EngineStart]:
        """The start of each role's engine that was up last; engines from before count nothing."""
        found: dict[str, tuple[float, EngineStart]] = {}
        for engine in self.engines:
            start = engine.start
            if start is None or start.began_at < self.began_at:
                continue
            up_at = start.began_at + sum(start.phases_s.values())
            if engine.role not in found or found[engine.role][0] < up_at:
                found[engine.role] = (up_at, start)
        return {role: start for role, (_, start) in sorted(found.items(), reverse=True)}

    def steps_s(self) -> dict[str, float]:
        """Seconds of each step of `up`, which follow each other and add up to the whole."""
        engines_began_at = min((start.began_at for start in self.slowest().values()), default=None)
        steps: dict[str, float] = {}
        since = self.began_at
        for name, until in (
            ("Ray", self.marks.get("ray_at")),
            ("Serve, application, placement", engines_began_at),
            ("engines", self.marks.get("engines_at")),
            ("first handoff", self.marks.get("handoff_at")),
        ):
            if until is not None:
                steps[name] = round(max(0.0, until - since), 3)
                since = max(since, until)
        return steps

    def as_data(self) -> dict[str, Any]:
        """What `--format json` prints."""
        return {
            "steps_s": self.steps_s(),
            "engines": {
                role: start.model_dump(mode="json") for role, start in self.slowest().items()
            },
        }


def timings_text(timings: Timings) -> str:
    """A table for people; the parts of an engine's start stand below the engines' step."""
    steps = timings.steps_s()
    engines = timings.slowest()
    lines = ["where the time went, in seconds"]
    for name, seconds in steps.items():
        lines.append(f"  {name:<32} {seconds:7.1f}")
        if name == "engines" and engines:
            lines.append("    " + " " * 30 + "".join(f" {role:>8}" for role in engines))
            names = list(dict.fromkeys(p for start in engines.values() for p in start.phases_s))
            for phase in names:
                row = "".join(
                    f" {start.phases_s.get(phase, 0.0):8.1f}" for start in engines.values()
                )
                lines.append(f"    {phase:<30}{row}")
    lines.append(f"  {'in all':<32} {sum(steps.values()):7.1f}")
    lines += [_weights_text(role, start) for role, start in engines.items() if start.weights_s]
    return "\n".join(lines)


def _weights_text(role: str, start: EngineStart) -> str:
    size = f"{start.weights_bytes / 2**30:.2f} GiB of " if start.weights_bytes else ""
    if start.weights_from_disk_bytes is None:
        source = "the system does not say how much came from disk"
    elif start.weights_from_disk_bytes == 0:
        source = "all of it from the page cache"
    else:
        source = f"{start.weights_from_disk_bytes / 2**30:.2f} GiB from disk"
    return f"  {role}: {size}weights in {start.weights_s:.2f} s, {source}"
