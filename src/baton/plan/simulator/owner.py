"""What an engine is given from outside: its limits, and who it reports to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from baton.plan.simulator.engine import Engine
    from baton.plan.simulator.job import Job
    from baton.plan.simulator.wires import Transfer


@dataclass(frozen=True)
class EngineLimits:
    """`max_num_batched_tokens`, `max_num_seqs` and `async_scheduling`."""

    token_budget: int = 8192
    max_seqs: int = 256
    async_scheduling: bool = False
    """Whether a step is put together while the one before it runs, as vLLM does on GPUs: what comes
    meanwhile takes no part in it, if it has anything else to do (vLLM 0.29 `v1/engine/core.py`,
    `step_with_batch_queue`)."""


class Owner(Protocol):
    """Who an engine reports to: the fleet."""

    def at(self, when: float, engine: Engine, version: int) -> None:
        """Wake the engine then, unless its version has moved on."""

    def prefilled(self, engine: Engine, job: Job, now: float) -> None:
        """A prompt was read by an engine that hands over; its KV is still held."""

    def finished(self, engine: Engine, job: Job, now: float) -> None:
        """An answer is whole."""

    def has_room(self, engine: Engine, now: float) -> None:
        """KV or places were freed."""

    def seen(self, transfer: Transfer) -> None:
        """The engine has nothing to write, and finds KV that had arrived."""
