"""Engines' own metrics at one address, whatever some of them do."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families

from baton.engine.simulated import SimulatedEngine
from baton.gateway import federation
from baton.gateway.directory import FixedDirectory
from baton.spec.schema import Auth, BatonBlock
from tests.unit.gateway.fakes import Behave, serving, stack

PATH = "/baton/engines/metrics"


def read(raw: bytes) -> dict:
    return {f.name: f for f in text_string_to_metric_families(raw.decode())}


async def test_every_engine_is_on_the_page_under_its_role():
    """vLLM's names, with the labels that tell engines apart."""
    async with (
        SimulatedEngine(role="prefill", engine_id="p") as p,
        SimulatedEngine(role="decode", engine_id="d") as d,
        serving(FixedDirectory([p.url], [d.url], interval_s=30.0)) as (app, url),
    ):
        import aiohttp

        async with aiohttp.ClientSession() as session:
            raw = await (await session.get(url + PATH)).read()
        found = read(raw)
        running = found["vllm:num_requests_running"].samples
        assert {(s.labels["role"], s.labels["engine"]) for s in running} == {
            (e.role, e.replica_id) for e in app.directory.all_engines()
        }
        assert {s.labels["exported_engine"] for s in running} == {"0"}
        assert [s.value for s in found["baton_engine_scrape_up"].samples] == [1.0, 1.0]
        assert found["vllm:nixl_xfer_time_seconds"].type == "histogram"


async def test_an_engine_that_does_not_answer_costs_only_its_own_samples(monkeypatch):
    """It is late, answers an error, or with what is no page; the others are there."""
    monkeypatch.setattr(federation, "TIMEOUT_S", 0.3)
    async with stack(prefill=3, decode=1) as s:
        for engine in (*s.prefill, *s.decode):
            engine.page = b"# TYPE v gauge\nv 1\n"
        s.prefill[0].always = Behave(delay_s=60)
        s.prefill[1].always = Behave(status=500)
        s.prefill[2].page = None
        status, raw = await s.get(PATH)
        assert status == 200
        found = read(raw)
        assert [one.labels["engine"] for one in found["v"].samples] == [
            e.replica_id for e in s.app.directory.all_engines() if e.role == "decode"
        ]
        up = {x.labels["engine"]: x.value for x in found["baton_engine_scrape_up"].samples}
        assert sorted(up.values()) == [0.0, 0.0, 0.0, 1.0]


async def test_a_page_that_is_too_large_is_not_taken(monkeypatch):
    """One engine cannot fill the gateway's memory."""
    monkeypatch.setattr(federation, "MAX_BYTES", 1000)
    async with stack() as s:
        s.prefill[0].page = b"v 1\n" * 1000
        s.decode[0].page = b"v 1\n"
        found = read((await s.get(PATH))[1])
        assert len(found["v"].samples) == 1


async def test_callers_who_ask_together_cost_the_engines_one_request():
    """And one who hangs up takes nothing from the others."""
    async with stack() as s:
        for engine in (*s.prefill, *s.decode):
            engine.page = b"v 1\n"
            engine.always = Behave(delay_s=0.2)
        first = asyncio.create_task(s.get(PATH))
        others = [asyncio.create_task(s.get(PATH)) for _ in range(4)]
        await asyncio.sleep(0.05)
        first.cancel()
        pages = await asyncio.gather(*others)
        assert all(raw == pages[0][1] and b"\nv{" in raw for _, raw in pages)
        asked = [one for one in s.prefill[0].seen if one.path == "/metrics"]
        assert len(asked) == 1


async def test_the_page_asks_for_a_key_and_shows_the_engines_secret_to_engines_only(monkeypatch):
    """As the gateway's other pages do."""
    monkeypatch.setenv("KEYS", "ann-key")
    settings = BatonBlock(auth=Auth(api_keys_env="KEYS"))
    async with stack(settings=settings, engine_secret="s3cret") as s:
        s.decode[0].page = b"v 1\n"
        assert (await s.get(PATH))[0] == 401
        status, raw = await s.get(PATH, authorization="Bearer ann-key")
        assert (status, b"\nv{" in raw, b"s3cret" in raw) == (200, True, False)
