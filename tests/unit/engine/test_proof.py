"""The engine's own paths beside vLLM's: evidence, and probes that are bounded."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from baton.engine import proof, transfer_probe
from baton.engine.guard import SECRET_HEADER, EngineGuard
from baton.engine.proof import MOST_OFFERS, Proof
from baton.engine.transfer_probe import ProbeFailed
from baton.spec.transfer import EngineFacts, WorkerFacts

WORKER = WorkerFacts(connector="NixlPullConnector", observed_backends=("UCX",), memory_type="DRAM")
CONFIG = SimpleNamespace(
    kv_transfer_config=SimpleNamespace(
        engine_id="p-1",
        kv_connector="NixlConnector",
        kv_connector_extra_config={"backends": ["LIBFABRIC"]},
    )
)


async def inner(scope: Any, receive: Any, send: Any) -> None:
    del receive
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


async def workers(method: str) -> list[Any]:
    assert method == "baton_transfer_facts"
    return [WORKER.model_dump()]


async def ask(
    app: Any, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, bytes]:
    """One request to an ASGI app."""
    sent: list[dict[str, Any]] = []
    raw = b"" if body is None else json.dumps(body).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    named = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    await app({"type": "http", "method": method, "path": path, "headers": named}, receive, send)
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])


async def test_evidence_is_what_the_workers_say_beside_what_was_asked_for() -> None:
    """Requested and observed stand side by side."""
    app = Proof(inner, workers, CONFIG, role="prefill", node="n1")
    status, raw = await ask(app, "GET", "/baton/evidence")
    facts = EngineFacts.model_validate_json(raw)
    assert status == 200
    assert (facts.role, facts.node, facts.engine_id) == ("prefill", "n1", "p-1")
    assert facts.requested_backends == ("LIBFABRIC",)
    assert facts.workers == (WORKER,)
    assert "python" in facts.versions


async def test_everything_else_is_vllms() -> None:
    """The wrapper touches no other path."""
    app = Proof(inner, workers, CONFIG)
    assert await ask(app, "POST", "/v1/completions") == (299, b"/v1/completions")


async def test_nobody_without_the_engine_secret_gets_here() -> None:
    """An offer names memory to read: only gateways may ask."""
    app = EngineGuard(Proof(inner, workers, CONFIG), "s3cret")
    assert (await ask(app, "GET", "/baton/evidence"))[0] == 401
    given = {SECRET_HEADER.replace("-", "_"): "s3cret"}
    assert (await ask(app, "GET", "/baton/evidence", **given))[0] == 200


async def test_workers_that_do_not_answer_are_a_503() -> None:
    """Such as an engine without the worker extension."""

    async def fail(_: str) -> list[Any]:
        raise RuntimeError("no such method")

    status, raw = await ask(Proof(inner, fail, CONFIG), "GET", "/baton/evidence")
    assert status == 503
    assert b"no such method" in raw


class FakeProbe:
    """Says what a probe would say."""

    alive = 0

    def __init__(self, part: str, backend: str, device: str) -> None:
        self.part, self.backend, self.device = part, backend, device

    async def begin(self, first_line: str | None = None) -> dict[str, Any]:
        if self.backend == "BROKEN":
            raise ProbeFailed("no plugin")
        FakeProbe.alive += 1
        return {"part": self.part, "given": first_line}

    def said(self) -> str:
        return "Created 2 rails using provider=tcp"

    async def end(self) -> None:
        FakeProbe.alive = max(0, FakeProbe.alive - 1)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> type[FakeProbe]:
    FakeProbe.alive = 0
    monkeypatch.setattr(proof, "Probe", FakeProbe)
    return FakeProbe


async def test_an_offer_lives_until_it_is_ended(probes: type[FakeProbe]) -> None:
    """And its NIXL log comes with it."""
    app = Proof(inner, workers, CONFIG)
    _, raw = await ask(app, "POST", "/baton/probe/offer", {"backend": "UCX"})
    offered = json.loads(raw)
    assert offered["nixl"]["provider"] == "tcp"
    assert probes.alive == 1
    status, _ = await ask(app, "POST", "/baton/probe/end", {"id": offered["id"]})
    assert (status, probes.alive) == (200, 0)


async def test_offers_are_bounded(probes: type[FakeProbe]) -> None:
    """Each is a process with memory of its own."""
    app = Proof(inner, workers, CONFIG)
    ids = []
    for _ in range(MOST_OFFERS):
        _, raw = await ask(app, "POST", "/baton/probe/offer", {"backend": "UCX"})
        ids.append(json.loads(raw)["id"])
    assert (await ask(app, "POST", "/baton/probe/offer", {"backend": "UCX"}))[0] == 502
    for name in ids:
        await ask(app, "POST", "/baton/probe/end", {"id": name})
    assert probes.alive == 0


async def test_a_probe_that_fails_says_why_and_leaves_its_place(probes: type[FakeProbe]) -> None:
    """A plugin that does not load is a finding, not a crash."""
    app = Proof(inner, workers, CONFIG)
    for _ in range(MOST_OFFERS + 1):
        status, raw = await ask(app, "POST", "/baton/probe/offer", {"backend": "BROKEN"})
        assert status == 502
        assert b"no plugin" in raw
    assert probes.alive == 0


async def test_a_reading_probe_gets_the_offer_and_is_ended(probes: type[FakeProbe]) -> None:
    """It lives for one answer."""
    app = Proof(inner, workers, CONFIG)
    asked = {"backend": "UCX", "offer": {"address": 7}}
    _, raw = await ask(app, "POST", "/baton/probe/read", asked)
    assert json.loads(json.loads(raw)["given"]) == {"address": 7}
    assert probes.alive == 0


async def test_a_probe_process_that_ends_without_a_word_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the end of what it wrote to stderr."""
    monkeypatch.setattr(transfer_probe.sys, "executable", "/bin/false")
    probe = transfer_probe.Probe("offer", "UCX", "cpu")
    with pytest.raises(ProbeFailed):
        await probe.begin()
    await probe.end()
