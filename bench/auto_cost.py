"""What `disaggregate: auto` costs for a request, and how it turns and returns in replays.

The first part times the cost model: a decision and what a request teaches, in microseconds. The
second replays traffic through it on a virtual clock, so its numbers are the same on every machine:
an engine pair with noise, whose transport is throttled, fails, or has a hiccup for a while. Prints
JSON.

    PYTHONPATH=src python bench/auto_cost.py --json bench/results/auto_cost.json
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import platform
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from output import write
from prometheus_client import CollectorRegistry

from baton.gateway.cost import CostModel
from baton.gateway.curve import size_class
from baton.gateway.directory import FixedDirectory
from baton.gateway.eligibility import prompt_size
from baton.gateway.routing import InFlight
from baton.gateway.ways import Ways
from baton.observe.costs import CostMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.gateway.cost import WayChoice

PREFILL_S_PER_TOKEN = 27e-6
"""FACTS of Qwen3-8B's shape on an H200: 8,192 tokens in 221 ms."""
HANDOFF_FIXED_S = 0.012
HANDOFF_S_PER_TOKEN = 2.8e-6
"""The same pair with a tuned transport: 8,192 tokens in 35 ms."""
THROTTLED = 135.0
"""Times slower: what the default transport made of it there, 3,100 ms."""
STEP_S = 0.006
STREAMS = 4.0
FAILS_AFTER_S = 0.05


@dataclass
class World:
    """An engine pair and its traffic, on a virtual clock."""

    rate: float
    lengths: tuple[int, int] = (200, 8000)
    noise: float = 0.2
    slow: Callable[[float], float] = lambda _: 1.0
    fails: Callable[[float], bool] = lambda _: False
    streams: float = STREAMS
    now: float = 0.0
    draws: random.Random = field(default_factory=lambda: random.Random(1))

    def noisy(self, seconds: float) -> float:
        return seconds * self.draws.lognormvariate(0.0, self.noise)


@dataclass
class Line:
    """One decision of a replay."""

    at: float
    tokens: int
    way: str
    reason: str
    wait_s: float


class Replay:
    """Requests arrive, are decided, and teach when their legs end."""

    def __init__(self, world: World, seed: int = 7) -> None:
        self._world = world
        self._model = CostModel(now=lambda: world.now, seed=seed)
        self._number = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._lines: list[Line] = []

    def run(self, until: float) -> list[Line]:
        self._in(0.0, self._arrive)
        while self._events and self._events[0][0] < until:
            self._world.now, _, what = heapq.heappop(self._events)
            what()
        return self._lines

    def _in(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._world.now + seconds, next(self._number), what))

    def _arrive(self) -> None:
        world = self._world
        low, high = world.lengths
        tokens = int(low * (high / low) ** world.draws.random())
        choice = self._model.decide(tokens, world.streams, can_teach=True)
        read_s = world.noisy(STEP_S + tokens * PREFILL_S_PER_TOKEN)
        stall_s = world.streams * tokens * PREFILL_S_PER_TOKEN
        if choice.way == "local":
            self._in(read_s, lambda: self._local(choice, read_s))
            wait_s = read_s + stall_s
        else:
            wire_s = HANDOFF_S_PER_TOKEN * tokens * world.slow(world.now)
            move_s = world.noisy(STEP_S + HANDOFF_FIXED_S + wire_s)
            failed = world.fails(world.now)
            self._in(read_s, lambda: self._prefilled(choice, read_s, move_s, failed=failed))
            # What failed is read again, on decode.
            wait_s = read_s + (FAILS_AFTER_S + read_s + stall_s if failed else move_s)
        self._lines.append(Line(world.now, tokens, choice.way, choice.reason, wait_s))
        self._in(world.draws.expovariate(world.rate), self._arrive)

    def _local(self, choice: WayChoice, read_s: float) -> None:
        self._model.local_prefilled(choice.tokens, read_s)
        if choice.reason == "explore":
            self._model.probe_took(choice, read_s)

    def _prefilled(self, choice: WayChoice, read_s: float, move_s: float, *, failed: bool) -> None:
        self._model.prefilled(choice.tokens, read_s)
        opened = self._model.handoff_begins(choice.tokens)

        def over() -> None:
            self._model.handoff_ends(opened)
            probe = choice.reason == "explore"
            if failed:
                self._model.handoff_failed(read_s + FAILS_AFTER_S)
                if probe:
                    self._model.probe_lost(read_s + FAILS_AFTER_S)
                return
            self._model.handed_over(choice.tokens, move_s)
            if probe:
                self._model.probe_took(choice, read_s + move_s)

        self._in(FAILS_AFTER_S if failed else move_s, over)


def turned(lines: list[Line], way: str, since: float) -> float | None:
    """Seconds after `since` from which on nine of ten decisions that were no probes go a way."""
    chosen = [line for line in lines if line.at >= since and line.reason != "explore"]
    for first in range(len(chosen) - 9):
        ten = chosen[first : first + 10]
        if ten[0].way == way and sum(line.way == way for line in ten) >= 9:  # noqa: PLR2004
            return round(ten[0].at - since, 2)
    return None


def share(lines: list[Line], start: float, end: float, **want: str) -> float:
    inside = [line for line in lines if start <= line.at < end]
    fit = [x for x in inside if all(getattr(x, key) == value for key, value in want.items())]
    return round(len(fit) / max(1, len(inside)), 3)


def story(rate: float, *, fails: bool = False) -> dict[str, Any]:
    """Well for two minutes, then throttled (or failing) for two, then well again."""
    bad, well, end = 120.0, 240.0, 420.0

    def is_bad(now: float) -> bool:
        return bad <= now < well

    world = World(
        rate,
        slow=(lambda now: THROTTLED if is_bad(now) else 1.0) if not fails else (lambda _: 1.0),
        fails=is_bad if fails else (lambda _: False),
    )
    lines = Replay(world).run(end)
    during = [x.wait_s for x in lines if bad <= x.at < well]
    return {
        "requests_per_s": rate,
        "pd_share_before": share(lines, 60, bad, way="pd"),
        "turned_to_local_after_s": turned(lines, "local", bad),
        "pd_share_meanwhile": share(lines, bad + 10, well, way="pd"),
        "turned_back_after_s": turned(lines, "pd", well),
        "pd_share_afterwards": share(lines, well + 60, end, way="pd"),
        "probe_share": share(lines, 60, end, reason="explore"),
        "mean_waiting_s_meanwhile": round(statistics.mean(during), 4),
    }


def hiccup() -> dict[str, Any]:
    """One handoff of a hundred, those that begin in a certain tenth of a second, is slow."""
    world = World(20.0, slow=lambda now: THROTTLED if now % 10 < 0.1 else 1.0)  # noqa: PLR2004
    lines = Replay(world).run(420.0)
    return {
        "requests_per_s": world.rate,
        "pd_share": share(lines, 60, 420, way="pd"),
        "probe_share": share(lines, 60, 420, reason="explore"),
    }


def at_the_border() -> dict[str, Any]:
    """Both ways cost the same, with noise: changes of way in six minutes, over all lengths."""
    slow = (PREFILL_S_PER_TOKEN - HANDOFF_FIXED_S / 2000) / HANDOFF_S_PER_TOKEN
    world = World(20.0, lengths=(1800, 2200), streams=1.0, slow=lambda _: slow)
    lines = [x for x in Replay(world).run(420.0) if x.at >= 60 and x.reason != "explore"]  # noqa: PLR2004
    classes: dict[int, list[str]] = {}
    for line in lines:
        classes.setdefault(size_class(line.tokens), []).append(line.way)
    changes = sum(a != b for ways in classes.values() for a, b in itertools.pairwise(ways))
    return {"requests": len(lines), "minutes": 6, "changes_of_way": changes}


def in_use(seed: int = 3) -> tuple[CostModel, World]:
    """A model that has learned, as it is while requests come."""
    world = World(20.0)
    model = CostModel(now=lambda: world.now, seed=seed)
    for _ in range(400):
        world.now += 0.25
        tokens = world.draws.randint(200, 8000)
        model.prefilled(tokens, world.noisy(STEP_S + tokens * PREFILL_S_PER_TOKEN))
        model.handed_over(tokens, world.noisy(HANDOFF_FIXED_S + tokens * HANDOFF_S_PER_TOKEN))
        model.local_prefilled(tokens, world.noisy(STEP_S + tokens * PREFILL_S_PER_TOKEN))
    return model, world


def timed(rounds: int, count: int) -> dict[str, float]:
    """Median microseconds."""
    model, world = in_use()
    ways = Ways(
        FixedDirectory([], ["http://127.0.0.1:1"]),
        InFlight(),
        CostMetrics(CollectorRegistry()),
        now=lambda: world.now,
        seed=3,
    )
    ways.model = model
    chat = {"messages": [{"role": "user", "content": "How long is this? " * 400}]}
    tick = itertools.count()

    def decide_anew() -> None:
        # As after each measurement: no level is remembered.
        for curve in (model._prefill, model._handoff, model._local):
            curve._levels.clear()
        model.decide(2000, 4.0, can_teach=False)

    def teach(gap_s: float) -> Callable[[], None]:
        def once() -> None:
            world.now += gap_s
            tokens = 500 + next(tick) % 4000
            model.prefilled(tokens, 0.05)
            model.handed_over(tokens, 0.02)

        return once

    cases: dict[str, Callable[[], Any]] = {
        "size_of_a_7_kb_chat": lambda: prompt_size(chat),
        "choose_size_included": lambda: ways.choose(prompt_size(chat), streamed=False),
        "decide": lambda: model.decide(2000, 4.0, can_teach=False),
        "decide_after_a_measurement": decide_anew,
        "learn_in_a_slot": teach(0.0),
        "learn_with_a_new_line": teach(0.25),
    }
    medians = {}
    for name, case in cases.items():
        runs = count if "new_line" not in name else count // 20
        seconds = []
        for _ in range(rounds):
            started = time.perf_counter()
            for _ in range(runs):
                case()
            seconds.append((time.perf_counter() - started) / runs)
        medians[name] = round(statistics.median(seconds) * 1e6, 2)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = {
        "median_us": timed(options.rounds, options.count),
        "throttled": [story(rate) for rate in (1.0, 5.0, 20.0)],
        "failing": [story(rate, fails=True) for rate in (1.0, 5.0, 20.0)],
        "hiccups": hiccup(),
        "border": at_the_border(),
        "python": sys.version.split()[0],
        "machine": platform.machine(),
    }
    write(result, options.json)


if __name__ == "__main__":
    main()
