"""Keys while the gateway runs: who they are, what they may, and how they change."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from baton.errors import ConfigRefused, KeyLimited, NotAuthenticated
from baton.gateway import auth
from baton.gateway.auth import Holder, Keys
from baton.spec.key_file import CallerKey
from baton.spec.schema import Admission as Limits
from baton.spec.schema import Auth, BatonBlock
from tests.unit.gateway.fakes import LONG, Behave, stack, until


def _bearer(key):
    return {"authorization": f"Bearer {key}"}


class KeyFile:
    """A file of keys that is replaced whole, as it should be."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "keys.yaml"
        self.settings = Auth(api_keys_file=str(self.path))

    def write(self, **keys):
        entries = [{"name": n, "key": f"{n}-key", **limits} for n, limits in keys.items()]
        self.write_text(json.dumps({"keys": entries}))

    def write_text(self, text):
        new = self.path.with_suffix(".new")
        new.write_text(text)
        new.replace(self.path)


@pytest.fixture
def file(tmp_path):
    return KeyFile(tmp_path)


def test_keys_have_names_and_are_kept_as_hashes():
    """`name:key` or only a key; a wrong one names nobody."""
    keys = Keys.from_settings(Auth(api_keys_env="K"), {"K": "ann:first-key, second-key"})
    assert keys.holder_of(b"Bearer first-key").name == "ann"
    assert keys.holder_of(None, b"second-key").name == "key2"
    assert "first-key" not in repr(keys._table)
    for wrong in (b"Bearer first", b"Bearer first-key2", b"Bearer ", b"Basic first-key", None):
        with pytest.raises(NotAuthenticated):
            keys.holder_of(wrong)


def test_two_gateways_keep_different_marks_for_the_same_key():
    """What a stranger measures at one says nothing of a key."""
    first, second = (Keys.from_settings(Auth(api_keys_env="K"), {"K": "a"}) for _ in range(2))
    assert set(first._table).isdisjoint(second._table)


def test_a_gateway_that_should_ask_never_starts_without_keys():
    """Whatever is missing."""
    with pytest.raises(ConfigRefused):
        Keys.from_settings(Auth(api_keys_env="K"), {"K": ""})


def test_a_rate_lets_a_burst_through_and_then_its_pace(monkeypatch):
    """Retry-After says when the next is due."""
    now = 1000.0
    monkeypatch.setattr(auth.time, "monotonic", lambda: now)
    holder = Holder("a", CallerKey(name="a", key="k", requests_per_min=6, burst=2))
    holder.begin()
    holder.begin()
    with pytest.raises(KeyLimited) as caught:
        holder.begin()
    assert caught.value.retry_after_s == 10
    now += 9.9
    with pytest.raises(KeyLimited) as caught:
        holder.begin()
    assert caught.value.retry_after_s == 1
    now += 0.2
    holder.begin()
    now += 3600
    holder.begin()
    holder.begin()
    with pytest.raises(KeyLimited):
        holder.begin()


def test_a_change_of_the_file_gives_nobody_a_fresh_burst():
    """What was used stays used."""
    holder = Holder("a", CallerKey(name="a", key="k", requests_per_min=1, burst=2))
    holder.begin()
    holder.begin()
    holder.change(CallerKey(name="a", key="k", requests_per_min=2, burst=5))
    with pytest.raises(KeyLimited):
        holder.begin()


async def test_a_key_may_have_only_so_many_requests_open(file):
    """The other key is served meanwhile; names stand in log and metrics, keys nowhere."""
    file.write(ann={"max_concurrency": 1}, bob={})
    async with stack(settings=BatonBlock(auth=file.settings)) as s:
        s.decode[0].gate = asyncio.Event()
        body = {"prompt": LONG}
        running = asyncio.create_task(s.post("/v1/completions", body, **_bearer("ann-key")))
        await until(lambda: s.app.admission.inflight == 1)
        status, raw, headers = await s.post("/v1/completions", body, **_bearer("ann-key"))
        assert (status, headers["retry-after"]) == (429, "1")
        assert b"requests open at once" in raw
        s.decode[0].gate.set()
        assert (await s.post("/v1/completions", body, **_bearer("bob-key")))[0] == 200
        assert (await running)[0] == 200
        assert (await s.post("/v1/completions", body, **_bearer("ann-key")))[0] == 200
        text = (await s.get("/metrics", **_bearer("bob-key")))[1].decode()
        assert 'baton_key_requests_total{key="ann",outcome="ok"} 2.0' in text
        assert 'baton_key_rejected_total{code="rate_limit_exceeded",key="ann"} 1.0' in text
        assert "ann-key" not in text
        assert all("ann-key" not in json.dumps(seen.headers) for seen in s.decode[0].seen)


async def test_a_caller_who_hangs_up_or_sends_nonsense_gives_his_place_back(file):
    """Every way out is counted."""
    file.write(ann={"max_concurrency": 1})
    async with stack(settings=BatonBlock(auth=file.settings)) as s:
        holder = s.app.keys.holders["ann"]
        s.prefill[0].always = Behave(delay_s=60)
        gone = asyncio.create_task(
            s.post("/v1/completions", {"prompt": LONG}, **_bearer("ann-key"))
        )
        await until(lambda: s.prefill[0].running == 1)
        gone.cancel()
        await until(lambda: holder.open == 0)
        for _ in range(3):
            status, _, _ = await s.post("/v1/completions", [], **_bearer("ann-key"))
            assert status == 400
        assert holder.open == 0


async def test_keys_change_without_a_restart(file, monkeypatch):
    """By looking at the file; a new key opens, an old one no longer does."""
    monkeypatch.setattr(auth, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(auth, "SETTLES_S", 0.01)
    file.write(ann={})
    async with stack(settings=BatonBlock(auth=file.settings)) as s:
        assert (await s.get("/v1/models", **_bearer("ann-key")))[0] == 200
        file.write(bob={})
        await until(lambda: "bob" in s.app.keys.holders)
        assert (await s.get("/v1/models", **_bearer("bob-key")))[0] == 200
        assert (await s.get("/v1/models", **_bearer("ann-key")))[0] == 401


async def test_a_key_that_is_removed_while_its_request_runs_lets_it_end(file):
    """The answer is whole, the next request is a 401; coming back is no way around a limit."""
    file.write(ann={"max_concurrency": 1}, bob={})
    async with stack(settings=BatonBlock(auth=file.settings)) as s:
        s.decode[0].gate = asyncio.Event()
        body = {"prompt": LONG, "stream": True}
        running = asyncio.create_task(s.post("/v1/completions", body, **_bearer("ann-key")))
        await until(lambda: s.app.admission.inflight == 1)
        file.write(bob={})
        assert await s.app.keys.reload()
        assert (await s.post("/v1/completions", body, **_bearer("ann-key")))[0] == 401
        file.write(ann={"max_concurrency": 1}, bob={})
        assert await s.app.keys.reload()
        # Still open: taking a key out and in again is no way around its limit.
        assert (await s.post("/v1/completions", body, **_bearer("ann-key")))[0] == 429
        s.decode[0].gate.set()
        status, raw, _ = await running
        assert status == 200
        assert raw.endswith(b"data: [DONE]\n\n")
        assert s.app.keys.holders["ann"].open == 0
        assert (await s.post("/v1/completions", body, **_bearer("ann-key")))[0] == 200


@pytest.mark.parametrize("text", ["keys: []", "keys:\n- {name: ann, key: ''}", "a: [", None])
async def test_a_broken_new_file_keeps_the_old_keys_and_says_so(file, caplog, text):
    """In the log and in the metrics; never open to everybody."""
    file.write(ann={})
    async with stack(settings=BatonBlock(auth=file.settings)) as s:
        if text is None:
            file.path.unlink()
        else:
            file.write_text(text)
        with caplog.at_level(logging.ERROR, "baton.gateway.auth"):
            assert not await s.app.keys.reload()
        assert "the old ones stay in use" in caplog.text
        assert (await s.get("/v1/models"))[0] == 401
        status, raw = await s.get("/metrics", **_bearer("ann-key"))
        assert status == 200
        assert b"baton_keys_stale 1.0" in raw
        assert b"baton_key_reload_failures_total 1.0" in raw
        file.write(ann={}, bob={})
        assert await s.app.keys.reload()
        assert b"baton_keys_stale 0.0" in (await s.get("/metrics", **_bearer("bob-key")))[1]


async def test_the_last_of_many_reloads_at_once_wins(file):
    """Two readers never finish in the wrong order."""
    file.write(k0={})
    keys = Keys.from_settings(file.settings, {})
    for round_ in range(20):
        file.write(**{f"k{round_}": {}})
        first = asyncio.create_task(keys.reload())
        await asyncio.sleep(0)
        file.write(**{f"k{round_}b": {}})
        await asyncio.gather(first, keys.reload(), keys.reload())
        assert keys.holder_of(f"Bearer k{round_}b-key".encode()).name == f"k{round_}b"
        assert list(keys.holders) == [f"k{round_}b"]


async def test_a_file_that_is_still_being_written_is_not_read(file, monkeypatch):
    """Half a file may hold, with half of the keys."""
    file.write(ann={}, bob={})
    keys = Keys.from_settings(file.settings, {})
    looks = iter([(1, 1, 1), (2, 2, 2), (2, 2, 2), (2, 2, 2)])
    reads = []

    async def reload():
        reads.append(keys._seen)
        keys._seen = (2, 2, 2)

    monkeypatch.setattr(auth, "LOOK_EVERY_S", 0)
    monkeypatch.setattr(auth, "SETTLES_S", 0)
    monkeypatch.setattr(auth, "_look", lambda _: next(looks, (2, 2, 2)))
    monkeypatch.setattr(keys, "reload", reload)
    keys.start()
    await until(lambda: reads)
    await keys.close()
    assert len(reads) == 1


async def test_the_series_of_a_key_go_with_it(file):
    """A new name a day does not fill the registry."""
    file.write(ann={}, bob={})
    async with stack(settings=BatonBlock(auth=file.settings)) as s:
        await s.post("/v1/completions", {"prompt": LONG}, **_bearer("ann-key"))
        assert b'key="ann"' in (await s.get("/metrics", **_bearer("bob-key")))[1]
        file.write(bob={})
        await s.app.keys.reload()
        assert b'key="ann"' not in (await s.get("/metrics", **_bearer("bob-key")))[1]


async def test_two_keys_share_the_places_evenly(file):
    """One with thirty requests waiting and one with two: the two are not last."""
    file.write(many={}, few={})
    settings = BatonBlock(
        auth=file.settings, admission=Limits(max_inflight=1, max_queue=64, queue_timeout_s=60)
    )
    async with stack(settings=settings) as s:
        s.decode[0].gate = asyncio.Event()
        order = []

        async def ask(name):
            assert (await s.post("/v1/completions", {"prompt": LONG}, **_bearer(f"{name}-key")))[
                0
            ] == 200
            order.append(name)

        tasks = [asyncio.create_task(ask("many")) for _ in range(30)]
        await until(lambda: s.app.admission.queued == 29)
        tasks += [asyncio.create_task(ask("few")) for _ in range(2)]
        await until(lambda: s.app.admission.queued == 31)
        s.decode[0].gate.set()
        await asyncio.gather(*tasks)
        assert max(n for n, name in enumerate(order) if name == "few") < 8
