"""The scripted first run says yes only to an endpoint that does what Baton claims."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
import yaml

from baton.demo import run as run_module
from baton.demo.file import EXAMPLE_FOLDER, MODEL_ID, NAME, demo_file
from baton.demo.run import Show, curl_line, long_prompt, run
from baton.engine.simulated import SimulatedEngine
from baton.errors import DemoFailed
from baton.gateway.app import build_gateway_app
from baton.gateway.directory import FixedDirectory
from baton.spec.lease import DirectorySnapshot, EngineLease, TransferEvidence
from baton.spec.schema import BatonBlock
from tests.unit.gateway.fakes import until

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET = "engine-secret"
STAGES = {"admit_s": 0.001, "route_s": 0.0001, "prefill_s": 0.2, "handoff_s": 0.1, "decode_s": 0.5}


def snapshot(decode_url: str) -> DirectorySnapshot:
    def lease(role: Any, url: str) -> EngineLease:
        return EngineLease(
            replica_id=f"{role}-1",
            role=role,
            url=url,
            engine_id=f"engine-{role}",
            model_id="m",
            evidence=TransferEvidence(observed_backends=("UCX",)),
        )

    return DirectorySnapshot(
        engines=(lease("prefill", "http://nowhere"), lease("decode", decode_url)),
        engine_secret=SECRET,
    )


@dataclass
class Up:
    """A deployment as the demo sees it."""

    endpoint: str
    model_id: str
    seen: DirectorySnapshot

    def engines(self) -> DirectorySnapshot:
        return self.seen


@dataclass
class FakeEndpoint:
    """Gateway and decode engine as one httpx transport; what differs from right is a field."""

    listed: tuple[str, ...] = ("m",)
    text_by_pd: str = "one two three four"
    text_alone: str = "one two three four"
    route: str = "pd"
    fallback: str | None = None
    stages: dict[str, float] = field(default_factory=lambda: dict(STAGES))
    bytes_a_transfer: float = 4096.0
    failed: int = 0
    status: int = 200
    prompt_tokens: int = 1500
    events: Callable[[list[str]], list[str]] = lambda lines: lines
    transfers: int = 7
    requests: list[tuple[str, dict[str, Any], dict[str, str]]] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        headers = dict(request.headers)
        if request.url.path == "/metrics":
            if headers.get("x-baton-engine-secret") != SECRET:
                return httpx.Response(401, json={"error": {"message": "no secret"}})
            return httpx.Response(200, text=self.metrics())
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": name} for name in self.listed]})
        body = json.loads(request.content)
        self.requests.append((request.url.path, body, headers))
        if self.status != 200:
            return httpx.Response(self.status, json={"error": {"message": "no engine"}})
        by_pd = headers["x-baton-disaggregate"] == "always"
        if by_pd:
            self.transfers += 1
        way = {
            "x-baton-route": self.route if by_pd else "decode_only",
            "x-baton-decode-engine": "decode-1",
        }
        if by_pd and self.fallback:
            way["x-baton-fallback"] = self.fallback
        text = self.text_by_pd if by_pd else self.text_alone
        return httpx.Response(200, headers=way, text=self.stream(request.url.path, text))

    def stream(self, path: str, text: str) -> str:
        def event(piece: str) -> str:
            chat = path.endswith("chat/completions")
            choice = {"delta": {"content": piece}} if chat else {"text": piece}
            return "data: " + json.dumps({"choices": [choice]})

        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": 4}
        lines = [event(piece + " ") for piece in text.split()]
        lines += ["data: " + json.dumps({"choices": [], "usage": usage})]
        lines += [": baton-timing " + json.dumps({"stages": self.stages}), "data: [DONE]"]
        return "\n\n".join(self.events(lines)) + "\n\n"

    def metrics(self) -> str:
        labels = '{engine="0",model_name="m"}'
        total = self.transfers * self.bytes_a_transfer
        return (
            "# TYPE vllm:nixl_bytes_transferred histogram\n"
            f'vllm:nixl_bytes_transferred_bucket{{engine="0",le="+Inf"}} {self.transfers}\n'
            f"vllm:nixl_bytes_transferred_count{labels} {self.transfers}\n"
            f"vllm:nixl_bytes_transferred_sum{labels} {total}\n"
            "# TYPE vllm:nixl_xfer_time_seconds histogram\n"
            f"vllm:nixl_xfer_time_seconds_count{labels} {self.transfers}\n"
            f"vllm:nixl_xfer_time_seconds_sum{labels} {self.transfers * 0.25}\n"
            "# TYPE vllm:nixl_num_failed_transfers counter\n"
            f"vllm:nixl_num_failed_transfers_total{labels} {self.failed * self.transfers}\n"
        )

    def run(self, show: Show | None = None) -> run_module.DemoResult:
        client = httpx.Client(transport=httpx.MockTransport(self), base_url="http://demo")
        up = Up("http://demo", "m", snapshot("http://decode"))
        return run(up, started_at=time.monotonic(), show=show, client=client)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "METRICS_WAIT_S", 0.0)


def failed_claims(result: run_module.DemoResult) -> list[str]:
    return [check.claim for check in result.checks if not check.held]


def test_a_right_endpoint_holds_every_check() -> None:
    """And the result has what was measured between the two readings of the engine's counters."""
    result = FakeEndpoint().run()
    assert failed_claims(result) == []
    assert result.held
    assert result.answer == "one two three four "
    assert result.kv_transfer == run_module.KvTransfer(bytes=4096, seconds=0.25, backend="UCX")
    assert result.timeline == STAGES


def test_json_has_exactly_the_published_keys() -> None:
    """Scripts read it; the checks are for people."""
    data = FakeEndpoint().run().as_data()
    assert list(data) == [
        "answer", "same_answer", "ttft_s", "start_to_first_token_s", "timeline", "kv_transfer",
        "endpoint",
    ]  # fmt: skip
    assert list(data["kv_transfer"]) == ["bytes", "seconds", "backend"]
    json.dumps(data)


@pytest.mark.parametrize(
    ("endpoint", "claim"),
    [
        (FakeEndpoint(text_alone="one two three five"), "greedy answer is the same without P/D"),
        (FakeEndpoint(listed=("other",)), "the model is listed"),
        (FakeEndpoint(route="decode_only"), "the chat went through both engines"),
        (FakeEndpoint(fallback="prefill_failed"), "the long prompt went through both engines"),
        (FakeEndpoint(bytes_a_transfer=0), "KV crossed to the decode engine"),
        (FakeEndpoint(failed=1), "no KV transfer failed"),
        (FakeEndpoint(prompt_tokens=12), "the long prompt is long"),
        (FakeEndpoint(stages={"admit_s": 0.1}), "the timeline has every stage"),
        (FakeEndpoint(text_by_pd="one", text_alone="one"), "text came piece by piece"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_does_not_hold_is_a_failed_check(endpoint: FakeEndpoint, claim: str) -> None:
    """The run goes on to its end, and does not call itself held."""
    result = endpoint.run()
    assert any(claim in failed for failed in failed_claims(result)), failed_claims(result)
    assert not result.held


def test_a_missing_backend_is_not_taken_for_one() -> None:
    """ "Unknown" never passes: without evidence from the worker the check fails."""
    endpoint = FakeEndpoint()
    seen = snapshot("http://decode")
    bare = tuple(e.model_copy(update={"evidence": TransferEvidence()}) for e in seen.engines)
    client = httpx.Client(transport=httpx.MockTransport(endpoint), base_url="http://demo")
    up = Up("http://demo", "m", seen.model_copy(update={"engines": bare}))
    assert failed_claims(run(up, started_at=0.0, client=client)) == ["NIXL created a backend"]


def test_no_two_requests_share_a_prefix_cache() -> None:
    """With and without P/D have different salts, and another run has others."""
    endpoint = FakeEndpoint()
    endpoint.run()
    salts = {headers["x-baton-disaggregate"]: set() for _, _, headers in endpoint.requests}
    for _, body, headers in endpoint.requests:
        salts[headers["x-baton-disaggregate"]].add(body["cache_salt"])
    assert salts["always"].isdisjoint(salts["never"])
    first_run = salts["always"] | salts["never"]
    endpoint.requests.clear()
    endpoint.run()
    assert first_run.isdisjoint({body["cache_salt"] for _, body, _ in endpoint.requests})


def test_the_comparison_asks_the_same_thing() -> None:
    """Apart from the salt, both requests of a pair are equal, and greedy."""
    endpoint = FakeEndpoint()
    endpoint.run()
    bodies = [
        (path, {key: value for key, value in body.items() if key != "cache_salt"})
        for path, body, _ in endpoint.requests
    ]
    assert bodies[:2] == bodies[2:]
    assert all(body["temperature"] == 0 for _, body in bodies)


def test_text_is_shown_as_it_comes() -> None:
    """Piece by piece, for the chat and the long prompt, not for the comparison."""
    pieces: list[str] = []
    FakeEndpoint().run(Show(text=pieces.append))
    assert pieces == ["one ", "two ", "three ", "four "] * 2


@pytest.mark.parametrize(
    ("endpoint", "fact"),
    [
        (FakeEndpoint(status=503), "HTTP 503: no engine"),
        (FakeEndpoint(events=lambda lines: lines[:-1]), r"before \[DONE\]"),
        (FakeEndpoint(events=lambda lines: lines[-1:]), "without any text"),
        (
            FakeEndpoint(events=lambda _: ['data: {"error": {"message": "it broke off"}}']),
            "ended in an error: it broke off",
        ),
        (FakeEndpoint(events=lambda _: ["data: {nonsense"]), "not OpenAI-shaped"),
        (FakeEndpoint(events=lambda _: ["data: []"]), "not OpenAI-shaped"),
    ],
    ids=["status", "no-done", "no-text", "error-event", "no-json", "no-object"],
)
def test_an_answer_that_is_none_ends_the_run(endpoint: FakeEndpoint, fact: str) -> None:
    """One line, with the place; there is nothing to compare."""
    with pytest.raises(DemoFailed, match=fact):
        endpoint.run()


def test_an_endpoint_that_is_gone_ends_the_run() -> None:
    """Not a traceback of the HTTP client's."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused")

    client = httpx.Client(transport=httpx.MockTransport(refuse), base_url="http://demo")
    with pytest.raises(DemoFailed, match="ConnectError") as caught:
        run(Up("http://demo", "m", snapshot("http://d")), started_at=0.0, client=client)
    assert caught.value.place == "http://demo/v1/models"


async def test_the_script_holds_against_the_real_gateway_and_simulated_engines() -> None:
    """What the fake endpoint imitates is what the gateway does: headers, comment, counters."""
    async with (
        SimulatedEngine(role="prefill", engine_id="p0", secret=SECRET) as prefill,
        SimulatedEngine(role="decode", engine_id="d0", secret=SECRET) as decode,
    ):
        directory = FixedDirectory([prefill.url], [decode.url], SECRET)
        app = build_gateway_app(BatonBlock(), directory)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none"))
        serving = asyncio.create_task(server.serve())
        try:
            await until(lambda: server.started)
            port = server.servers[0].sockets[0].getsockname()[1]
            up = Up(f"http://127.0.0.1:{port}", "simulated", snapshot(decode.url))
            result = await asyncio.to_thread(run, up, started_at=time.monotonic())
        finally:
            server.should_exit = True
            await serving
    # The simulated engine's token is a byte; everything else is to hold.
    assert failed_claims(result) == []
    assert result.kv_transfer.bytes > 0


def test_the_demos_file_is_the_example() -> None:
    """One file, shipped twice: in the package, and where people look for it."""
    example = Path(__file__).parents[3] / "examples" / "01-laptop-1p1d" / "app.yaml"
    carried = Path(run_module.__file__).with_name("app.yaml")
    assert carried.read_text() == example.read_text()


def test_the_model_folder_of_the_cache_is_put_into_both_roles(tmp_path: Path) -> None:
    """Also one with a blank or a colon in its name."""
    folder = tmp_path / "my models: gemma"
    text = demo_file(folder)
    assert EXAMPLE_FOLDER not in text
    app = yaml.safe_load(text)["applications"][0]
    assert app["name"] == NAME
    for role in ("prefill_config", "decode_config"):
        loading = app["args"][role]["model_loading_config"]
        assert loading == {"model_id": MODEL_ID, "model_source": str(folder)}


def test_every_paragraph_of_the_long_prompt_differs() -> None:
    """So that no two blocks of its KV are alike."""
    paragraphs = long_prompt().split("\n\n")[1:-1]
    assert len(paragraphs) == len(set(paragraphs)) == 18


def test_the_curl_line_is_one_that_a_shell_takes() -> None:
    """The body in single quotes is JSON, and nothing in it ends the quotes."""
    line = curl_line("http://127.0.0.1:8000", "m")
    body = line.partition("-d '")[2].removesuffix("'")
    assert "'" not in body
    assert json.loads(body)["model"] == "m"
