"""Versions that stand side by side in a rollout: who may hand KV to whom, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import aiohttp
import pytest

from baton.engine.simulated.server import SimulatedEngine
from baton.gateway.directory import FixedDirectory
from baton.gateway.generations import Generations, Watch, generation_of
from baton.gateway.links import _Link
from baton.spec.lease import EngineLease, TransferEvidence
from baton.spec.schema import BatonBlock, Disaggregate
from tests.unit.gateway.fakes import LONG, Behave, serving, stack, until


def _lease(name, role, version="1", **more):
    return EngineLease(
        replica_id=name, role=role, url="http://x:1", engine_id=name, model_id="m",
        vllm_version=version, **more,
    )  # fmt: skip


P_OLD, D_OLD = _lease("p-old", "prefill"), _lease("d-old", "decode")
P_NEW, D_NEW = _lease("p-new", "prefill", "2"), _lease("d-new", "decode", "2")


def test_engines_that_say_the_same_are_one_generation_and_nothing_is_filtered():
    """The very objects come back: a thousand engines cost a request nothing."""
    generations = Generations([P_OLD, D_OLD])
    assert not generations.mixed
    assert generations.finding() is None
    prefills = [P_OLD]
    assert generations.prefills(prefills, [D_OLD]) is prefills
    assert generations.like(prefills, generation_of(D_OLD)) is prefills


@pytest.mark.parametrize(
    "other",
    [
        {"version": "2"},
        {"baton_version": "2"},
        {"compatibility": "ab"},
        {"evidence": TransferEvidence(nixl_version="2")},
    ],
)
def test_any_version_that_differs_makes_another_generation(other):
    """vLLM, Baton, NIXL, the compatibility hash; silence beside a version differs, too."""
    other = _lease("d", "decode", **other)
    generations = Generations([P_OLD, other])
    assert generations.mixed
    assert generations.prefills([P_OLD], [other]) == []
    assert (generations.unpaired("prefill"), generations.unpaired("decode")) == (1, 1)


def test_prefill_goes_where_a_decode_engine_is_left_that_was_not_tried():
    """A request whose decode engine failed changes its generation, if it must."""
    generations = Generations([P_OLD, D_OLD, P_NEW, D_NEW])
    both = [P_OLD, P_NEW]
    assert generations.prefills(both, [D_OLD, D_NEW]) == both
    assert generations.prefills(both, [D_OLD, D_NEW], tried={"d-old"}) == [P_NEW]
    assert generations.prefills(both, [D_OLD], tried={"d-old"}) == [P_OLD]


def test_an_offer_of_a_generation_that_is_gone_fits_nobody():
    """Also when those that are left are all alike."""
    generations = Generations([P_NEW, D_NEW])
    assert list(generations.like([D_NEW], generation_of(P_OLD))) == []


def test_the_log_says_once_what_differs_where_and_what_to_do(caplog):
    """Not with every read, not when only counts change; and once when it is over."""
    watch = Watch()
    with caplog.at_level(logging.INFO, "baton"):
        watch.see(Generations([P_OLD, D_OLD]))
        for _ in range(3):
            watch.see(Generations([P_OLD, D_OLD, D_NEW]))
        watch.see(Generations([P_OLD, D_OLD, P_NEW, D_NEW]))
        watch.see(Generations([P_NEW, D_NEW]))
    warned, over = caplog.records
    assert warned.fact == "engines of different versions are up: vLLM 1 and 2"
    assert "1 prefill, 1 decode" in warned.place
    assert "rollout" in warned.cure
    assert over.levelno == logging.INFO


def test_a_hash_that_differs_alone_is_a_matter_of_configs():
    """Same versions, another model or dtype: no rollout will end that."""
    finding = Generations([P_OLD, _lease("d", "decode", compatibility="ab")]).finding()
    assert finding is not None
    assert "dtype" in finding.cure


@contextlib.asynccontextmanager
async def _rollout(**settings):
    """Two engines of each role: p0 and d0 old, p1 and d1 new."""
    block = BatonBlock(disaggregate=Disaggregate(mode="always"), **settings)
    async with stack(prefill=2, decode=2, settings=block) as s:
        for engine in (s.prefill[1], s.decode[1]):
            engine.version = "0.30.0"
        # The first look was before; an engine is asked for its version when it comes back.
        await _look_again(s)
        yield s


async def _look_again(s):
    for healthy in (False, True):
        for engine in (*s.prefill, *s.decode):
            engine.healthy = healthy and engine._runner is not None
        await s.app.directory._read()


def _pairs(s):
    return {pair for engine in s.decode for pair in engine.met}


async def test_with_both_generations_up_kv_goes_only_between_equals():
    """Both are used, none is lost, and no request falls back."""
    async with _rollout() as s:
        answers = await asyncio.gather(*(s.complete() for _ in range(40)))
        assert {(status, h["x-baton-route"]) for status, _, h in answers} == {(200, "pd")}
        assert not any("x-baton-fallback" in h for _, _, h in answers)
        assert _pairs(s) == {("0.29.0", "0.29.0"), ("0.30.0", "0.30.0")}
        await until(s.kv_is_free)


async def test_a_rollout_from_old_to_new_loses_no_request():
    """New prefill, new decode, old decode goes, old prefill goes: each state under load."""
    async with _rollout() as s:
        states = ["p0 d0", "p0 d0 p1", "p0 d0 p1 d1", "p0 p1 d1", "p1 d1"]
        for up in states:
            running = [asyncio.create_task(s.complete()) for _ in range(10)]
            streams = [asyncio.create_task(s.stream()) for _ in range(5)]
            for engine in (*s.prefill, *s.decode):
                engine.healthy = engine.name in up.split()
            await s.app.directory._read()
            running += [asyncio.create_task(s.complete()) for _ in range(10)]
            assert {status for status, _, _ in await asyncio.gather(*running)} == {200}
            assert all(raw.endswith(b"[DONE]\n\n") for raw, _ in await asyncio.gather(*streams))
        assert all(prefill == decode for prefill, decode in _pairs(s))
        await until(s.kv_is_free)


async def test_a_prefill_engine_without_a_partner_gets_nothing_and_decode_works_alone():
    """The header, the metrics, the state and the timeline say why."""
    async with _rollout() as s:
        s.prefill[0].healthy = s.decode[1].healthy = False  # new prefill, old decode
        await s.app.directory._read()
        status, answer, headers = await s.complete()
        assert (status, answer["engine"]) == (200, "d0")
        assert headers["x-baton-fallback"] == "mixed_versions"
        assert s.prefill[1].generated == []
        page = (await s.get("/metrics"))[1].decode()
        assert "baton_engine_generations 2.0" in page
        assert 'baton_unpaired_engines{role="prefill"} 1.0' in page
        assert 'baton_fallbacks_total{kind="mixed_versions"} 1.0' in page
        state = json.loads((await s.get("/baton/engines"))[1])
        assert state["mixed_versions"]["fact"].endswith("vLLM 0.29.0 and 0.30.0")
        assert set(state["mixed_versions"]) == {"fact", "place", "cure"}
        assert [each["paired"] for each in state["generations"]] == [False, False]
        tags = {each["generation"] for each in state["generations"]}
        assert {engine["generation"] for engine in state["engines"]} >= tags


async def test_an_offer_whose_generation_left_meanwhile_is_given_up_and_the_kv_freed():
    """Prefill had answered when the last decode engine of its version went."""
    async with _rollout() as s:
        s.prefill[1].healthy = False
        await s.app.directory._read()
        s.prefill[0].always = Behave(delay_s=0.2)
        running = asyncio.create_task(s.complete())
        await until(lambda: s.prefill[0].generated)
        s.decode[0].healthy = False
        await s.app.directory._read()
        status, answer, headers = await running
        assert (status, answer["engine"]) == (200, "d1")
        assert headers["x-baton-fallback"] == "mixed_versions"
        assert _pairs(s) == set()
        await until(s.kv_is_free)


async def test_a_decode_engine_that_fails_is_replaced_by_one_of_the_other_generation():
    """With a prefill of that generation before it."""
    async with _rollout() as s:
        s.decode[0].always = Behave(status=500)
        answers = [await s.complete() for _ in range(6)]
        assert {status for status, _, _ in answers} == {200}
        assert {a["engine"] for _, a, _ in answers} == {"d1"}
        assert all(prefill == decode for prefill, decode in _pairs(s))
        await until(s.kv_is_free)


async def test_a_prefill_engine_that_is_slow_with_all_it_may_be_paired_with_is_gone_around():
    """That it has never handed KV to engines of another version does not make it fast."""
    async with _rollout() as s:
        slow, links = (s.prefill[0].url, s.decode[0].url), s.app.links
        links._links[slow] = _Link(slow=True, retry_at=float("inf"))
        links._slow.add(slow)
        links._aside = frozenset({slow})
        links._looked_at = float("inf")  # nothing is known of the other pair
        for _ in range(6):
            await s.complete()
        assert s.prefill[0].generated == []
        assert _pairs(s) == {("0.30.0", "0.30.0")}


async def test_simulated_engines_of_two_versions_which_refuse_each_other_serve_side_by_side():
    """Their handshake would fail a mixed pair; a fixed list learns versions from `/version`."""
    async with contextlib.AsyncExitStack() as running:
        engines = {
            (role, version): await running.enter_async_context(
                SimulatedEngine(role=role, engine_id=f"{role}-{version}", vllm_version=version)
            )
            for role in ("prefill", "decode")
            for version in ("0.29.0", "0.30.0")
        }
        directory = FixedDirectory(
            [e.url for (role, _), e in engines.items() if role == "prefill"],
            [e.url for (role, _), e in engines.items() if role == "decode"],
            interval_s=30.0,
        )
        block = BatonBlock(disaggregate=Disaggregate(mode="always"))
        _, url = await running.enter_async_context(serving(directory, block))
        session = await running.enter_async_context(aiohttp.ClientSession())
        body = {"model": "simulated", "prompt": LONG, "max_tokens": 4}
        for _ in range(12):
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                assert answer.status == 200
                assert answer.headers["x-baton-route"] == "pd"
        assert [m.paired for m in directory.generations.members] == [True, True]
        for (role, _), engine in engines.items():
            assert engine.core.counts.prompt_tokens.total() > 0, role
