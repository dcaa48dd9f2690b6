"""A slow pair is routed around and alerted about once, and comes back."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from baton.gateway.links import RETRY_S, SHORTEST, Links, _Link
from tests.unit.gateway.fakes import stack


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def links(clock: Clock) -> Links:
    """Prefill takes a millisecond a token."""
    return Links(lambda tokens: tokens / 1000, now=clock)


def teach(links: Links, clock: Clock, pair: tuple[str, str], share: float, times: int = 12) -> None:
    """So many handoffs that take so much of prefill's time."""
    for k in range(times):
        clock.now += 1.0
        tokens = 1_000 + 400 * (k % 4)
        links.handed_over(*pair, tokens, share * tokens / 1000)


def test_a_pair_slower_than_prefill_is_left_out(
    links: Links, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """And said once, with a cure."""
    with caplog.at_level(logging.ERROR, "baton"):
        teach(links, clock, ("p0", "d0"), 0.5)
        teach(links, clock, ("p0", "d1"), 3.0)
    assert links.slow_decodes("p0", ["d0", "d1"]) == {"d1"}
    assert links.slow_decodes("p1", ["d0", "d1"]) == frozenset()
    (alert,) = caplog.records
    assert (alert.__dict__["prefill"], alert.__dict__["decode"]) == ("p0", "d1")
    assert "baton verify" in alert.__dict__["cure"]


def test_a_load_that_slows_every_pair_down_is_no_link_to_go_around(
    links: Links, clock: Clock
) -> None:
    """However many of them are called slow by then: the last would get everything."""
    for prefill in ("p0", "p1"):
        for decode in ("d0", "d1"):
            last = (prefill, decode) == ("p1", "d1")
            teach(links, clock, (prefill, decode), 0.9 if last else 2.0)
    assert sum(not ok for _, _, ok, _ in links.pairs()) == 3
    assert links.slow_prefills(dict.fromkeys(["p0", "p1"], ("d0", "d1"))) == frozenset()
    assert links.slow_decodes("p1", ["d0", "d1"]) == frozenset()
    assert not any(one["routed_around"] for one in links.as_list())


def test_most_pairs_are_never_left_out_for_a_few(links: Links, clock: Clock) -> None:
    """Three prefill engines on a slow network and one on a fast one: all are asked."""
    for prefill, share in (("p0", 9.0), ("p1", 9.0), ("p2", 9.0), ("p3", 0.2)):
        teach(links, clock, (prefill, "d0"), share)
    assert links.slow_prefills(dict.fromkeys(["p0", "p1", "p2", "p3"], ("d0",))) == frozenset()


def test_a_pair_is_left_out_once_the_others_are_known_to_be_faster(
    links: Links, clock: Clock
) -> None:
    """And not before: alone it may be the load."""
    teach(links, clock, ("p0", "d0"), 4.0)
    assert links.slow_decodes("p0", ["d0", "d1"]) == frozenset()
    teach(links, clock, ("p0", "d1"), 0.4)
    assert links.slow_decodes("p0", ["d0", "d1"]) == {"d0"}
    assert [one["routed_around"] for one in links.as_list()] == [True, False]


def test_a_pair_that_was_forgotten_while_it_was_left_out_is_not_looked_for(
    links: Links, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of those that are left out is a second old at most, and so may hold it still."""
    for pair, share in (("d1", 9.0), ("d2", 9.0), ("d0", 0.2), ("d3", 0.2)):
        teach(links, clock, ("p0", pair), share, times=7)
    decodes = ["d0", "d1", "d2", "d3"]
    assert links.slow_decodes("p0", decodes) == {"d1", "d2"}
    monkeypatch.setattr("baton.gateway.links.MOST", 4)
    links.handed_over("p9", "d9", 1_000, 0.1)  # no time passes; ("p0", "d1") is forgotten
    assert links.slow_decodes("p0", decodes) == {"d2"}
    assert links.slow_prefills(dict.fromkeys(["p0", "p1"], ("d1",))) == frozenset()


def test_the_last_pair_is_never_left_out(links: Links, clock: Clock) -> None:
    """A slow answer is better than none."""
    teach(links, clock, ("p0", "d0"), 3.0)
    assert links.slow_decodes("p0", ["d0"]) == frozenset()
    assert links.slow_prefills(dict.fromkeys(["p0"], ("d0",))) == frozenset()


def test_a_prefill_engine_without_a_fast_partner_is_left_out(links: Links, clock: Clock) -> None:
    """Its cable is the slow one."""
    for prefill, share in (("p1", 0.2), ("p0", 3.0)):
        for decode in ("d0", "d1"):
            teach(links, clock, (prefill, decode), share)
    assert links.slow_prefills(dict.fromkeys(["p0", "p1"], ("d0", "d1"))) == {"p0"}


def test_a_prefill_engine_is_slow_by_the_engines_that_may_take_its_kv(
    links: Links, clock: Clock
) -> None:
    """Not by those of other versions, to which it has never handed anything."""
    for pair, share in ((("p2", "d1"), 0.2), (("p1", "d0"), 0.2), (("p0", "d0"), 3.0)):
        teach(links, clock, pair, share)
    old, new = ["d0"], ["d1"]
    assert links.slow_prefills({"p0": old, "p1": old, "p2": new}) == {"p0"}
    assert links.slow_prefills({"p0": old, "p3": []}) == {"p0"}


def test_one_request_tries_a_slow_pair_again_after_a_while(links: Links, clock: Clock) -> None:
    """The next one goes around it as before, until it is known to be well."""
    teach(links, clock, ("p0", "d0"), 0.2)
    teach(links, clock, ("p0", "d1"), 3.0)
    clock.now += RETRY_S
    assert links.slow_decodes("p0", ["d0", "d1"]) == frozenset()
    assert links.slow_decodes("p0", ["d0", "d1"]) == {"d1"}
    teach(links, clock, ("p0", "d1"), 0.2)
    assert not links.any_slow


def test_short_prompts_say_nothing_of_a_link(links: Links, clock: Clock) -> None:
    """Their handoff is decode's first step."""
    for _ in range(20):
        clock.now += 1.0
        links.handed_over("p0", "d0", SHORTEST - 1, 60.0)
    assert list(links.pairs()) == []


def test_nothing_is_slow_while_prefills_speed_is_not_known(clock: Clock) -> None:
    """There is nothing to compare with."""
    links = Links(lambda _: None, now=clock)
    teach(links, clock, ("p0", "d0"), 9.0)
    assert not links.any_slow


def test_pairs_of_engines_that_are_gone_are_forgotten(links: Links, clock: Clock) -> None:
    """With what was said of them."""
    teach(links, clock, ("p0", "d0"), 3.0)
    ((prefill, decode, ok, rate),) = links.pairs()
    assert (prefill, decode, ok) == ("p0", "d0", False)
    assert rate == pytest.approx(1000 / 3, rel=0.05)
    links.keep({"p0"})
    assert list(links.pairs()) == []
    assert not links.any_slow


@pytest.mark.parametrize("asked", ["prefill", "decode"])
def test_a_slow_pair_that_makes_room_for_others_is_no_longer_gone_around(
    links: Links, clock: Clock, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """At once, not with the next look; and it is the first to go, because nobody uses it."""
    monkeypatch.setattr("baton.gateway.links.MOST", 5)
    fast = ("p2", "p3", "p4")
    for prefill, share in (*((p, 0.2) for p in fast), ("p0", 9.0), ("p1", 9.0)):
        teach(links, clock, (prefill, "d0"), share)
    for prefill in fast:
        links.handed_over(prefill, "d0", 1_000, 0.2)
    assert links.slow_prefills(dict.fromkeys(["p0", "p1", "p2"], ("d0",))) == {"p0", "p1"}
    links.handed_over("p5", "d0", 1_000, 0.2)  # `p0` goes; `p1` is slow still
    if asked == "prefill":
        assert links.slow_prefills(dict.fromkeys(["p0", "p1", "p2"], ("d0",))) == {"p1"}
    else:
        assert links.slow_decodes("p0", ["d0", "d1"]) == frozenset()
    assert links.any_slow


async def test_a_gateway_goes_around_a_slow_pair() -> None:
    """Requests with KV leave the slow decode engine out; the metric says which pair it is."""
    async with stack(decode=2) as s:
        (prefill,) = s.app.directory.prefill_engines()
        slow, fast = s.app.directory.decode_engines()
        for _ in range(6):
            await s.complete(max_tokens=1)
        assert {d.name for d in s.decode if d.generated} == {"d0", "d1"}
        s.app.links._slow.add((prefill.replica_id, slow.replica_id))
        link = s.app.links._links[prefill.replica_id, slow.replica_id] = _Link(slow=True)
        link.retry_at = float("inf")
        s.app.links._aside = frozenset({(prefill.replica_id, slow.replica_id)})
        s.app.links._looked_at = float("inf")  # nothing is known of the other pair
        for engine in s.decode:
            engine.seen.clear()
        for _ in range(6):
            await s.complete(max_tokens=1)
        busy = [d.url for d in s.decode if d.generated]
        assert busy == [fast.url]
        status, page = await s.get("/metrics")
    assert status == 200
    shown = f'baton_transport_ok{{decode="{slow.replica_id}",prefill="{prefill.replica_id}"}} 0.0'
    assert shown in page.decode()
