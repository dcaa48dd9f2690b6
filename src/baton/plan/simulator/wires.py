"""Bandwidth that transfers share: a NIC or a link at each end, split evenly among its transfers.

A transfer goes at the smaller of its shares at both ends. That is a little less than fair queueing
would give (a share that the other end cannot take is not given to others), so handoffs come out
rather too slow than too fast. When a transfer begins or ends, those at the same two ends are
settled and paced anew.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from baton.plan.simulator.engine import Engine
    from baton.plan.simulator.job import Job


class Wire:
    """One end: bytes a second, and who uses it."""

    __slots__ = ("bytes_moved", "bytes_per_s", "transfers")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.transfers: dict[Transfer, None] = {}
        self.bytes_moved = 0.0


class Transfer:
    """KV of one request on its way from prefill to decode."""

    __slots__ = (
        "at_s", "fixed_s", "goal", "held_s", "job", "left", "rate", "source", "version", "waits_s",
        "wires",
    )  # fmt: skip

    def __init__(
        self, job: Job, source: Engine, goal: Engine, wires: tuple[Wire, Wire], size: float,
        *, fixed_s: float = 0.0, waits_s: float = 0.0, held_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.job, self.source, self.goal, self.wires = job, source, goal, wires
        self.fixed_s, self.waits_s, self.held_s = fixed_s, waits_s, held_s
        self.left = size
        self.rate = 0.0
        self.at_s = 0.0
        self.version = 0


class Clock(Protocol):
    """Who is told when a transfer will end."""

    def transfer_at(self, when: float, transfer: Transfer, version: int) -> None:
        """Come back then, unless the version has moved on."""


class Wires:
    """Paces all transfers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def begin(self, transfer: Transfer, now: float) -> None:
        """Put it on its wires."""
        transfer.at_s = now
        for wire in transfer.wires:
            wire.transfers[transfer] = None
            wire.bytes_moved += transfer.left
        self._pace(transfer.wires, now)

    def end(self, transfer: Transfer, now: float) -> None:
        """Take it off: it has ended, or an engine died."""
        transfer.version += 1
        for wire in transfer.wires:
            wire.transfers.pop(transfer, None)
        self._pace(transfer.wires, now)

    def _pace(self, wires: tuple[Wire, Wire], now: float) -> None:
        touched = dict.fromkeys(wires[0].transfers)
        touched.update(wires[1].transfers)
        for transfer in touched:
            rate = min(wire.bytes_per_s / len(wire.transfers) for wire in transfer.wires)
            if rate == transfer.rate and transfer.at_s < now:
                continue
            if now > transfer.at_s:  # without end times nothing is no number
                transfer.left = max(transfer.left - transfer.rate * (now - transfer.at_s), 0.0)
            transfer.at_s, transfer.rate = now, rate
            transfer.version += 1
            ends = now + transfer.left / rate if rate > 0 else math.inf
            if transfer.left <= 0:
                ends = now
            if ends < math.inf:
                self._clock.transfer_at(ends, transfer, transfer.version)
