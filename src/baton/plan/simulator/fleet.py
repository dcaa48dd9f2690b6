"""The fleet: who gets a request, how KV is handed over, what fails, and how pools grow and shrink.

A request waits at the gateway while as many are open as admission lets in, then goes to the engine
with the least to do. With one pool that engine does both phases. With two, decode is chosen when
prefill has ended, and room is kept there before KV moves; prefill holds it until it has moved.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from baton.plan.simulator.engine import Engine
from baton.plan.simulator.job import Job
from baton.plan.simulator.machine import Errand, Machine
from baton.plan.simulator.outcome import Outcome
from baton.plan.simulator.scaling import wanted
from baton.plan.simulator.settings import Failure, FleetSettings
from baton.plan.simulator.wires import Transfer, Wire, Wires

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.plan.simulator.job import Request
    from baton.plan.simulator.settings import Pool, Role

_ARRIVE, _ENGINE, _TRANSFER, _BEGIN, _FAIL, _BACK, _SCALE, _SEEN, _COME, _ERRAND = range(10)


@dataclass
class _State:
    now: float = 0.0
    open: int = 0
    ended: int = 0
    order: int = 0
    waiting: deque[Job] = field(default_factory=deque)
    homeless: deque[tuple[Job, Engine]] = field(default_factory=deque)


class Fleet:
    """One run. Use it once: `Fleet(pools, settings).play(trace)`."""

    def __init__(self, pools: Sequence[Pool], settings: FleetSettings | None = None) -> None:
        self._settings = settings or FleetSettings()
        self._events: list[tuple[float, int, int, object, int]] = []
        self._state = _State()
        self._wires = Wires(self)
        self._moving: dict[Job, Transfer] = {}
        self._pools = {pool.role: pool for pool in pools}
        self._engines: dict[Role, list[Engine]] = {}
        wires: dict[int, Wire] = {}
        self._machines: dict[int, Machine] = {}
        for pool in pools:
            self._engines[pool.role] = []
            for index, node in enumerate(pool.nodes):
                nic = Wire(pool.nic_bytes_per_s)
                if pool.nics:
                    nic = wires.setdefault(pool.nics[index], nic)
                self._engines[pool.role].append(self._engine(pool, index, node, nic))
        self._entry: Role = "both" if "both" in self._pools else "prefill"
        self._last: Role = "both" if "both" in self._pools else "decode"
        self._jobs: list[Job] = []
        self._following = 0
        self._gone_s = dict.fromkeys(self._pools, 0.0)

    def _engine(self, pool: Pool, index: int, node: int, nic: Wire) -> Engine:
        return Engine(
            f"{pool.role}-{index}",
            pool.costs,
            pool.limits,
            self,
            hands_over=pool.role == "prefill",
            node=node,
            nic=nic,
            link=Wire(pool.link.bytes_per_s),
            machine=self._machines.setdefault(node, Machine(self)) if pool.costs.beside else None,
            awake=self._settings.awake,
            seed=self._settings.seed,
        )

    # --- the calendar

    def _push(self, when: float, kind: int, what: object, version: int = 0) -> None:
        self._state.order += 1
        heapq.heappush(self._events, (when, self._state.order, kind, what, version))

    def at(self, when: float, engine: Engine, version: int) -> None:
        """An engine's segment ends then."""
        self._push(when, _ENGINE, engine, version)

    def transfer_at(self, when: float, transfer: Transfer, version: int) -> None:
        """A transfer ends then, at its present pace."""
        self._push(when, _TRANSFER, transfer, version)

    def errand_at(self, when: float, errand: Errand, version: int) -> None:
        """Work beside steps ends then, at its present pace."""
        self._push(when, _ERRAND, errand, version)

    def play(self, trace: Sequence[Request]) -> Outcome:
        """Play a trace to its end: every request has ended once, in one way."""
        if any(a.arrival_s > b.arrival_s for a, b in itertools.pairwise(trace)):
            raise ValueError("a trace is in order of arrival")
        self._jobs = [Job(ident, request) for ident, request in enumerate(trace)]
        self._open_calendar()
        state, events = self._state, self._events
        shared = bool(self._pools[self._entry].costs.beside)
        while events and state.ended < len(self._jobs):
            state.now, _, kind, what, version = heapq.heappop(events)
            if kind == _ENGINE:
                what.wake(state.now, version)  # type: ignore[attr-defined]
            elif kind == _ARRIVE:
                if not shared:
                    self._expect_next()
                self._arrive(what)  # type: ignore[arg-type]
            elif kind == _COME:
                self._expect_next()
                self._come(what)  # type: ignore[arg-type]
            else:
                self._other_event(kind, what, version)
                if kind == _SCALE and not self._can_go_on():
                    break
        for job in self._jobs:
            if job.end is None:
                job.end = "lost"
        return Outcome.of(self._jobs, self._engines, state.now, self._gone_s)

    def _open_calendar(self) -> None:
        for failure in self._settings.failures:
            self._push(failure.at_s, _FAIL, failure)
        for role, pool in self._pools.items():
            if pool.scaling is not None:
                self._push(pool.scaling.interval_s, _SCALE, role)
        self._expect_next()

    def _expect_next(self) -> None:
        """One arrival at a time is in the calendar."""
        if self._following < len(self._jobs):
            job = self._jobs[self._following]
            # What a request takes beside its steps comes before them.
            costs = self._pools[self._entry].costs
            if costs.beside:
                self._push(job.arrival_s, _COME, job)
            else:
                self._push(job.arrival_s + costs.request_s, _ARRIVE, job)
            self._following += 1

    def _can_go_on(self) -> bool:
        """Whether anything but the next look at the pools is still to come."""
        return any(kind != _SCALE for _, _, kind, _, _ in self._events)

    def _other_event(self, kind: int, what: object, version: int) -> None:
        if isinstance(what, (Errand, Transfer)):
            if kind == _SEEN or what.version == version:
                self._go_on(kind, what)
        elif isinstance(what, Failure):
            engine = self._engines[what.role][what.index]
            self._fail(engine) if kind == _FAIL else engine.come_back(self._state.now)
            if kind == _FAIL:
                self._push(self._state.now + what.down_s, _BACK, what)
            else:
                self._let_in()
        elif kind == _BACK and isinstance(what, Engine):
            what.come_back(self._state.now)
            self._let_in()
        elif kind == _SCALE:
            self._scale(what)  # type: ignore[arg-type]

    def _go_on(self, kind: int, what: Errand | Transfer) -> None:
        if isinstance(what, Errand):
            self._end_errand(what)
        elif kind == _SEEN:
            self.seen(what)
        elif kind == _BEGIN:
            self._wires.begin(what, self._state.now)
        else:
            self._moved(what)

    # --- the way of a request

    def _come(self, job: Job) -> None:
        """On a machine that engines share, what is busy slows a request's way to its engine."""
        engine, beside_s = self._least(self._entry), self._pools[self._entry].costs.request_s
        if engine is None or not engine.aside(beside_s, job, self._state.now):
            self._push(self._state.now + beside_s, _ARRIVE, job)

    def _end_errand(self, errand: Errand) -> None:
        what, now = errand.what, self._state.now
        self._machines[errand.engine.node].end(errand, now)
        if not isinstance(what, Transfer):
            self._arrive(what)  # type: ignore[arg-type]
        elif not what.version:
            self._wires.begin(what, now)

    def _arrive(self, job: Job) -> None:
        total = job.prompt + job.output
        for role in (self._entry, self._last):
            costs = self._pools[role].costs
            tokens = total if role == self._last else job.prompt
            if not costs.fits(tokens):
                self._end(job, "refused")
                return
        self._state.waiting.append(job)
        self._let_in()

    def _let_in(self) -> None:
        waiting, settings = self._state.waiting, self._settings
        while self._state.homeless and self._usable(self._last):
            job, source = self._state.homeless.popleft()
            if job.held_by is source:
                self._to_decode(job, source)
        while waiting:
            last = sum(engine.up and not engine.draining for engine in self._engines[self._last])
            if self._state.open >= settings.max_open_per_engine * last:
                return
            engine = self._least(self._entry)
            if engine is None:
                return
            job = waiting.popleft()
            self._state.open += 1
            job.fixed_bytes = engine.costs.kv.fixed(job.prompt + job.output)
            engine.submit(job, self._state.now)

    def _usable(self, role: Role) -> list[Engine]:
        return [e for e in self._engines[role] if e.up and not e.draining]

    def _least(self, role: Role) -> Engine | None:
        best, least = None, float("inf")
        for engine in self._engines[role]:
            if not engine.up or engine.draining:
                continue
            load = engine.queued_tokens if engine.hands_over else engine.open
            if load < least:
                best, least = engine, load
        return best

    def prefilled(self, engine: Engine, job: Job, now: float) -> None:
        """Prefill has ended: on to decode."""
        if self._settings.first_token_early and job.first_s is None:
            job.first_s = now
        self._to_decode(job, engine)

    def _to_decode(self, job: Job, source: Engine) -> None:
        goal = self._least("decode")
        if goal is None:
            self._state.homeless.append((job, source))
        elif goal.take(job):
            self._move(job, source, goal)

    def _move(self, job: Job, source: Engine, goal: Engine) -> None:
        near = source.node == goal.node
        cost = self._pools["prefill"].link if near else self._pools["prefill"].network
        wires = (source.link, goal.link) if near else (source.nic, goal.nic)
        size = source.costs.kv.of(job.tokens)
        before_s = cost.held_before_s(size)
        goal.hold(before_s, self._state.now)
        held_s = cost.held_s(size) - before_s
        transfer = Transfer(job, source, goal, wires, size, fixed_s=cost.fixed_s,
                            waits_s=cost.waits_s(size), held_s=held_s)  # fmt: skip
        self._moving[job] = transfer
        if not goal.aside(cost.fixed_s, transfer, self._state.now):
            self._push(self._state.now + cost.fixed_s, _BEGIN, transfer)

    def _moved(self, transfer: Transfer) -> None:
        self._wires.end(transfer, self._state.now)
        if transfer.waits_s and transfer.goal.keep_waiting(transfer):
            self._push(self._state.now + transfer.waits_s, _SEEN, transfer)
        else:
            self.seen(transfer)

    def seen(self, transfer: Transfer) -> None:
        """KV has arrived, and its decode engine knows it."""
        now, job = self._state.now, transfer.job
        if self._moving.get(job) is not transfer:
            return  # it was seen already, or an engine died
        transfer.goal.unseen.pop(transfer, None)
        del self._moving[job]
        job.transferred_s = now
        transfer.source.let_go(job, now)
        transfer.goal.receive(job, now, transfer.fixed_s, transfer.held_s)

    def finished(self, engine: Engine, job: Job, now: float) -> None:  # noqa: ARG002
        """An answer is whole; its place at the gateway is free."""
        job.end_s = now
        self._state.open -= 1
        self._end(job, "finished")

    def _end(self, job: Job, how: Literal["finished", "refused"]) -> None:
        job.end = how
        self._state.ended += 1

    def has_room(self, engine: Engine, now: float) -> None:
        """Places or KV were freed: whoever waits for them goes on."""
        while engine.pending and engine.can_expect(engine.pending[0]):
            job = engine.pending.popleft()
            source = job.held_by
            if source is not None:
                engine.expect(job)
                self._move(job, source, engine)
        if self._state.waiting:
            self._let_in()
        if engine.draining and not engine.open and not engine.held and engine.up:
            self._retire(engine, now)

    # --- failures and scaling

    def _fail(self, engine: Engine) -> None:
        now = self._state.now
        lost = engine.fail(now)
        for job, transfer in list(self._moving.items()):
            if engine in (transfer.source, transfer.goal):
                self._wires.end(transfer, now)
                del self._moving[job]
                transfer.goal.unseen.pop(transfer, None)
                other = transfer.goal if transfer.source is engine else transfer.source
                self._forget(other, job)
        for job in lost:
            # KV that prefill holds for a decode engine that died, or the other way round.
            for role in self._engines:
                for other in self._engines[role]:
                    self._forget(other, job)
        again = sorted(set(lost), key=lambda job: job.ident)
        self._state.open -= len(again)
        self._state.waiting.extendleft(reversed(again))
        for job in again:
            job.held_by = job.placed = None
            job.to_read, job.read = job.tokens, 0
        # What was kept for the lost is free: nothing else would tell those that wait for it.
        for engines in self._engines.values():
            for other in engines:
                if other.up:
                    self.has_room(other, now)
        self._let_in()

    def _forget(self, engine: Engine, job: Job) -> None:
        engine.forget(job, self._state.now)

    def _scale(self, role: Role) -> None:
        pool, now = self._pools[role], self._state.now
        scaling = pool.scaling
        if scaling is None:
            return
        engines = self._engines[role]
        # `up` and not draining serve; those that are starting count as wanted already.
        live = [e for e in engines if not e.draining]
        goal = wanted(scaling, role, live, self._settings.ttft_s, self._settings.tpot_s)
        for _ in range(goal - len(live)):
            node = max(e.node for group in self._engines.values() for e in group) + 1
            engine = self._engine(pool, len(engines), node, Wire(pool.nic_bytes_per_s))
            engine.up = False
            engine.started_s = now
            engines.append(engine)
            self._push(now + scaling.start_s, _BACK, engine)
        ready = [e for e in live if e.up]
        for engine in sorted(ready, key=lambda e: e.open)[: max(len(ready) - goal, 0)]:
            engine.draining = True
            if not engine.open and not engine.held:
                self._retire(engine, now)
        self._push(now + scaling.interval_s, _SCALE, role)

    def _retire(self, engine: Engine, now: float) -> None:
        for role, engines in self._engines.items():
            if engine in engines:
                engine.up = False
                self._gone_s[role] += now - engine.started_s
