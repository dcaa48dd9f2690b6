"""When a replica that Serve has told to stop may really go.

It has left the choice already: its lease says `draining`, and gateways read that within a second.
What can still come or be fetched is listed here, each with the reason why it is waited for. The
decision is pure; `ReplicaLife` looks, waits and acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton.spec.lease import DirectorySnapshot, EngineLease

# A gateway reads the directory every half second, so its view is that old and a request may be on
# its way. Four times that: what comes later is refused at connect, and gateways try another engine.
SETTLE_S = 2.0


@dataclass(frozen=True)
class Holding:
    """What a draining replica still has.

    Attributes:
        since_s: Seconds since the lease began to say `draining`.
        open_requests: Requests that are open at its HTTP face.
        kv_usage: Share of its KV blocks in use. On a prefill engine those are leases that decode
            has yet to pull.
    """

    since_s: float
    open_requests: int = 0
    kv_usage: float = 0.0


def reason_to_stay(holding: Holding, *, settle_s: float = SETTLE_S) -> str | None:
    """Why a draining replica cannot go yet, in words; None when nothing is left."""
    if holding.open_requests > 0:
        return f"{holding.open_requests} open requests"
    if holding.kv_usage > 0:
        return f"KV that decode has yet to pull ({holding.kv_usage:.1%} of the blocks)"
    if holding.since_s < settle_s:
        return "gateways may not have seen it leave"
    return None


def prefill_may_send(me: EngineLease, snapshot: DirectorySnapshot) -> bool:
    """Whether a request that is being prefilled would find no decode engine but this one.

    So it is when a whole application is deleted: every replica drains at once, and decode has
    nothing to do until prefill is done.
    """
    if me.role != "decode":
        return False
    others = (e for e in snapshot.engines if e.replica_id != me.replica_id)
    if any(e.role == "decode" and e.state == "ready" for e in others):
        return False
    return any(
        e.role == "prefill" and (e.load.running or e.load.waiting or e.load.kv_usage > 0)
        for e in snapshot.engines
    )
