"""What an engine holds: its requests by where they are, and the KV that they take.

KV is counted by token: what runs as a sum (tokens of all sequences, which grow with each step),
everything else (read, reserved, held for a handoff) as bytes.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from typing import TYPE_CHECKING

from baton.plan.simulator.machine import Progress

if TYPE_CHECKING:
    from baton.plan.costs import StepCosts
    from baton.plan.simulator.job import Job
    from baton.plan.simulator.machine import Machine
    from baton.plan.simulator.owner import EngineLimits, Owner
    from baton.plan.simulator.wires import Transfer, Wire


class Holdings:
    """Of one engine replica."""

    def __init__(
        self,
        name: str,
        costs: StepCosts,
        limits: EngineLimits,
        owner: Owner,
        *,
        hands_over: bool,
        node: int,
        nic: Wire,
        link: Wire,
        machine: Machine | None = None,
        awake: bool = False,
        seed: int = 0,
    ) -> None:
        self.name, self.costs, self.limits = name, costs, limits
        self.hands_over, self.node, self.nic, self.link = hands_over, node, nic, link
        self._owner, self._machine = owner, machine
        self._per_token = costs.kv.per_token
        self.up = True
        self.draining = False
        self.started_s = 0.0
        self.open = 0
        """Requests that are placed here, KV that is held for others left out."""
        self.queued_tokens = 0
        self.busy_s = 0.0
        self.preemptions = 0
        self.waiting: deque[Job] = deque()
        self.late: deque[Job] = deque()
        """Prompts that came after the next step was put together."""
        self.reading: deque[Job] = deque()
        self.arrived: deque[Job] = deque()
        self.pending: deque[Job] = deque()
        """Decode: prompts that were read elsewhere and for which there is no room yet."""
        self.incoming: dict[Job, None] = {}
        self.held: dict[Job, None] = {}
        self.running: dict[Job, None] = {}
        self.unseen: dict[Transfer, None] = {}
        self._ends: list[tuple[int, int, Job, int]] = []
        self._other = 0.0  # bytes of what is read, reserved and held
        self._context_tokens = 0
        self._context_fixed = 0.0
        self._step = 0
        self._busy, self._version = False, 0
        self._since, self._idle_since = 0.0, 0.0 if awake else -math.inf
        self._progress = Progress()
        self._held_s = 0.0
        """How long the next step waits for KV that was taken in."""
        self._luck = 1.0
        self._chance = random.Random(f"{name} {seed}")  # noqa: S311 - a simulation
        self._fresh: list[Job] = []
        self._leap, self._steps = False, 0
        self._chunks: list[tuple[Job, int]] = []

    # --- memory

    @property
    def kv_used(self) -> float:
        """Bytes that are taken."""
        return self._other + self._context

    @property
    def _context(self) -> float:
        return self._per_token * self._context_tokens + self._context_fixed

    def _bytes(self, job: Job) -> float:
        return self._per_token * (job.prompt + job.made) + job.fixed_bytes

    def fits_now(self, job: Job) -> bool:
        """Whether the prompt's KV has room, and a step of everybody's growth beside it."""
        growth = self._per_token * (len(self.running) + len(self.reading) + 1)
        return self.kv_used + self._bytes(job) + growth <= self.costs.kv_capacity_bytes

    @property
    def sequences(self) -> int:
        """Sequences that have a place: running, being read, and on their way here."""
        return len(self.running) + len(self.reading) + len(self.arrived) + len(self.incoming)

    def _run(self, job: Job) -> None:
        self.running[job] = None
        job.joined_at = self._step - job.made
        self._context_tokens += job.prompt + job.made
        self._context_fixed += job.fixed_bytes
        heapq.heappush(self._ends, (job.joined_at + job.output, job.ident, job, job.epoch))
