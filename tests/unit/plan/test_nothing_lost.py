"""Whatever a fleet is made of and whatever fails, each request ends, and the same way each time."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.plan.costs import Beside, HandoffCost, Uneven, Wake
from baton.plan.simulator import EngineLimits, Failure, Fleet, FleetSettings, Pool, Request
from tests.unit.plan.shapes import costs, poisson

if TYPE_CHECKING:
    from baton.plan.costs import StepCosts
    from baton.plan.simulator.settings import Role

NIC = 1e5
EACH = costs(token_s=1e-4, step_s=0.01, sequence_s=1e-3, pair_s=1e-7, kv_byte_s=2e-6)


def engines(chance: random.Random) -> StepCosts:
    """Room for some requests or for all, asleep or not, on processors of their own or not."""
    shared = Beside(chance.choice([0.3, 1.0]), chance.choice([0.0, 0.8]))
    return replace(
        EACH,
        request_s=chance.choice([0.0, 0.005, 0.05]),
        kv_capacity_bytes=chance.choice([math.inf, 3000, 6000]),
        beside=chance.choice([Beside(), shared]),
        wake=chance.choice([Wake(), Wake(((0.1, 0.01, 0.2), (1.0, 0.02, 0.1)))]),
        uneven=chance.choice([Uneven(), Uneven(0.3, 0.3)]),
    )


def pools(chance: random.Random) -> list[Pool]:
    """With and without P/D, on one machine or on several."""
    each = engines(chance)
    limits = EngineLimits(
        chance.choice([64, 300, 5000]), chance.choice([2, 8, 100]), chance.random() < 0.5
    )
    link = HandoffCost(
        chance.choice([0.0, 0.02, 0.2]), chance.choice([math.inf, 1e5, 1e4]),
        busy_s=chance.choice([0.0, 0.01, 0.1]), busy_byte_s=chance.choice([0.0, 1e-6]),
        holds_s=chance.choice([0.0, 0.02, 0.3]), holds_byte_s=chance.choice([0.0, 1e-6]),
    )  # fmt: skip
    roles: tuple[Role, ...] = chance.choice([("both",), ("prefill", "decode")])
    apart = chance.random() < 0.3
    return [
        Pool(role, each, tuple(number if apart else 0 for number in range(chance.randrange(1, 4))),
             limits, nic_bytes_per_s=NIC, link=link, network=link)
        for role in roles
    ]  # fmt: skip


@given(st.integers(0, 1 << 30))
@settings(max_examples=150)
def test_every_request_ends_and_the_same_way_each_time(seed: int) -> None:
    """Also where engines die and come back in the middle of it."""
    chance = random.Random(seed)
    those = pools(chance)
    failures = tuple(
        Failure(chance.uniform(0, 5), chance.choice(those).role, 0, chance.uniform(0.1, 2))
        for _ in range(chance.randrange(4))
    )
    trace = poisson(
        chance.choice([2, 10, 40]), chance.randrange(1, 60), seed,
        lambda c: c.randrange(1, 900), lambda c: c.randrange(1, 60),
    )  # fmt: skip
    asked = FleetSettings(
        failures=failures, seed=seed, max_open_per_engine=chance.choice([1 << 30, 3]),
        first_token_early=chance.random() < 0.3,
    )  # fmt: skip
    first, again = (Fleet(those, asked).play(trace).served for _ in range(2))
    assert first == again
    for served in first:
        assert served.end == "finished", (served, failures)
        assert 0 <= served.ttft_s <= served.end_s - served.arrival_s + 1e-9


def test_kv_that_is_there_at_once_arrives_for_two_that_were_read_in_one_step() -> None:
    """A handoff that does not grow with its bytes has a bandwidth without end."""
    link = HandoffCost(0.02, math.inf)
    those = [Pool(role, EACH, (0,), link=link) for role in ("prefill", "decode")]
    served = Fleet(those).play([Request(0.0, 100, 5)] * 3).served
    assert [one.end for one in served] == ["finished"] * 3
    assert [one.handoff_s for one in served] == pytest.approx([0.02] * 3)
