"""When a replica that was told to stop may go."""

from __future__ import annotations

from typing import Any

import pytest

from baton.engine.drain import SETTLE_S, Holding, prefill_may_send, reason_to_stay
from baton.spec.lease import DirectorySnapshot, EngineLease


def lease(replica_id: str, role: str, state: str, **load: Any) -> EngineLease:
    return EngineLease.model_validate(
        {
            "replica_id": replica_id, "role": role, "state": state, "load": load,
            "url": "http://x", "engine_id": replica_id, "model_id": "m",
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("holding", "word"),
    [
        (Holding(since_s=99, open_requests=1), "open requests"),
        (Holding(since_s=99, kv_usage=0.01), "KV"),
        (Holding(since_s=SETTLE_S - 0.01), "seen"),
    ],
)
def test_a_replica_stays_while_it_has_what_others_need(holding: Holding, word: str) -> None:
    """Open requests, KV that was not pulled, or a request that is on its way."""
    reason = reason_to_stay(holding)
    assert reason is not None
    assert word in reason


def test_a_replica_goes_once_nothing_is_left_and_every_gateway_has_seen_it() -> None:
    """No reason is left, so nothing is waited for."""
    assert reason_to_stay(Holding(since_s=SETTLE_S)) is None


BUSY_PREFILL = lease("p", "prefill", "draining", running=1)
HOLDING_PREFILL = lease("p", "prefill", "draining", kv_usage=0.1)
IDLE_PREFILL = lease("p", "prefill", "ready")
ME = lease("d", "decode", "draining")


@pytest.mark.parametrize(
    ("others", "waits"),
    [
        ([BUSY_PREFILL], True),
        ([HOLDING_PREFILL], True),
        ([IDLE_PREFILL], False),
        ([BUSY_PREFILL, lease("e", "decode", "ready")], False),
        ([BUSY_PREFILL, lease("e", "decode", "draining")], True),
        ([], False),
    ],
)
def test_the_last_decode_engine_outlives_prefills_work(
    others: list[EngineLease], waits: bool
) -> None:
    """Deleting an application stops everything at once; somebody has to take prefill's KV."""
    snapshot = DirectorySnapshot(engines=(ME, *others))
    assert prefill_may_send(ME, snapshot) is waits


def test_a_prefill_engine_waits_for_nobodys_work_but_its_own() -> None:
    """Other prefill engines do not send to it."""
    me = lease("q", "prefill", "draining")
    assert not prefill_may_send(me, DirectorySnapshot(engines=(me, BUSY_PREFILL)))
