"""The lease book: who is alive, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from baton.serve import registry
from baton.serve.registry import DirectoryActor, LeaseBook
from baton.spec.lease import EngineLease

if TYPE_CHECKING:
    import pytest


def lease(replica_id: str, role: str = "decode") -> EngineLease:
    return EngineLease.model_validate(
        {
            "replica_id": replica_id,
            "role": role,
            "url": f"http://127.0.0.1/{replica_id}",
            "engine_id": replica_id,
            "model_id": "m",
        }
    )


def test_a_lease_lives_until_its_end_and_not_longer() -> None:
    """At the very moment that a lease ends it is gone."""
    book = LeaseBook()
    book.renew(lease("a"), lease_s=5, now_s=10)
    assert [one.replica_id for one in book.alive(now_s=14.999)] == ["a"]
    assert book.alive(now_s=15.0) == ()


def test_a_renewal_replaces_what_was_known() -> None:
    """The newest renewal counts, for the facts and for the end."""
    book = LeaseBook()
    book.renew(lease("a"), lease_s=5, now_s=0)
    book.renew(lease("a").model_copy(update={"state": "draining"}), lease_s=5, now_s=4)
    (found,) = book.alive(now_s=8)
    assert found.state == "draining"


def test_a_replica_that_leaves_is_gone_at_once() -> None:
    """Leaving does not wait for the lease to end; leaving twice is nothing."""
    book = LeaseBook()
    book.renew(lease("a"), lease_s=5, now_s=0)
    book.leave("a")
    book.leave("a")
    assert book.alive(now_s=0) == ()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["renew", "leave"]),
            st.sampled_from("abc"),
            st.integers(0, 3),
        ),
        max_size=30,
    )
)
def test_the_book_agrees_with_a_simple_model(events: list[tuple[str, str, int]]) -> None:
    """Whatever the order of events, exactly those whose last renewal still runs are alive."""
    book = LeaseBook()
    ends: dict[str, float] = {}
    now_s = 0.0
    for what, who, passed in events:
        now_s += passed
        if what == "renew":
            book.renew(lease(who), lease_s=2, now_s=now_s)
            ends[who] = now_s + 2
        else:
            book.leave(who)
            ends.pop(who, None)
        alive = {one.replica_id for one in book.alive(now_s=now_s)}
        assert alive == {who for who, end_s in ends.items() if end_s > now_s}


def test_the_snapshot_is_ordered_by_role_and_replica() -> None:
    """Two gateways that read the same book see the same order."""
    book = LeaseBook()
    for who, role in (("z", "decode"), ("b", "prefill"), ("a", "decode")):
        book.renew(lease(who, role), lease_s=5, now_s=0)
    assert [one.replica_id for one in book.alive(now_s=1)] == ["a", "z", "b"]


async def test_a_directory_that_was_stopped_forgets_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals could not reach it: that time does not count, and the snapshot says that it woke."""
    monkeypatch.setattr(registry, "TICK_S", 3600)
    clock = [100.0]
    actor = DirectoryActor("secret", now=lambda: clock[0])
    await actor.renew(lease("a").model_dump(), 5.0)
    for _ in range(3):
        clock[0] += 1.0
        snapshot = await actor.snapshot()
    assert snapshot["awake_s"] == 3.0
    clock[0] += 60.0
    snapshot = await actor.snapshot()
    assert [one["replica_id"] for one in snapshot["engines"]] == ["a"]
    assert snapshot["awake_s"] == 0.0
    clock[0] += 1.0
    assert len((await actor.snapshot())["engines"]) == 1
    clock[0] += 1.0
    assert (await actor.snapshot())["engines"] == ()  # two seconds were left of its lease
    assert actor._watch is not None
    actor._watch.cancel()
