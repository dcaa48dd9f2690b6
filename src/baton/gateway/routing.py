"""Chooses engines: by how busy they are, and by who has computed the prompt's beginning before.

1. **Load.** Of many engines the less loaded of two that are drawn (power of two choices:
   Mitzenmacher, 2001): nobody walks over a thousand, and gateways that see the same leases do not
   all run to the same engine. One or two gateways compare a few engines all, equal ones in turn.
2. **Prefix.** An engine that is known to hold the prompt's beginning takes the place of that choice
   while it is not too much busier (bounded load: Mirrokni et al., 2016): the more it holds, the
   more it may have to do. Prefill then computes only what it lacks; decode pulls only what it
   lacks, or computes less when it is alone.
3. **Home.** A beginning that nobody is known to hold has two engines where every gateway looks
   first, so that what a gateway does not know of the others' requests costs little.

A choice depends on what is handed in and on the random numbers, so a seed repeats it.
Why it is so, with numbers: docs/decisions/0013.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from baton.gateway.candidates import Candidates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from random import Random

    from baton.gateway.directory import Directory
    from baton.gateway.prefixes import Holder, PrefixIndex, Prompt
    from baton.spec.lease import EngineLease

COMPARED = 16
"""Up to so many engines are all compared."""
FEW_GATEWAYS = 2
"""More than so many would run to the same engine if each compared all: they draw two."""
BOUND_LOAD = 0.25
BOUND_REQUESTS = 4.0
"""For the whole of its prompt held, an engine may be busier than the choice by load by this part of
that one's load, and by so many requests. For a share of the prompt, by that share of both."""
HOME_WORTH = 0.25
"""The share that a home counts as with several gateways. With one it only decides between equals: a
prompt that nobody shares would have waited for nothing."""

Why = Literal["only", "load", "prefix", "home", "spill"]


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine and why it was chosen.

    `why`: `only` one was left; by `load`; by `prefix`; `home` of a prompt that nobody is known to
    hold; `spill`: engines with the prefix were too busy, so by load. `held` is the share of the
    prompt's beginning that it is known to hold, from 0 to 1.
    """

    engine: EngineLease
    why: Why
    held: float = 0.0


def load_of(engine: EngineLease, own: int, own_peak: int = 0) -> float:
    """How busy an engine is, in requests.

    What this gateway has running there is known exactly. The lease is a second or two old and
    holds what every gateway sent, this one included: what it holds beyond the most that this one
    had lately is the others'. A nearly full KV cache (where vLLM begins to preempt) weighs like a
    full batch.

    Args:
        engine: With the load of its lease.
        own: Requests that this gateway has running there.
        own_peak: The most that it had there at once since before the lease was measured.
    """
    load = engine.load
    others = load.running + load.waiting - own_peak
    return own + max(0, others) + (256 if load.kv_usage > 0.95 else 0)  # noqa: PLR2004


def release_takers(directory: Directory) -> Sequence[EngineLease]:
    """Decode engines that may take a release: one that fails its probes as well, or KV is held."""
    return directory.decode_engines() or [
        engine for engine in directory.all_engines() if engine.role == "decode"
    ]


class InFlight:
    """This gateway's own requests on each engine, by `replica_id`."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._peaks: Counter[str] = Counter()
        self._peaks_before: Counter[str] = Counter()

    def begin(self, engine: EngineLease) -> None:
        name = engine.replica_id
        self._counts[name] += 1
        self._peaks[name] = max(self._peaks[name], self._counts[name])

    def end(self, engine: EngineLease) -> None:
        self._counts[engine.replica_id] -= 1
        if self._counts[engine.replica_id] <= 0:
            del self._counts[engine.replica_id]

    def count(self, replica_id: str) -> int:
        return self._counts.get(replica_id, 0)

    def peak(self, replica_id: str) -> int:
        """The most at once since the read of the directory before the last."""
        # A lease is measured up to a second before it is read, and reads are a second apart.
        return max(self._peaks.get(replica_id, 0), self._peaks_before.get(replica_id, 0))

    def leases_read(self) -> None:
        """The directory was read anew: peaks of the read before the last are forgotten."""
        self._peaks_before, self._peaks = self._peaks, self._counts.copy()


class Router:
    """One gateway's choices.

    Args:
        inflight: Its own requests.
        random: Draws the engines that are compared.
        prefixes: What it knows of the engines' caches; None: choices go by load alone.
        gateways: How many share the engines, this one included.
    """

    def __init__(
        self,
        inflight: InFlight,
        random: Random,
        prefixes: PrefixIndex | None = None,
        gateways: int = 1,
    ) -> None:
        self._inflight = inflight
        self._random = random.random
        self._prefixes = prefixes
        self._compared = COMPARED if gateways <= FEW_GATEWAYS else 2
        self._home_worth = HOME_WORTH if gateways > 1 else 0.0
        self._turn = 0
        self._read: object = None

    def pick(
        self,
        engines: Sequence[EngineLease],
        exclude: Collection[str] = (),
        prompt: Prompt | None = None,
    ) -> Choice | None:
        """Choose an engine. It is not counted until `InFlight.begin`.

        Args:
            engines: Those that may be asked now.
            exclude: `replica_id`s that this request has already failed on.
            prompt: What it will read, if its beginning matters.

        Returns:
            None when no engine is left.
        """
        pool = Candidates.of(engines).without(exclude)
        if pool.read is not None and pool.read is not self._read:
            self._read = pool.read
            self._inflight.leases_read()
        if len(pool) <= 1:
            return Choice(pool[0], "only") if pool else None
        by_load = self._by_load(pool)
        if prompt is None or self._prefixes is None:
            return Choice(by_load, "load")
        return self._by_prefix(self._prefixes, pool, by_load, prompt)

    def learn(self, engine: EngineLease, prompt: Prompt | None) -> None:
        """The engine has the KV of this prompt now."""
        if self._prefixes is not None and prompt is not None and prompt.asked:
            self._prefixes.learn(prompt.keys, engine)

    def load(self, engine: EngineLease) -> float:
        """How busy an engine is now, in requests."""
        own = self._inflight
        return load_of(engine, own.count(engine.replica_id), own.peak(engine.replica_id))

    def _by_load(self, pool: Candidates) -> EngineLease:
        count = len(pool)
        if count > self._compared:
            first = int(self._random() * count)
            second = int(self._random() * (count - 1))
            one, other = pool[first], pool[second + (second >= first)]
            return one if self.load(one) <= self.load(other) else other
        self._turn += 1
        loads = [self.load(engine) for engine in pool]
        least = min(loads)
        best = [engine for engine, load in zip(pool, loads, strict=True) if load == least]
        return best[self._turn % len(best)]

    def _by_prefix(
        self, prefixes: PrefixIndex, pool: Candidates, by_load: EngineLease, prompt: Prompt
    ) -> Choice:
        """Who holds the most of the prompt and is within its bound; else home; else by load."""
        keys, base = prompt.keys, self.load(by_load)
        loads: dict[str, float] = {}
        for count, holders in prefixes.holders(keys):
            held = prompt.share(count)
            best, least = None, bound(base, held)
            for engine in _present(pool, holders):
                load = loads.get(engine.replica_id)
                if load is None:
                    load = loads[engine.replica_id] = self.load(engine)
                if load < least or (best is None and load == least):
                    best, least = engine, load
            if best is not None:
                return Choice(best, "prefix", held)
        if loads:
            return Choice(by_load, "spill")
        home = self._home(pool, base, prompt) if keys else None
        return Choice(by_load, "load") if home is None else Choice(home, "home")

    def _home(self, pool: Candidates, base: float, prompt: Prompt) -> EngineLease | None:
        """The first of the prompt's two homes that is within the bound."""
        for place in (prompt.home, prompt.home // len(pool)):
            engine = pool[place % len(pool)]
            if self.load(engine) <= bound(base, self._home_worth):
                return engine
        return None


def _present(pool: Candidates, holders: Iterable[Holder]) -> Iterator[EngineLease]:
    """Those that may be asked now and were not started again since."""
    for replica_id, engine_id in holders:
        engine = pool.by_id.get(replica_id)
        if engine is not None and engine.engine_id == engine_id:
            yield engine


def bound(load: float, held: float) -> float:
    """How busy an engine may be that holds so much of a prompt.

    Args:
        load: Of the engine that load alone would choose, in requests.
        held: The share of the prompt that it holds, from 0 to 1.
    """
    return load * (1 + BOUND_LOAD * held) + BOUND_REQUESTS * held
