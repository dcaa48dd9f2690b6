"""Tries layouts, cheapest first, until the cheapest of each kind that keeps the promise is known.

For each engine kind the bounds say whether a request alone would do and how many engines there must
be; what could still be cheaper than the best known is simulated with that many, and with more until
it does. Aggregated layouts are tried with several token budgets: a tuned engine without P/D is the
honest baseline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from baton.plan.bounds import (
    UNCOUNTED,
    Bound,
    Promise,
    alone,
    decode_work_s,
    kv_pace,
    largest_batch,
    least_engines,
    prefill_work_s,
)
from baton.plan.layouts import EngineKind, Group, Layout, lay_out
from baton.plan.simulator import Fleet, FleetSettings
from baton.plan.tried import Tried, bound_of, shown_s, story_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from baton.plan.costs import HandoffCost
    from baton.plan.simulator import Outcome
    from baton.plan.traffic import Traffic

BUDGETS = (512, 2048, 8192)
"""`max_num_batched_tokens`: small steps spare running answers, large ones read faster."""
PREFILL_BUDGET = 8192
DECODE_BUDGET = 2048
MAX_SEQS = 256
_TRIES = 14


@dataclass
class Search:
    """One search. `tried` is in the order of trying.

    Args:
        kinds: Engine kinds that hold the model, with the limits of a decode engine.
        handoff: What a handoff takes between two kinds when it is measured; None: as the layout's
            fabric says.
    """

    traffic: Traffic
    promise: Promise
    kinds: Sequence[EngineKind]
    prices: Mapping[str, float] = field(default_factory=dict)
    max_gpus: int = 64
    handoff: HandoffCost | None = None
    on_try: Callable[[str], None] = lambda _: None
    tried: list[Tried] = field(default_factory=list)
    too_many: list[int] = field(default_factory=list)
    """GPUs that the load needs at least, of layouts that need more than `max_gpus`."""
    simulations: int = 0

    def run(self) -> list[Tried]:
        """Everything that was tried."""
        for kind, least in self._aggregated():
            self._grow_aggregated(kind, least)
        for prefill, decode, counts in self._pairs():
            self._grow_pair(prefill, decode, counts)
        return self.tried

    def best(self, *, disaggregated: bool) -> Tried | None:
        """The cheapest that keeps the promise."""
        good = [t for t in self.tried if t.meets and t.disaggregated == disaggregated]
        return min(good, key=self.order, default=None)

    @property
    def priced(self) -> bool:
        """Whether every instance type that may be bought has a price.

        Dollars decide then, and otherwise GPUs that are paid for.
        """
        prices = self.prices
        return all(
            instance.usd_per_hour is not None or instance.name in prices or instance.gpu in prices
            for kind in self.kinds
            for instance in kind.hardware.instances
        )

    def cost(self, layout: Layout) -> tuple[float, int, int]:
        """What layouts are compared by: what is paid, then GPUs that are used."""
        paid = layout.usd_per_hour if self.priced else None
        return (layout.gpus_bought if paid is None else paid, layout.gpus_bought, layout.gpus)

    def nearest(self, among: Sequence[Tried]) -> Tried | None:
        """Of what was timed, what misses the promise by least."""
        timed = [t for t in among if t.ttft_s is not None and t.tpot_s is not None]
        return min(timed, key=self._miss, default=None)

    def _miss(self, tried: Tried) -> float:
        ttft, tpot = tried.ttft_s or math.inf, tried.tpot_s or 0.0
        return max(ttft / self.promise.ttft_s, tpot / self.promise.tpot_s)

    def order(self, tried: Tried) -> tuple[float, float, float, float]:
        """Cheapest first; of equals, the one with most goodput."""
        if tried.layout is None:
            return (math.inf, math.inf, math.inf, 0.0)
        return (*self.cost(tried.layout), -(tried.goodput_rps or 0.0))

    # --- aggregated

    def _aggregated(self) -> list[tuple[EngineKind, int]]:
        """What is worth a simulation, by the least that it can cost."""
        found: list[tuple[tuple[float, int, int], int, EngineKind, int]] = []
        for kind in self.kinds:
            for budget in BUDGETS:
                one = kind.within(budget, MAX_SEQS)
                what = f"aggregated {kind.name}, {budget} tokens a step"
                lonely = alone(kind.costs, kind.costs, self.traffic, self.promise, budget)
                if not self._passes(what, lonely.ttft_s, lonely.tpot_s, disaggregated=False):
                    continue
                work = prefill_work_s(kind.costs, self.traffic, budget) + decode_work_s(
                    kind.costs, one.limits, self.traffic, self.promise.tpot_s
                )
                least = least_engines(work, self.traffic, self.promise)
                layout = self._within(what, (Group("both", one, least),))
                if layout is not None:
                    found.append((self.cost(layout), len(found), one, least))
        return [(kind, least) for _, _, kind, least in sorted(
            found, key=lambda row: row[:2])]  # fmt: skip

    def _grow_aggregated(self, kind: EngineKind, least: int) -> None:
        low, high, count = least - 1, None, least
        for _ in range(_TRIES):
            layout = self._laid_out(Group("both", kind, count))
            if layout is None or layout.gpus > self.max_gpus:
                return
            if self._too_dear(layout, f"{count} {'engine' if count == 1 else 'engines'}"):
                return
            tried, _ = self._simulated(layout)
            if tried.meets:
                high = count
            else:
                low = count
            if high is not None and high - low <= 1:
                return
            if high is None:
                most = self.max_gpus // kind.tp
                count = max(low + 1, min(math.ceil(low * 1.3), most))
            else:
                count = (low + high) // 2

    # --- prefill and decode apart

    def _pairs(self) -> list[tuple[EngineKind, EngineKind, tuple[int, int]]]:
        found: list[
            tuple[tuple[float, int, int], int, EngineKind, EngineKind, tuple[int, int]]
        ] = []
        for reader in self.kinds:
            prefill = reader.apart().within(PREFILL_BUDGET, MAX_SEQS)
            for decode in self._decoders():
                name = prefill.name if prefill.name == decode.name else (
                    f"{prefill.name} + {decode.name}")  # fmt: skip
                what = f"P/D {name}"
                lonely = alone(prefill.costs, decode.costs, self.traffic, self.promise,
                               PREFILL_BUDGET)  # fmt: skip
                # A step of decode belongs to the first token; the KV's way is looked at below.
                first_s = lonely.ttft_s + lonely.tpot_s
                if not self._passes(what, first_s, lonely.tpot_s, disaggregated=True):
                    continue
                counts = self._least_pair(prefill, decode)
                groups = Group("prefill", prefill, counts[0]), Group("decode", decode, counts[1])
                layout = self._within(what, groups, disaggregated=True)
                if layout is None or not self._pair_passes(what, prefill, decode, layout):
                    continue
                found.append((self.cost(layout), len(found), prefill, decode, counts))
        return [(p, d, counts) for _, _, p, d, counts in sorted(found, key=lambda row: row[:2])]

    def _decoders(self) -> list[EngineKind]:
        """Decode engines take as many sequences as keep TPOT; others wait for a place."""
        found = []
        for kind in (one.apart() for one in self.kinds):
            limits = kind.within(DECODE_BUDGET, MAX_SEQS).limits
            batch = largest_batch(kind.costs, limits, self.traffic, self.promise.tpot_s)
            found.append(kind.within(DECODE_BUDGET, max(batch, 1)))
        return found

    def _least_pair(self, prefill: EngineKind, decode: EngineKind) -> tuple[int, int]:
        reading = prefill_work_s(prefill.costs, self.traffic, prefill.limits.token_budget)
        writing = decode_work_s(decode.costs, decode.limits, self.traffic, self.promise.tpot_s)
        traffic, promise = self.traffic, self.promise
        return least_engines(reading, traffic, promise), least_engines(writing, traffic, promise)

    def _pair_passes(
        self, what: str, prefill: EngineKind, decode: EngineKind, layout: Layout
    ) -> bool:
        handoff = self._handoff(layout)
        budget = prefill.limits.token_budget
        with_kv = alone(prefill.costs, decode.costs, self.traffic, self.promise, budget, handoff)
        without = alone(prefill.costs, decode.costs, self.traffic, self.promise, budget)
        if handoff.bytes_per_s <= 0:
            why = "how KV would get from one engine to the other is unknown, or it never would"
            self._refuse(what, "fabric", why, disaggregated=True)
            return False
        if with_kv.ttft_s > self.promise.ttft_s:
            moved = with_kv.ttft_s - without.ttft_s - with_kv.tpot_s
            pace = kv_pace(prefill.costs, self.traffic, budget)
            why = (
                f"moving a prompt's KV takes {shown_s(moved)} of {shown_s(with_kv.ttft_s)} "
                f"at {handoff.bytes_per_s / 1e9:.3g} GB/s; prefill makes {pace / 1e9:.3g} GB/s"
            )
            self._refuse(what, "fabric", why, with_kv.ttft_s, with_kv.tpot_s, disaggregated=True)
            return False
        return True

    def _handoff(self, layout: Layout) -> HandoffCost:
        if self.handoff is not None:
            return self.handoff
        pool = layout.pools()[0]
        nodes = {node for places in layout.places for node, _ in places}
        return pool.link if len(nodes) == 1 else pool.network

    def _grow_pair(self, prefill: EngineKind, decode: EngineKind, counts: tuple[int, int]) -> None:
        readers, writers = counts
        for _ in range(_TRIES):
            layout = self._laid_out(
                Group("prefill", prefill, readers), Group("decode", decode, writers)
            )
            if layout is None or layout.gpus > self.max_gpus:
                return
            if self._too_dear(layout, layout.short):
                return
            tried, outcome = self._simulated(layout)
            if tried.meets:
                self._trim(prefill, decode, readers, writers)
                return
            since = self.traffic.warm_up_s
            slow_answers = (tried.tpot_s or math.inf) > self.promise.tpot_s
            waits_for_decode = outcome.mean("handoff_s", since) - self._handoff(layout).seconds(
                prefill.costs.kv.of(round(self.traffic.mean_prompt))
            )
            if slow_answers or waits_for_decode > outcome.mean("queue_s", since):
                writers += max(1, writers // 4)
            else:
                readers += max(1, readers // 4)

    def _trim(self, prefill: EngineKind, decode: EngineKind, readers: int, writers: int) -> None:
        """Growth goes in leaps: what is too many is taken away again, one by one."""
        least = self._least_pair(prefill, decode)
        for _ in range(_TRIES):
            for fewer in ((readers - 1, writers), (readers, writers - 1)):
                if fewer[0] < least[0] or fewer[1] < least[1]:
                    continue
                layout = self._laid_out(
                    Group("prefill", prefill, fewer[0]), Group("decode", decode, fewer[1])
                )
                known = layout is None or any(t.name == layout.name for t in self.tried)
                if layout is not None and not known and self._simulated(layout)[0].meets:
                    readers, writers = fewer
                    break
            else:
                return

    # --- both

    def _passes(self, what: str, ttft_s: float, tpot_s: float, *, disaggregated: bool) -> bool:
        """Whether a request that is alone keeps the promise."""
        promise = self.promise
        if ttft_s > promise.ttft_s:
            why = (f"the first token takes {shown_s(ttft_s)} with nobody else there, "
                   f"{shown_s(ttft_s - promise.ttft_s)} too long")  # fmt: skip
            self._refuse(what, "compute", why, ttft_s, tpot_s, disaggregated=disaggregated)
            return False
        if tpot_s > promise.tpot_s:
            why = (f"a step of one sequence takes {shown_s(tpot_s)}, "
                   f"{shown_s(tpot_s - promise.tpot_s)} too long")  # fmt: skip
            self._refuse(what, "bandwidth", why, ttft_s, tpot_s, disaggregated=disaggregated)
            return False
        return True

    def _refuse(
        self, what: str, bound: Bound, why: str, ttft_s: float | None = None,
        tpot_s: float | None = None, *, disaggregated: bool, layout: Layout | None = None,
    ) -> None:  # fmt: skip
        self.tried.append(
            Tried(layout, what, disaggregated, meets=False, bound=bound, why=why,
                  ttft_s=ttft_s, tpot_s=tpot_s,
                  usd_per_million_tokens=self._usd(layout) if layout else None)
        )  # fmt: skip

    def _within(
        self, what: str, groups: tuple[Group, ...], *, disaggregated: bool = False
    ) -> Layout | None:
        """The layout of the least engines, if it can be bought and is not too many GPUs."""
        gpus = sum(group.gpus for group in groups)
        if gpus > self.max_gpus:
            self.too_many.append(gpus)
            many = f"{gpus:,}" if gpus < UNCOUNTED else "more"
            why = f"the load alone needs {many} GPUs, and --max-gpus is {self.max_gpus}"
            self._refuse(what, "queueing", why, disaggregated=disaggregated)
            return None
        layout = self._laid_out(*groups)
        if layout is None:
            wide = [g.kind for g in groups if not any(
                i.gpus >= g.kind.tp for i in g.kind.hardware.instances)]  # fmt: skip
            why = (
                f"no instance has the GPUs of one engine: {wide[0].name}" if wide else
                "it takes more than one instance, and none of this kind has EFA between them"
            )  # fmt: skip
            self._refuse(what, "fabric", why, disaggregated=disaggregated)
        return layout

    def _laid_out(self, *groups: Group) -> Layout | None:
        return lay_out(groups, self.prices, by_price=self.priced)

    def _too_dear(self, layout: Layout, least: str) -> bool:
        """Whether it could not be cheaper than the best of its kind."""
        best = self.best(disaggregated=layout.disaggregated)
        if best is None or best.layout is None or self.cost(layout) < self.cost(best.layout):
            return False
        # The same engines with another budget may still be better at the same cost: not tried.
        why = f"it takes {least} at least, which cost no less than {best.name}"
        self._refuse(layout.name, "cost", why, disaggregated=layout.disaggregated, layout=layout)
        return True

    def _simulated(self, layout: Layout) -> tuple[Tried, Outcome]:
        self.simulations += 1
        self.on_try(layout.name)
        pools = layout.pools()
        if self.handoff is not None:
            pools = [
                replace(pool, link=self.handoff, network=self.handoff,
                        nic_bytes_per_s=self.handoff.bytes_per_s)
                for pool in pools
            ]  # fmt: skip
        outcome = Fleet(pools, FleetSettings()).play(self.traffic.requests)
        since = self.traffic.warm_up_s
        promise = self.promise
        ttft = outcome.ttft(promise.percentile, since)
        tpot = outcome.tpot(promise.percentile, since)
        meets = ttft <= promise.ttft_s and tpot <= promise.tpot_s
        tried = Tried(
            layout=layout,
            name=layout.name,
            disaggregated=layout.disaggregated,
            meets=meets,
            bound="none" if meets else bound_of(outcome),
            why=story_of(outcome, ttft, tpot, promise),
            ttft_s=ttft,
            tpot_s=tpot,
            goodput_rps=outcome.goodput(promise.ttft_s, promise.tpot_s, since),
            usd_per_million_tokens=self._usd(layout),
            simulated=True,
        )
        self.tried.append(tried)
        return tried, outcome

    def _usd(self, layout: Layout) -> float | None:
        """Dollars a million tokens, of prompts and answers together, at the traffic's own rate."""
        if layout.usd_per_hour is None:
            return None
        tokens = (self.traffic.mean_prompt + self.traffic.mean_output) * self.traffic.rate_rps
        return layout.usd_per_hour / (tokens * 3600 / 1e6)
