"""What a fleet is made of, and what is true for all of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from baton.plan.costs import HandoffCost
from baton.plan.simulator.owner import EngineLimits

if TYPE_CHECKING:
    from baton.plan.costs import StepCosts
    from baton.plan.simulator.scaling import Scaling

Role = Literal["both", "prefill", "decode"]
NO_WIRE = HandoffCost(0.0, 0.0)
"""Nothing ever arrives."""


@dataclass(frozen=True)
class Pool:
    """Engines of one kind.

    Args:
        role: `both` without P/D.
        nodes: The instance that each engine stands on; engines of one node meet over their links.
        nics: The NIC that each engine uses, by number; engines with the same number share it. Left
            out: each has its own.
        nic_bytes_per_s: Of one such NIC.
        link: A handoff within a node.
        network: A handoff between nodes; its bandwidth is the NIC's.
    """

    role: Role
    costs: StepCosts
    nodes: tuple[int, ...]
    limits: EngineLimits = field(default_factory=EngineLimits)
    nics: tuple[int, ...] = ()
    nic_bytes_per_s: float = 0.0
    link: HandoffCost = NO_WIRE
    network: HandoffCost = NO_WIRE
    scaling: Scaling | None = None


@dataclass(frozen=True)
class Failure:
    """An engine dies, and is back `down_s` later. Its requests start again elsewhere."""

    at_s: float
    role: Role
    index: int
    down_s: float


@dataclass(frozen=True)
class FleetSettings:
    """What is true for all requests. `max_open_per_engine` is admission, by decode engine."""

    max_open_per_engine: int = 1 << 30
    first_token_early: bool = False
    """Whether prefill's own token is the caller's first (decision 0015). Decode is played as if it
    had that token still to write: the end comes one step late."""
    failures: tuple[Failure, ...] = ()
    awake: bool = False
    """Whether engines had something to do until the trace begins."""
    seed: int = 0
    """Of what is uneven (`costs.Uneven`). The same settings play the same."""
    ttft_s: float = float("inf")
    """What pools that scale are scaled for."""
    tpot_s: float = float("inf")
