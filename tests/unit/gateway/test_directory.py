"""What the gateway believes about engines, and when it changes its mind."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from baton.errors import ConfigRefused, LegFailed, NoEngineAvailable
from baton.gateway.directory import (
    FixedDirectory,
    LeaseDirectory,
    checked_url,
    need_decode,
)
from baton.spec.lease import DirectorySnapshot, EngineLease
from tests.unit.gateway.fakes import FakeEngine


def _lease(name, role="decode", state="ready"):
    return EngineLease(
        replica_id=name, role=role, url="http://x:1", engine_id=name, model_id="m", state=state
    )


async def test_the_last_known_view_stays_when_the_directory_is_lost(caplog):
    """Said once in the log and counted at every failure."""
    answers = [DirectorySnapshot(engines=(_lease("a"),), engine_secret="s")]

    async def fetch():
        return answers.pop()

    directory = LeaseDirectory(fetch, interval_s=60)
    await directory.start()
    with caplog.at_level(logging.WARNING, "baton"):
        await directory._read()
        await directory._read()
    assert [e.replica_id for e in directory.decode_engines()] == ["a"]
    assert directory.engine_secret == "s"
    assert directory.failures == 2
    assert len(caplog.records) == 1
    await directory.close()


async def test_only_ready_engines_of_the_role_are_chosen_from():
    """Starting and draining ones get nothing new."""
    engines = (_lease("a"), _lease("b", state="draining"), _lease("p", "prefill"),
               _lease("c", state="starting"))  # fmt: skip

    async def fetch():
        return DirectorySnapshot(engines=engines)

    directory = LeaseDirectory(fetch, interval_s=60)
    await directory.start()
    assert [e.replica_id for e in directory.decode_engines()] == ["a"]
    assert [e.replica_id for e in directory.prefill_engines()] == ["p"]
    assert len(directory.all_engines()) == 4
    await directory.close()


async def test_a_draining_decode_engine_is_the_last_resort_and_prefill_none():
    """A request between its two legs needs some decode engine; without prefill it goes on alone."""
    engines = (
        _lease("a", state="draining"),
        _lease("p", "prefill", state="draining"),
        _lease("c", state="starting"),
    )

    async def fetch():
        return DirectorySnapshot(engines=engines)

    directory = LeaseDirectory(fetch, interval_s=60)
    await directory.start()
    assert [e.replica_id for e in directory.decode_engines()] == ["a"]
    assert directory.prefill_engines() == []
    await directory.close()


def _refuse(directory, engine):
    with contextlib.suppress(LegFailed), directory.breakers.leg(engine):
        raise LegFailed("refused", engine.replica_id)


async def test_an_engine_that_refused_is_avoided_unless_nothing_else_decodes():
    """Without decode there is nothing, so the one that may be well first is tried all the same."""
    a, b, p = _lease("a"), _lease("b"), _lease("p", "prefill")

    async def fetch():
        return DirectorySnapshot(engines=(a, b, p))

    directory = LeaseDirectory(fetch, interval_s=60)
    await directory.start()
    _refuse(directory, a)
    _refuse(directory, p)
    assert list(directory.decode_engines()) == [b]
    assert directory.prefill_engines() == []
    _refuse(directory, b)
    _refuse(directory, a)  # tried nevertheless, and failed again: b will be well first
    assert list(directory.decode_engines()) == [b]
    await directory.close()


async def test_an_engine_that_comes_back_under_another_id_is_chosen_at_once():
    """A replica that was started anew has nothing to do with the one that refused."""
    engines = [_lease("a")]

    async def fetch():
        return DirectorySnapshot(engines=tuple(engines))

    directory = LeaseDirectory(fetch, interval_s=60)
    await directory.start()
    _refuse(directory, engines[0])
    assert directory.breakers.state(engines[0]) == "open"
    engines[0] = engines[0].model_copy(update={"engine_id": "a-anew"})
    await directory._read()
    assert directory.breakers.state(directory.decode_engines()[0]) == "closed"
    await directory.close()


async def test_a_fixed_engine_is_out_while_its_probe_fails_and_in_when_it_answers():
    """Health, a model card, and back again."""
    engine = await FakeEngine("d").start()
    directory = FixedDirectory([], [engine.url], interval_s=60)
    await directory.start()
    (lease,) = directory.decode_engines()
    assert (lease.model_id, lease.max_model_len) == ("m", 1000)
    engine.healthy = False
    await directory._read()
    assert directory.decode_engines() == []
    engine.healthy = True
    await directory._read()
    assert len(directory.decode_engines()) == 1
    await directory.close()
    await engine.stop()


async def test_a_slow_engine_is_out_only_after_three_probes():
    """Busy engines answer late as well."""
    engine = await FakeEngine("d").start()
    directory = FixedDirectory([], [engine.url], interval_s=60, probe_timeout_s=5)
    await directory.start()
    directory._probe_timeout_s = 0.05
    engine.probe_delay_s = 0.3
    for expected in (1, 1, 0):
        await directory._read()
        assert len(directory.decode_engines()) == expected
    engine.probe_delay_s = 0
    directory._probe_timeout_s = 5
    await directory._read()
    assert len(directory.decode_engines()) == 1
    await directory.close()
    await engine.stop()


async def test_an_engine_that_is_not_up_yet_does_not_stop_the_start():
    """It joins when it answers."""
    directory = FixedDirectory(["http://127.0.0.1:9"], ["http://127.0.0.1:9/".replace("9", "1")])
    await directory.start()
    assert directory.decode_engines() == []
    await directory.close()


@pytest.mark.parametrize(
    "text", ["", "localhost:1", "ftp://x", "http://", "http://x:99999", "http://x/v1", "http://x?a"]
)
def test_a_url_that_is_none_is_refused_with_a_cure(text):
    """One line that shows how to write it."""
    with pytest.raises(ConfigRefused) as refused:
        checked_url(text)
    assert "http://HOST:PORT" in refused.value.cure


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [([], []), (["http://a:1"], ["http://a:1"]), ([], ["http://a:1", "http://a:1/"])],
)
def test_an_engine_has_one_role_and_stands_once(prefill, decode):
    """And there is at least one decode engine."""
    with pytest.raises(ConfigRefused):
        FixedDirectory(prefill, decode)


async def test_behind_a_failure_a_decode_engine_that_comes_back_is_waited_for(monkeypatch):
    """It was frozen and its probes were missed; without a failure nobody waits."""
    monkeypatch.setattr("baton.gateway.directory.REAPPEARS_STEP_S", 0.001)
    engines = [_lease("a", state="starting")]

    async def fetch():
        return DirectorySnapshot(engines=tuple(engines))

    directory = LeaseDirectory(fetch, interval_s=60)
    await directory.start()
    for after_failure in (False, True):
        with pytest.raises(NoEngineAvailable):
            await need_decode(directory, after_failure=after_failure)
    waiting = asyncio.create_task(need_decode(directory, after_failure=True))
    await asyncio.sleep(0)
    engines[0] = _lease("a")
    await directory._read()
    await waiting
    await directory.close()


async def test_a_directory_that_has_just_woken_up_takes_no_engine_away():
    """It has heard from one so far. What it says of that one counts; later its silence counts."""
    draining = _lease("a", state="draining")
    answers = [
        DirectorySnapshot(engines=(draining,), awake_s=20.0),
        DirectorySnapshot(engines=(draining,), awake_s=19.9),
        DirectorySnapshot(engines=(), awake_s=0.0),
        DirectorySnapshot(engines=(_lease("a"), _lease("b")), awake_s=900.0),
    ]

    async def fetch():
        return answers.pop()

    directory = LeaseDirectory(fetch, interval_s=60, lease_s=10)
    await directory.start()
    await directory._read()
    assert [e.replica_id for e in directory.decode_engines()] == ["a", "b"]
    await directory._read()
    assert [e.replica_id for e in directory.decode_engines()] == ["b"]
    await directory._read()
    assert [e.replica_id for e in directory.all_engines()] == ["a"]
    await directory.close()
