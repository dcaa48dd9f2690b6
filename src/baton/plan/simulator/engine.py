"""One engine: continuous batching with chunked prefill, as vLLM schedules it.

Work goes in segments. A segment is either one step that reads prompt tokens beside the running
batch (as many as the token budget leaves), or a leap: as many decode steps as can be taken before
something changes, namely a sequence ends or KV runs out. What arrives in a leap cuts it at the end
of the step under way. When KV runs out, the youngest sequence is preempted and read again later
(vLLM 0.29 `v1/core/sched/scheduler.py`).

Left out: blocks (KV is counted by token), prefix caches, and scheduling beside the GPU.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from baton.plan.simulator.holdings import Holdings

if TYPE_CHECKING:
    from baton.plan.simulator.job import Job
    from baton.plan.simulator.wires import Transfer


class Engine(Holdings):
    """One engine replica."""

    # --- what comes in

    def submit(self, job: Job, now: float) -> None:
        """A prompt to be read."""
        job.placed = self
        self.open += 1
        self.queued_tokens += job.to_read
        late = self.limits.async_scheduling and self._busy
        # In a leap one more step was put together already, and `_cut` leaves it.
        if late and not (self._leap and self._steps_begun(now) < self._steps):
            self.late.append(job)
        else:
            self.waiting.append(job)
        self._poke(now, self.costs.request_s, late=late)

    def take(self, job: Job) -> bool:
        """A prompt that was read elsewhere: whether its KV can come now, or it has to wait."""
        job.placed = self
        self.open += 1
        if self.pending or not self.can_expect(job):
            self.pending.append(job)
            return False
        self.expect(job)
        return True

    def can_expect(self, job: Job) -> bool:
        """Whether there is room and a place."""
        return self.sequences < self.limits.max_seqs and self.fits_now(job)

    def expect(self, job: Job) -> None:
        """Keep room for KV that is on its way."""
        self.incoming[job] = None
        self._other += self._bytes(job)

    def hold(self, held_s: float, now: float) -> None:
        """Answers that are being written stand still so long, after the step under way."""
        if self.running and held_s:
            self._held_s += held_s
            self._poke(now)

    def receive(self, job: Job, now: float, usual_s: float = 0.0, held_s: float = 0.0) -> None:
        """The KV that was expected is here; its way took `usual_s` beside its bytes.

        Answers that are being written stand still `held_s` for it.
        """
        del self.incoming[job]
        self.arrived.append(job)
        if self.running:
            self._held_s += held_s
        self._poke(now, usual_s)

    def keep_waiting(self, transfer: Transfer) -> bool:
        """Whether KV that has arrived has to wait for steps that go on."""
        if self._busy:
            self.unseen[transfer] = None
        return self._busy

    def let_go(self, job: Job, now: float) -> None:
        """KV that was held for a handoff is no longer needed."""
        if job in self.held:
            del self.held[job]
            self._other -= self._bytes(job)
            job.held_by = None
            self._poke(now)

    def _poke(self, now: float, usual_s: float = 0.0, *, late: bool = False) -> None:
        """`usual_s`: what came before, and would have been slower on an engine that sleeps."""
        if not self.up:
            return
        if not self._busy:
            self._plan(now, pause_s=now - self._idle_since, usual_s=usual_s)
        elif self._leap and self._steps > 1:
            self._cut(now, further=int(late))

    def repace(self, now: float) -> None:
        """Another engine of the machine has begun or ended."""
        if self._machine is not None and self._busy:
            self._version += 1
            pace = self._machine.pace(self, reading=bool(self._chunks)) * self._luck
            self._owner.at(self._progress.repace(now, pace), self, self._version)

    def aside(self, work_s: float, what: object, now: float) -> bool:
        """Do work beside the steps; whether it takes its time on a machine that is shared."""
        if self._machine is None:
            return False
        self._machine.send(self, work_s, what, now)
        return True

    def _steps_begun(self, now: float) -> int:
        """How many steps of the leap are over or under way."""
        worked_s, batch = self._progress.worked_s(now), len(self.running)
        return self.costs.steps_within(worked_s, batch, self._context)

    def _cut(self, now: float, further: int = 0) -> None:
        """End the leap with the step that is under way, or so many after it."""
        batch = len(self.running)
        steps = self._steps_begun(now) + further
        if steps < self._steps:
            self._steps = steps
            self._version += 1
            self._progress.work_s = self.costs.decode_s(steps, batch, self._context)
            self._owner.at(self._progress.ends_s(now), self, self._version)

    # --- a segment

    def wake(self, now: float, version: int) -> None:
        """The segment that was planned under this version is over."""
        if version != self._version or not self.up:
            return
        self.busy_s += now - self._since
        batch = len(self.running)
        self._step += self._steps
        self._context_tokens += self._steps * batch
        for job in self._fresh:
            job.first_s = now
        self._fresh, self._leap = [], False
        over = self._finish(now)
        over = self._end_chunks(now) or over
        self._busy = False
        # Before planning: what the owner sends here now takes part in the next step.
        if over:
            self._busy = True
            self._owner.has_room(self, now)
            self._busy = False
        # A neighbour that has begun meanwhile may have set the end of this segment anew.
        self._version += 1
        self._plan(now)
        if not self._busy:
            for transfer in list(self.unseen):
                self._owner.seen(transfer)
        if not self._busy:
            self._idle_since = now
            if self._machine is not None:
                self._machine.turn(self, now, busy=False)

    def _finish(self, now: float) -> bool:
        ends, over = self._ends, False
        while ends and ends[0][0] <= self._step:
            _, _, job, epoch = heapq.heappop(ends)
            if epoch != job.epoch:
                continue
            del self.running[job]
            job.made = job.output
            self._context_tokens -= job.prompt + job.made
            self._context_fixed -= job.fixed_bytes
            self._leave(job)
            self._owner.finished(self, job, now)
            over = True
        return over

    def _leave(self, job: Job) -> None:
        job.epoch += 1
        job.placed = None
        self.open -= 1

    def _end_chunks(self, now: float) -> bool:
        over = False
        for job, took in self._chunks:
            job.read += took
            self.queued_tokens -= took
            if job.read < job.to_read:
                continue
            self.reading.remove(job)
            over = self._was_read(job, now) or over
        self._chunks = []
        return over

    def _was_read(self, job: Job, now: float) -> bool:
        """Reading ends with one sampled token. Whether that frees anything."""
        if self.hands_over and job.output - job.made > 1:
            # Prefill's own token is not the caller's: decode computes it anew.
            self.held[job] = None
            job.held_by = self
            self._leave(job)
            job.prefilled_s = now
            self._owner.prefilled(self, job, now)
            return True
        self._other -= self._bytes(job)
        if job.first_s is None:
            job.prefilled_s = job.first_s = now
        job.made += 1
        if job.made >= job.output:
            self._leave(job)
            self._owner.finished(self, job, now)
            return True
        self._run(job)
        return False

    def _plan(self, now: float, pause_s: float = 0.0, usual_s: float = 0.0) -> None:
        fresh = []
        while self.arrived:
            job = self.arrived.popleft()
            self._other -= self._bytes(job)
            self._run(job)
            if job.first_s is None:
                fresh.append(job)
        self._make_room()
        self._chunks = self._next_chunks(now) if self.waiting or self.reading else []
        came = bool(self.late)
        if came:
            self.waiting.extend(self.late)
            self.late.clear()
            if not self._chunks and not self.running:  # nothing was put together
                self._chunks = self._next_chunks(now)
        batch, context = len(self.running), self._context
        if not self._chunks and not batch:
            return
        self._busy, self._since = True, now
        self._version += 1
        if self._chunks:
            tokens, pairs = 0, 0.0
            for job, take in self._chunks:
                tokens += take
                pairs += take * (job.read + take / 2)
            first = work = self.costs.step_s(tokens, pairs, batch, context)
            self._leap, self._steps = False, 1
        else:
            # How long a first step takes on a machine that is shared is known when it is over.
            alone = self._machine is None or not fresh
            # Who came while this step was already put together takes part in the next one.
            self._leap, self._steps = True, self._leap_steps(batch) if alone and not came else 1
            work = self.costs.decode_s(self._steps, batch, context)
            first = self.costs.decode_s(1, batch, context)
        lead = self.costs.wake.extra_s(pause_s, usual_s + first) if pause_s else 0.0
        lead, self._held_s = lead + self._held_s, 0.0
        if lead:
            lead *= math.exp(self.costs.uneven.reading * self._chance.gauss(0, 1))
        self._begin(now, work, lead, first, [job for job in fresh if job in self.running])

    def _begin(self, now: float, work: float, lead: float, first: float, fresh: list[Job]) -> None:
        machine, uneven = self._machine, self.costs.uneven
        spread = uneven.reading if self._chunks else uneven.writing_of(self._steps)
        pace = self._luck = math.exp(-spread * self._chance.gauss(0, 1)) if spread else 1.0
        lead *= pace  # it has had its own luck
        if machine is None:
            for job in fresh:
                job.first_s = now + (lead + first) / pace
        else:
            self._fresh = fresh
            machine.turn(self, now, busy=True)
            pace *= machine.pace(self, reading=bool(self._chunks))
        self._owner.at(self._progress.begin(now, work, lead, pace), self, self._version)

    def _leap_steps(self, batch: int) -> int:
        ends = self._ends
        while ends[0][3] != ends[0][2].epoch:
            heapq.heappop(ends)
        steps = ends[0][0] - self._step
        growth = self._per_token * batch
        if growth > 0:
            free = self.costs.kv_capacity_bytes - self.kv_used
            # In this order: room may be without end.
            steps = int(min(steps, free / growth))
        return max(steps, 1)

    def _make_room(self) -> None:
        """Preempt the youngest until each running sequence has room for one more token."""
        while self.running:
            growth = self._per_token * len(self.running)
            if self.kv_used + growth <= self.costs.kv_capacity_bytes:
                return
            self._preempt(next(reversed(self.running)))

    def _preempt(self, job: Job) -> None:
        del self.running[job]
        job.made = self._step - job.joined_at
        self._context_tokens -= job.prompt + job.made
        self._context_fixed -= job.fixed_bytes
        job.epoch += 1
        job.to_read, job.read = job.tokens, 0
        job.preempted += 1
        self.preemptions += 1
        self.queued_tokens += job.to_read
        self.waiting.appendleft(job)

    def _next_chunks(self, now: float) -> list[tuple[Job, int]]:
        budget = self.limits.token_budget - len(self.running)
        chunks: list[tuple[Job, int]] = []
        for job in self.reading:
            if budget <= 0:
                return chunks
            take = min(job.to_read - job.read, budget)
            chunks.append((job, take))
            budget -= take
        while budget > 0 and self.waiting and self.sequences < self.limits.max_seqs:
            job = self.waiting[0]
            if not self.fits_now(job):
                break
            self.waiting.popleft()
            self.reading.append(job)
            self._other += self._bytes(job)
            if job.started_s is None:
                job.started_s = now
            take = min(job.to_read - job.read, budget)
            chunks.append((job, take))
            budget -= take
        return chunks

    # --- failure

    def forget(self, job: Job, now: float) -> None:
        """Its other half is gone: what is kept here for it is of no use."""
        if job in self.pending:
            self.pending.remove(job)
        elif job in self.incoming:
            self._other -= self._bytes(job)
            del self.incoming[job]
        else:
            self.let_go(job, now)
            return
        self._leave(job)

    def fail(self, now: float) -> list[Job]:
        """Everything is gone. Who was here, with the tokens that their callers have."""
        lost: list[Job] = []
        if self._busy and self._leap:
            done = self._steps_begun(now) - 1
            self._step += max(done, 0)
        for job in self.running:
            job.made = min(self._step - job.joined_at, job.output - 1)
            if job.first_s is not None and job.first_s > now:
                job.first_s, job.made = None, 0
        queues = (self.running, self.reading, self.waiting, self.late, self.arrived, self.incoming,
                  self.pending, self.held)  # fmt: skip
        for queue in queues:
            lost.extend(queue)
            queue.clear()
        for job in lost:
            job.epoch += 1
            job.placed = job.held_by = None
            job.to_read, job.read = job.tokens, 0
        self._ends, self._chunks, self._fresh = [], [], []
        if self._machine is not None:
            self._machine.turn(self, now, busy=False)
        self._other = self._context_fixed = 0.0
        self._context_tokens = self.open = self.queued_tokens = 0
        self._busy = self.up = False
        self._held_s = 0.0
        self._version += 1
        return lost

    def come_back(self, now: float) -> None:
        """Up again, and empty."""
        self.up = True
        self.started_s = now
