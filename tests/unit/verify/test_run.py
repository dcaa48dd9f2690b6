"""A verification from end to end: simulated engines, a real gateway, HTTP between all."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from baton.errors import NotRunning, VerifyFailed
from baton.gateway.directory import FixedDirectory
from baton.spec.schema import BatonBlock
from baton.verify import measure
from baton.verify.deployment import Deployment
from baton.verify.evidence import Reason, Requirement, Verdict
from baton.verify.report import as_data, as_text
from baton.verify.run import verify
from tests.unit.gateway.fakes import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def deployed(
    *,
    prefill_tokens_per_s: float = 5_000.0,
    handoff_bytes_per_s: float = 1e9,
    settings: BatonBlock | None = None,
    **decode: Any,
) -> AsyncIterator[str]:
    """A simulated pair behind a gateway: its URL.

    Prefill makes 5 MB of KV a second and a gigabyte goes over, so that no noise turns that round.
    """
    latency = LatencyProfile(
        prefill_tokens_per_s=prefill_tokens_per_s,
        tpot_s=0,
        handoff_fixed_s=0,
        handoff_bytes_per_s=handoff_bytes_per_s,
    )
    common = {"latency": latency, "max_model_len": 1024, "secret": "s"}
    async with (
        SimulatedEngine(role="prefill", engine_id="p", kv_bytes_per_token=1000, **common) as p,
        SimulatedEngine(
            role="decode", engine_id="d", kv_bytes_per_token=1000, **common, **decode
        ) as d,
    ):
        directory = FixedDirectory([p.url], [d.url], "s", 30.0)
        async with serving(directory, settings) as (_, url):
            yield url


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROUNDS", 1)


async def test_everything_of_a_pair_is_gathered_and_judged() -> None:
    """Handoffs of every length, answers with and without P/D, and what engines say."""
    async with deployed() as url, Deployment(url) as deployment:
        found = await verify(deployment, Requirement())
    (evidence,) = found.evidence
    assert [one.way for one in evidence.handoffs] == ["pd"] * len(evidence.handoffs)
    assert {one.prompt_tokens for one in evidence.handoffs} == set(measure.lengths(1024))
    assert [check.name for check in evidence.checks] == [
        "short", "long", "repeated", "lengthened", "mid-char",
    ]  # fmt: skip
    assert all(check.same for check in evidence.checks), evidence.checks
    (verdict,) = found.verdicts
    assert verdict.outcome == "INCONCLUSIVE"  # simulated engines move no KV
    assert found.exit_status == 2
    assert verdict.numbers.needed_gb_per_s is not None
    assert "INCONCLUSIVE" in as_text(found)
    data = as_data(found)
    assert data["pairs"][0]["based_on"]["decode"]["facts"]["simulated"] is True


async def test_a_transfer_slower_than_prefill_fails() -> None:
    """Prefill makes a gigabyte of KV a second here, and 3 MB of them go over."""
    slow = deployed(prefill_tokens_per_s=1e6, handoff_bytes_per_s=3e6)
    async with slow as url, Deployment(url) as deployment:
        found = await verify(deployment, Requirement(), raw=False)
    assert found.exit_status == 1
    facts = [reason.fact for reason in found.verdicts[0].reasons if reason.weight == "fail"]
    assert any("slower than prefill makes KV" in fact for fact in facts), facts


async def test_a_handoff_that_fails_is_a_failure_with_its_reason() -> None:
    """The gateway would have helped the caller; the pair is broken all the same."""
    broken = deployed(prefill_tokens_per_s=1e6, faults=["fail_kv_load"])
    async with broken as url, Deployment(url) as deployment:
        found = await verify(deployment, Requirement(), raw=False)
    assert found.exit_status == 1
    facts = [reason.fact for reason in found.verdicts[0].reasons if reason.weight == "fail"]
    assert any("did not happen" in fact for fact in facts), facts


async def test_the_routes_are_behind_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the hint names the option."""
    monkeypatch.setenv("KEYS", "ann:secret")
    settings = BatonBlock.model_validate({"auth": {"api_keys_env": "KEYS"}})
    async with deployed(settings=settings) as url:
        async with Deployment(url) as closed:
            with pytest.raises(VerifyFailed) as caught:
                await closed.engines()
        async with Deployment(url + "/v1", "secret") as opened:
            assert len(await opened.engines()) == 2
    assert "--api-key-env" in str(caught.value.cure)


REFUSED: list[tuple[dict[str, Any], int]] = [
    ({}, 503),
    ({"decode": "nobody", "prefill": "nobody", "prompt": "x"}, 503),
    ({"decode": "$d", "prefill": "$p"}, 400),
    ({"decode": "$d", "prefill": "$p", "prompt": [1, "2"]}, 400),
    ({"decode": "$d", "prefill": "$p", "prompt": "x", "max_tokens": 9_999}, 400),
    ({"decode": "$d", "prefill": "$p", "prompt": "x", "kv_transfer_params": {}}, 400),
]


async def test_only_engines_prompts_and_tokens_can_be_asked_for() -> None:
    """Nobody names a host to read memory from."""
    async with deployed() as url, httpx.AsyncClient(base_url=url) as http:
        engines = (await http.get("/baton/engines")).json()["engines"]
        names = {f"${engine['role'][0]}": engine["replica_id"] for engine in engines}
        for asked, status in REFUSED:
            body = {key: names.get(v, v) if isinstance(v, str) else v for key, v in asked.items()}
            answer = await http.post("/baton/verify/handoff", json=body)
            assert answer.status_code == status, (asked, answer.text)
            assert answer.json()["error"]["message"]


async def test_nobody_there_is_said_so() -> None:
    """With the command that tells what runs."""
    async with Deployment("http://127.0.0.1:9") as deployment:
        with pytest.raises(NotRunning) as caught:
            await deployment.engines()
    assert "baton status" in str(caught.value.cure)


async def test_a_deployment_without_a_pair_cannot_be_verified() -> None:
    """It is no verdict, and exits as one that is open."""

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"engines": []})

    async with Deployment("http://x", transport=httpx.MockTransport(answer)) as deployment:
        with pytest.raises(VerifyFailed) as caught:
            await verify(deployment, Requirement())
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("console", [True, False])
async def test_a_gateway_with_a_console_is_told_what_came_out(console: bool) -> None:
    """And one without does not want to know, which is no fault of the verification."""
    settings = BatonBlock.model_validate({"console": {"enabled": console}})
    reason = Reason(weight="fail", fact="too slow", cure="another wire")
    async with deployed(settings=settings) as url, Deployment(url) as deployment:
        (prefill,) = [e.replica_id for role, e in await deployment.engines() if role == "prefill"]
        (decode,) = [e.replica_id for role, e in await deployment.engines() if role == "decode"]
        verdict = Verdict(prefill=prefill, decode=decode, outcome="FAIL", reasons=(reason,))
        assert await deployment.tell([verdict]) is console
        async with httpx.AsyncClient(base_url=url) as http:
            answer = await http.get("/baton/console")
    assert answer.status_code == (200 if console else 404)
    if console:
        (shown,) = answer.json()["verdicts"]
        assert (shown["outcome"], shown["reasons"][0]["fact"]) == ("FAIL", "too slow")
