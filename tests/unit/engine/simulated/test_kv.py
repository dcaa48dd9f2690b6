"""KV blocks and leases."""

from __future__ import annotations

import pytest

from baton.engine.simulated.kv import KvPool
from baton.engine.simulated.text import Context


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return _Clock()


@pytest.fixture
def pool(clock):
    return KvPool(blocks=9, block_size=4, lease_s=30.0, now=clock)


def _offer(pool, name, tokens):
    holding = pool.take(len(tokens))
    holding.tokens = tokens
    pool.offer(name, holding)
    return holding


def test_block_zero_belongs_to_nobody(pool):
    """As in vLLM, so the usage that both report for the same requests agrees."""
    holding = pool.take(32)
    assert 0 not in holding.blocks
    assert pool.usage == 1.0
    assert pool.take(1) is None


def test_growing_takes_a_block_only_at_its_border(pool):
    """Usage follows the answer."""
    holding = pool.take(3)
    assert pool.grow(holding, 4)
    assert len(holding.blocks) == 1
    assert pool.grow(holding, 5)
    assert len(holding.blocks) == 2


def test_growing_beyond_the_pool_takes_nothing(pool):
    """A request that has to wait holds what it held."""
    holding = pool.take(4)
    assert not pool.grow(holding, 400)
    assert len(holding.blocks) == 1


def test_an_offer_is_read_as_what_was_written(pool):
    """The handoff itself."""
    tokens = list(range(10))
    holding = _offer(pool, "r", tokens)
    assert pool.read(holding.blocks, 10) == Context().read(tokens)
    assert pool.read(holding.blocks, 9) == Context().read(tokens[:9])


@pytest.mark.parametrize("wrong", ["order", "short", "strange"])
def test_other_blocks_than_those_offered_give_wrong_kv(pool, wrong):
    """As a real engine reads whatever stands there."""
    tokens = list(range(10))
    holding = _offer(pool, "r", tokens)
    other = _offer(pool, "s", list(range(50, 54)))
    blocks = {
        "order": holding.blocks[::-1],
        "short": holding.blocks[1:],
        "strange": [*holding.blocks[:-1], other.blocks[0]],
    }[wrong]
    length = min(10, len(blocks) * 4)
    assert pool.read(blocks, length) != Context().read(tokens[:length])
    assert pool.read(blocks, length).length == length


def test_tokens_that_were_not_written_give_wrong_kv(pool):
    """A decode prompt that is longer than the prefill was."""
    holding = _offer(pool, "r", [1, 2, 3])
    assert pool.read(holding.blocks, 4) != Context().read([1, 2, 3, 0])


def test_releasing_frees_at_once_and_once(pool, caplog):
    """Decode has what it needs; a second notice is logged as vLLM logs it."""
    _offer(pool, "r", [1, 2, 3])
    assert pool.release("r")
    assert pool.usage == 0
    assert not pool.release("r")
    assert "unrecognized request r" in caplog.text
    assert pool.usage == 0


def test_a_lease_ends_unread(pool, clock):
    """Blocks nobody came for are free after the lease, and counted."""
    _offer(pool, "r", [1, 2, 3])
    clock.now += 29.9
    assert pool.expire() == 0
    clock.now += 0.2
    assert pool.expire() == 1
    assert (pool.usage, pool.expired_requests, pool.leases) == (0, 1, 0)


def test_a_heartbeat_extends_the_lease_by_two_thirds(pool, clock):
    """vLLM's `_lease_extension`; it never shortens."""
    _offer(pool, "r", [1, 2, 3])
    pool.heartbeat(["r", "unknown"])
    assert pool.next_expiry_s() == pytest.approx(30)
    clock.now += 25
    pool.heartbeat(["r"])
    assert pool.next_expiry_s() == pytest.approx(20)


def test_expiring_everything_ends_young_leases_too(pool):
    """The fault `expire_leases`."""
    _offer(pool, "r", [1, 2, 3])
    assert pool.expire(everything=True) == 1
    assert pool.next_expiry_s() is None


def test_kv_is_right_after_the_lease_until_somebody_writes_there(pool, clock):
    """The danger of a late decode: no error, and after a while somebody else's KV."""
    tokens = list(range(8))
    holding = _offer(pool, "r", tokens)
    clock.now += 31
    pool.expire()
    assert pool.read(holding.blocks, 8) == Context().read(tokens)
    pool.take(32)
    assert pool.read(holding.blocks, 8) != Context().read(tokens)


def test_giving_back_twice_frees_once(pool):
    """An abort and an end may both say so."""
    holding = pool.take(8)
    pool.give_back(holding)
    pool.give_back(holding)
    assert pool.usage == 0
    taken = pool.take(32)
    assert len(set(taken.blocks)) == 8
