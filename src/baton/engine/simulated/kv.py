"""KV blocks and the leases on them, as vLLM keeps them.

A request holds blocks while it runs. What a prefill engine offers to decode keeps its blocks under
a lease: freed when decode has read them, extended by decode's heartbeats, and freed unread when the
lease ends. vLLM does not wipe or check blocks: who reads after the lease has ended gets the right
KV as long as nobody else has written there, and somebody else's afterwards, without any error.
So does a reader of this pool (vLLM 0.29, nixl/pull_worker.py `_get_new_notifs`: the prefill side
only logs "Potentially invalid KV blocks").
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton.engine.simulated.text import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Holding:
    """The blocks that one request got, and the tokens whose KV it wrote there."""

    blocks: list[int]
    tokens: list[int] = field(default_factory=list)
    given_back: bool = False


@dataclass
class _Lease:
    holding: Holding
    ends_at: float


class KvPool:
    """A fixed number of blocks.

    Args:
        blocks: How many there are; like vLLM's, block 0 belongs to nobody.
        block_size: Tokens in a block.
        lease_s: How long an offer is kept unread.
        now: The clock, in seconds.
    """

    def __init__(
        self, *, blocks: int, block_size: int, lease_s: float, now: Callable[[], float]
    ) -> None:
        self.block_size = block_size
        self.lease_s = lease_s
        self.expired_requests = 0
        self._now = now
        self._usable = blocks - 1
        self._free = deque(range(1, blocks))
        self._written_by: dict[int, Holding] = {}
        self._leases: dict[str, _Lease] = {}

    @property
    def usage(self) -> float:
        """The share of blocks that somebody holds, 0 to 1."""
        return 1 - len(self._free) / self._usable

    @property
    def leases(self) -> int:
        return len(self._leases)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def fits(self, tokens: int) -> bool:
        """Whether the pool could hold so many tokens if it were empty."""
        return self.blocks_for(tokens) <= self._usable

    def take(self, tokens: int) -> Holding | None:
        """Blocks for so many tokens, or None while there are not enough."""
        holding = Holding([])
        return holding if self.grow(holding, tokens) else None

    def grow(self, holding: Holding, tokens: int) -> bool:
        """Make room for so many tokens in all; False, and nothing taken, while there is none."""
        wanted = self.blocks_for(tokens) - len(holding.blocks)
        if wanted > len(self._free):
            return False
        for _ in range(wanted):
            block = self._free.popleft()
            self._written_by[block] = holding
            holding.blocks.append(block)
        return True

    def give_back(self, holding: Holding) -> None:
        if not holding.given_back:
            holding.given_back = True
            # Last block first, so that the beginning of a prompt survives longest; a block that is
            # not full is of no use to vLLM's prefix cache and goes to the next who asks.
            full = len(holding.tokens) // self.block_size
            self._free.extendleft(holding.blocks[full:])
            self._free.extend(reversed(holding.blocks[:full]))

    def offer(self, request_id: str, holding: Holding) -> None:
        """Keep the blocks of a finished prefill until they are read or the lease ends."""
        self._leases[request_id] = _Lease(holding, self._now() + self.lease_s)

    def read(self, blocks: Sequence[int], length: int) -> Context:
        """What a peer gets who reads these blocks as the KV of `length` tokens."""
        if not length:  # a prompt of one token, which decode computes itself
            return Context()
        writers = {id(self._written_by.get(block)): self._written_by.get(block) for block in blocks}
        (writer,) = writers.values() if len(writers) == 1 else (None,)
        if writer is None:
            return Context(length=length).spoiled(f"mixed {blocks}")
        context = Context().read(writer.tokens[:length])
        if context.length < length or list(blocks) != writer.blocks[: len(blocks)]:
            return Context(context.fingerprint, length, context.tail).spoiled(f"elsewhere {blocks}")
        return context

    def release(self, request_id: str) -> bool:
        """Decode has what it needs (or wants nothing). False for an offer that is not known."""
        lease = self._leases.pop(request_id, None)
        if lease is None:
            logger.error(
                "Potentially invalid KV blocks for unrecognized request %s were retrieved by a "
                "decode worker. They may have expired.",
                request_id,
            )
            return False
        self.give_back(lease.holding)
        return True

    def heartbeat(self, request_ids: Sequence[str]) -> None:
        """Decode still waits for these: two thirds of a lease from now, if that is later.

        vLLM 0.29, nixl/base_worker.py `_lease_extension`.
        """
        extended = self._now() + self.lease_s * 2 / 3
        for request_id in request_ids:
            if (lease := self._leases.get(request_id)) is not None:
                lease.ends_at = max(lease.ends_at, extended)

    def expire(self, *, everything: bool = False) -> int:
        """Free what nobody came for in time; how many offers that were."""
        now = self._now()
        late = [name for name, lease in self._leases.items() if everything or lease.ends_at <= now]
        for request_id in late:
            logger.warning("Releasing expired KV blocks for request %s", request_id)
            self.give_back(self._leases.pop(request_id).holding)
        self.expired_requests += len(late)
        return len(late)

    def next_expiry_s(self) -> float | None:
        """Seconds until the first lease ends, or None without leases."""
        if not self._leases:
            return None
        return min(lease.ends_at for lease in self._leases.values()) - self._now()
