"""A model of prefill pools: queues and prefix caches, with the gateway's own router before them.

An engine computes one prompt after the other at a fixed rate and keeps an LRU cache of segments.
Leases are measured every second and read half a second later. There is no vLLM in it: read the
differences between policies, not the times. `routing.py` runs it.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.gateway.candidates import Candidates
from baton.gateway.prefixes import PrefixIndex, Prompt
from baton.gateway.routing import Choice, InFlight, Router
from baton.spec.lease import EngineLease, EngineLoad

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BYTES_PER_TOKEN = 4
TOKENS_PER_S = 20_000.0
STEP_S = 0.005
LEASE_EVERY_S = 1.0
LEASE_LATE_S = 0.5


def lease(name: int, running: int = 0, waiting: int = 0) -> EngineLease:
    return EngineLease(
        replica_id=f"e{name}",
        role="prefill",
        url=f"http://e{name}",
        engine_id=f"id{name}",
        model_id="m",
        load=EngineLoad(running=running, waiting=waiting),
    )


def chat(system: str, question: str) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
    }


@dataclass
class Ask:
    """A prompt in segments, each named by all before it, with its tokens; and as a body."""

    segments: list[tuple[Any, int]]
    body: dict[str, Any]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.segments)


def text_of(name: object, tokens: int) -> str:
    word = f"{name} "
    return (word * (tokens * BYTES_PER_TOKEN // len(word) + 1))[: tokens * BYTES_PER_TOKEN]


def shared(draw: random.Random, count: int, prefixes: int = 64) -> Iterator[Ask]:
    """System prompts of 500 to 4,000 tokens, popular by Zipf; a question of 50 to 500 behind."""
    lengths = [draw.randint(500, 4000) for _ in range(prefixes)]
    texts = [text_of(f"s{n}", length) for n, length in enumerate(lengths)]
    weights = [1 / (n + 1) for n in range(prefixes)]
    for number in range(count):
        which = draw.choices(range(prefixes), weights)[0]
        asked = draw.randint(50, 500)
        yield Ask(
            [(("s", which), lengths[which]), (("u", number), asked)],
            chat(texts[which], text_of(f"q{number}", asked)),
        )


def short_share(draw: random.Random, count: int) -> Iterator[Ask]:
    """As `shared`, but the prefix is the small part: a detour for it is worth little."""
    lengths = [draw.randint(300, 600) for _ in range(64)]
    texts = [text_of(f"s{n}", length) for n, length in enumerate(lengths)]
    for number in range(count):
        which, asked = draw.randrange(64), draw.randint(1000, 6000)
        yield Ask(
            [(("s", which), lengths[which]), (("u", number), asked)],
            chat(texts[which], text_of(f"q{number}", asked)),
        )


def nothing_shared(draw: random.Random, count: int) -> Iterator[Ask]:
    """Prompts of 400 to 4,000 tokens that have nothing in common."""
    for number in range(count):
        tokens = draw.randint(400, 4000)
        yield Ask([(number, tokens)], chat(text_of(f"q{number}", tokens), "?"))


def turns(draw: random.Random, count: int, live: int = 48) -> Iterator[Ask]:
    """Conversations of 2 to 10 turns, 48 at once, behind one of four system prompts."""
    systems = [("system " + text_of(f"s{n}", 800), 800) for n in range(4)]
    open_: list[list[Any]] = []
    names = 0
    for _ in range(count):
        if len(open_) < live:
            system = draw.randrange(4)
            text, tokens = systems[system]
            messages = [{"role": "system", "content": text}]
            open_.append([names, draw.randint(2, 10), [(("s", system), tokens)], messages])
            names += 1
        talk = draw.choice(open_)
        name, left, segments, messages = talk
        for role, low, high in (("assistant", 100, 400), ("user", 30, 300)):
            if role == "assistant" and len(messages) == 1:
                continue
            tokens = draw.randint(low, high)
            at = len(segments)
            segments.append(((name, at), tokens))
            messages.append({"role": role, "content": text_of(f"c{name}.{at}", tokens)})
        yield Ask(list(segments), {"model": "m", "messages": list(messages)})
        talk[1] = left - 1
        if talk[1] == 0:
            open_.remove(talk)


LOADS = {
    "shared_prefix": shared,
    "conversations": turns,
    "short_share": short_share,
    "nothing_shared": nothing_shared,
}


@dataclass
class Engine:
    """One prompt at a time, and a cache of segments."""

    capacity: int
    tokens_per_s: float = TOKENS_PER_S
    cache: OrderedDict[Any, int] = field(default_factory=OrderedDict)
    cached: int = 0
    queue: deque[Any] = field(default_factory=deque)
    busy_s: float = 0.0
    running: Any = None

    def begin(self, ask: Ask) -> tuple[float, int]:
        """Seconds it takes, and tokens that were in the cache."""
        hit = 0
        for name, tokens in ask.segments:
            if name not in self.cache:
                break
            hit += tokens
        for name, tokens in reversed(ask.segments):
            if name not in self.cache:
                self.cached += tokens
            self.cache[name] = tokens
            self.cache.move_to_end(name)
        while self.cached > self.capacity:
            self.cached -= self.cache.popitem(last=False)[1]
        took = STEP_S + (ask.tokens - hit) / self.tokens_per_s
        self.busy_s += took
        return took, hit


class RoundRobin:
    """The policy to compare with."""

    def __init__(self) -> None:
        self.turn = 0

    def pick(self, engines: Candidates, *_: object) -> Choice:
        self.turn += 1
        return Choice(engines[self.turn % len(engines)], "load")

    def learn(self, *_: object) -> None:
        pass


def gateway(
    policy: str, seed: int, gateways: int, compared: int | None
) -> tuple[InFlight, RoundRobin | Router]:
    inflight = InFlight()
    if policy == "round_robin":
        return inflight, RoundRobin()
    index = PrefixIndex() if policy == "prefix" else None
    router = Router(inflight, random.Random(seed), index, gateways)
    if compared is not None:
        router._compared = compared
    return inflight, router


class Pool:
    """Engines, the gateways before them, and a clock.

    Args:
        engines: Each with its own cache and pace.
        doors: Each gateway's counts and router; arrivals go to any of them.
        draw: Chooses the gateway of each request.
    """

    def __init__(
        self, engines: list[Engine], doors: Sequence[tuple[InFlight, Any]], draw: random.Random
    ) -> None:
        self.engines, self.doors, self._draw = engines, doors, draw
        self.now = 0.0
        self.hits = self.tokens = 0
        self.waits: list[float] = []
        self._events: list[tuple[float, int, str, Any]] = []
        self._number = 0
        self._last = 0.0
        self._view = Candidates.of([lease(n) for n in range(len(engines))], read=object())

    def at(self, when: float, what: str, value: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what, value))

    def run(self, asks: Sequence[Ask], rate: float) -> None:
        """So many requests a second, until all are answered."""
        for ask in asks:
            self._last += self._draw.expovariate(rate)
            self.at(self._last, "arrive", ask)
        self.at(0.0, "measure", None)
        while self._events:
            self.now, _, what, value = heapq.heappop(self._events)
            getattr(self, f"_{what}")(value)

    def _arrive(self, ask: Ask) -> None:
        inflight, router = self.doors[self._draw.randrange(len(self.doors))]
        prompt = Prompt(ask.body)
        engine = router.pick(self._view, (), prompt).engine
        inflight.begin(engine)
        index = int(engine.replica_id[1:])
        self.engines[index].queue.append((ask, prompt, engine, inflight, router, self.now))
        self._start(index)

    def _start(self, index: int) -> None:
        engine = self.engines[index]
        if engine.running is None and engine.queue:
            engine.running = engine.queue.popleft()
            ask = engine.running[0]
            took, hit = engine.begin(ask)
            self.hits += hit
            self.tokens += ask.tokens
            self.at(self.now + took, "end", index)

    def _end(self, index: int) -> None:
        _, prompt, engine, inflight, router, since = self.engines[index].running
        self.engines[index].running = None
        inflight.end(engine)
        router.learn(engine, prompt)
        self.waits.append(self.now - since)
        self._start(index)

    def _measure(self, _: None) -> None:
        leases = [
            lease(n, int(engine.running is not None), len(engine.queue))
            for n, engine in enumerate(self.engines)
        ]
        self.at(self.now + LEASE_LATE_S, "read", leases)
        if self.now < self._last:
            self.at(self.now + LEASE_EVERY_S, "measure", None)

    def _read(self, leases: list[EngineLease]) -> None:
        self._view = Candidates.of(leases, read=object())


def simulate(
    policy: str,
    seed: int,
    *,
    load: str = "shared_prefix",
    engines: int = 8,
    slow: int = 0,
    gateways: int = 1,
    requests: int = 1500,
    utilisation: float = 0.7,
    cache_tokens: int = 30_000,
    compared: int | None = None,
) -> dict[str, float]:
    """One run.

    Args:
        policy: `round_robin`, `load` or `prefix`.
        seed: Of the load, the arrivals and the routers.
        load: One of `LOADS`.
        engines: In the pool.
        slow: So many of them are half as fast.
        gateways: Before the pool.
        requests: In all.
        utilisation: What the pool would have if no cache ever hit.
        cache_tokens: Of each engine.
        compared: Up to so many engines are all compared; None: as the router does.
    """
    draw = random.Random(seed)
    asks = list(LOADS[load](draw, requests))
    work_s = statistics.mean(STEP_S + ask.tokens / TOKENS_PER_S for ask in asks)
    pool = Pool(
        [Engine(cache_tokens, TOKENS_PER_S / (1 + (n < slow))) for n in range(engines)],
        [gateway(policy, seed * 100 + n, gateways, compared) for n in range(gateways)],
        draw,
    )
    pool.run(asks, utilisation * engines / work_s)
    busy, waits = [engine.busy_s for engine in pool.engines], sorted(pool.waits)
    return {
        "hit_rate": pool.hits / pool.tokens,
        "busiest_to_mean": max(busy) / statistics.mean(busy),
        "computing_s": sum(busy),
        "ttft_mean_s": statistics.mean(waits),
        "ttft_p99_s": waits[int(len(waits) * 0.99)],
    }


def median_of(rounds: int, policy: str, **how: Any) -> dict[str, float]:
    """Medians over runs with other seeds."""
    runs = [simulate(policy, seed, **how) for seed in range(1, rounds + 1)]
    return {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]}
