"""The scripted first run: what a newcomer should have seen once, checked as it goes.

Against an endpoint that is already up, in this order:

1. the models are listed;
2. a chat completion is streamed, its text shown as it comes;
3. a prompt of about 1,500 tokens goes the whole way, and the bytes that the decode engine pulled
   meanwhile are read from its own NIXL counters;
4. both are asked again with P/D off, on the same decode engine, and the greedy answers must be
   equal. Each request has a `cache_salt` of its own, which keeps vLLM's prefix cache out of it:
   without that, the second answer would be made from the KV that came over for the first one, and
   the comparison would prove nothing.

Whatever does not hold is a `Check` that failed; nothing is repaired and nothing is left out.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import httpx

from baton.demo.endpoint import Answer, TransferCounts, models, stream, transfer_counts
from baton.errors import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.spec.lease import DirectorySnapshot, EngineLease

REQUEST_TIMEOUT_S = 180.0
METRICS_WAIT_S = 10.0
METRICS_POLL_S = 0.2
CHAT_TOKENS = 32
LONG_TOKENS = 16
PD_STAGES = ("admit_s", "route_s", "prefill_s", "handoff_s", "decode_s")
QUESTION = "What is a relay race?"
MIN_LONG_TOKENS = 1_000


class Deployment(Protocol):
    """What the demo needs to know of a deployment that is up."""

    @property
    def endpoint(self) -> str:
        """The base URL, without `/v1`."""
        ...

    @property
    def model_id(self) -> str:
        """The model that was deployed."""
        ...

    def engines(self) -> DirectorySnapshot:
        """The leases that are alive, and the secret that opens the engines' ports."""
        ...


@dataclass(frozen=True)
class Show:
    """Where the demo shows what it does; the command line prints."""

    step: Callable[[str], None] = lambda _: None
    text: Callable[[str], None] = lambda _: None
    fact: Callable[[str, str], None] = lambda _name, _value: None


@dataclass(frozen=True)
class Check:
    """One claim, whether it held, and what was seen."""

    claim: str
    held: bool
    seen: str = ""


@dataclass(frozen=True)
class KvTransfer:
    """The KV of the long prompt. `seconds` is NIXL's own time, without waiting and setting up."""

    bytes: int
    seconds: float
    backend: str


@dataclass(frozen=True)
class DemoResult:
    """What was measured. All but `start_to_first_token_s` is the long prompt's."""

    answer: str
    same_answer: bool
    ttft_s: float
    start_to_first_token_s: float
    timeline: dict[str, float]
    kv_transfer: KvTransfer
    endpoint: str
    checks: tuple[Check, ...] = field(default=())

    @property
    def held(self) -> bool:
        """Whether every check held."""
        return all(check.held for check in self.checks)

    def as_data(self) -> dict[str, Any]:
        """What `--json` writes."""
        data = asdict(self)
        del data["checks"]
        return data


def run(
    deployment: Deployment,
    *,
    started_at: float,
    show: Show | None = None,
    client: httpx.Client | None = None,
) -> DemoResult:
    """Go through the script.

    Args:
        deployment: An endpoint that is up.
        started_at: When the deployment was started, on the clock of `time.monotonic`.
        show: Where progress goes.
        client: For tests; by default one for the endpoint.

    Returns:
        The measurements and every check, held or not.

    Raises:
        DemoFailed: when a request gets no answer at all, so that nothing can be compared.
    """
    show = show or Show()
    with client or httpx.Client(
        base_url=deployment.endpoint, timeout=REQUEST_TIMEOUT_S, trust_env=False
    ) as http:
        return _Script(deployment, http, show).run(started_at)


class _Script:
    def __init__(self, deployment: Deployment, client: httpx.Client, show: Show) -> None:
        self._deployment = deployment
        self._client = client
        self._show = show
        self._checks: list[Check] = []
        self._nonce = uuid.uuid4().hex

    def run(self, started_at: float) -> DemoResult:
        model = self._deployment.model_id
        self._show.step("models")
        listed = models(self._client)
        self._show.fact("models", ", ".join(listed))
        self._check("the model is listed", model in listed, f"{model} of {listed}")

        chat_body = {
            "model": model,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": CHAT_TOKENS,
            "temperature": 0,
        }
        self._show.step(f"chat, streamed: {QUESTION}")
        chat = self._ask("/v1/chat/completions", chat_body, on_text=self._show.text)
        start_to_first_token_s = chat.first_text_at - started_at
        self._went_by_pd("chat", chat)
        self._check("the chat's text came piece by piece", chat.chunks > 1, f"{chat.chunks} pieces")
        self._show.fact("start to first token", f"{start_to_first_token_s:.1f} s")

        long_body = {
            "model": model, "prompt": long_prompt(), "max_tokens": LONG_TOKENS, "temperature": 0,
        }  # fmt: skip
        self._show.step("a prompt of about 1,500 tokens")
        before = self._counts_of_all()
        long = self._ask("/v1/completions", long_body, on_text=self._show.text)
        self._went_by_pd("long prompt", long)
        self._check(
            "the long prompt is long",
            long.prompt_tokens >= MIN_LONG_TOKENS,
            f"{long.prompt_tokens} tokens",
        )
        transfer = self._transfer(before, long)
        timeline = {stage: s for stage, s in long.stages.items() if stage in PD_STAGES}
        missing = [stage for stage in PD_STAGES if stage not in timeline]
        self._check("the timeline has every stage", not missing, f"missing: {missing}")
        self._show_long(long, timeline, transfer)

        self._show.step("both again on the decode engine alone, prefix cache kept out")
        same = self._same("chat", chat, "/v1/chat/completions", chat_body)
        same = self._same("long prompt", long, "/v1/completions", long_body) and same
        self._show.fact("same answers as without P/D", "yes" if same else "NO")
        return DemoResult(
            answer=long.text,
            same_answer=same,
            ttft_s=round(long.ttft_s, 4),
            start_to_first_token_s=round(start_to_first_token_s, 2),
            timeline=timeline,
            kv_transfer=transfer,
            endpoint=self._deployment.endpoint,
            checks=tuple(self._checks),
        )

    def _ask(
        self,
        path: str,
        body: dict[str, Any],
        *,
        disaggregate: bool = True,
        on_text: Callable[[str], None] = lambda _: None,
    ) -> Answer:
        way = "pd" if disaggregate else "alone"
        salted = {**body, "cache_salt": f"demo-{way}-{self._nonce}"}
        return stream(self._client, path, salted, disaggregate=disaggregate, on_text=on_text)

    def _check(self, claim: str, held: bool, seen: str) -> None:
        self._checks.append(Check(claim, held, seen))

    def _went_by_pd(self, name: str, answer: Answer) -> None:
        self._check(
            f"the {name} went through both engines",
            answer.route == "pd" and answer.fallback is None,
            f"route {answer.route}, fallback {answer.fallback}",
        )

    def _same(self, name: str, by_pd: Answer, path: str, body: dict[str, Any]) -> bool:
        alone = self._ask(path, body, disaggregate=False)
        self._check(
            f"the {name}'s second answer came from the decode engine alone",
            alone.route == "decode_only" and alone.decode_engine == by_pd.decode_engine,
            f"route {alone.route}, engines {by_pd.decode_engine} and {alone.decode_engine}",
        )
        same = alone.text == by_pd.text
        self._check(
            f"the {name}'s greedy answer is the same without P/D",
            same,
            f"{by_pd.text!r} and {alone.text!r}",
        )
        return same

    def _counts_of_all(self) -> dict[str, TransferCounts]:
        snapshot = self._deployment.engines()
        return {
            engine.replica_id: transfer_counts(self._client, engine, snapshot.engine_secret)
            for engine in snapshot.engines
            if engine.role == "decode"
        }

    def _transfer(self, before: dict[str, TransferCounts], long: Answer) -> KvTransfer:
        snapshot = self._deployment.engines()
        engine = _serving(snapshot, long)
        earlier = before.get(engine.replica_id, TransferCounts())
        # The worker's counts reach /metrics with a later step of the engine.
        deadline = time.monotonic() + METRICS_WAIT_S
        while True:
            now = transfer_counts(self._client, engine, snapshot.engine_secret).since(earlier)
            if now.transfers > 0 or time.monotonic() > deadline:
                break
            time.sleep(METRICS_POLL_S)
        backend = "+".join(engine.evidence.observed_backends)
        self._check("KV crossed to the decode engine", now.bytes > 0, f"{now.bytes:.0f} bytes")
        self._check("no KV transfer failed", now.failed == 0, f"{now.failed} failed")
        self._check("NIXL created a backend", bool(backend), backend or "none was observed")
        return KvTransfer(bytes=int(now.bytes), seconds=round(now.seconds, 6), backend=backend)

    def _show_long(self, long: Answer, timeline: dict[str, float], transfer: KvTransfer) -> None:
        fact = self._show.fact
        fact("prompt", f"{long.prompt_tokens} tokens")
        inside = long.gateway_ttft_s
        within = "" if inside is None else f", {inside:.2f} s of it from gateway to engines"
        fact("first token after", f"{long.ttft_s:.2f} s{within}")
        stages = "  ".join(f"{name[:-2]} {seconds:.4f}" for name, seconds in timeline.items())
        fact("timeline, s", stages)
        fact(
            "KV handed over",
            f"{transfer.bytes:,} bytes in {transfer.seconds:.3f} s by NIXL's {transfer.backend}",
        )


def _serving(snapshot: DirectorySnapshot, answer: Answer) -> EngineLease:
    """The decode engine that gave an answer: the one it names, or the only one."""
    engines = [engine for engine in snapshot.engines if engine.role == "decode"]
    named = [
        engine
        for engine in engines
        if answer.decode_engine in {engine.replica_id, engine.engine_id, engine.url}
    ]
    chosen = named or (engines if len(engines) == 1 else [])
    if not chosen:
        raise DemoFailed(f"no decode engine of the directory is called {answer.decode_engine!r}")
    return chosen[0]


_SCENES = (
    "The runner at the first bend keeps her eyes on the line and counts the steps to the mark.",
    "Behind her the crowd has gone quiet, and only the gravel under the shoes can be heard.",
    "She knows that whoever waits at the exchange cannot see her, and must trust the rhythm alone.",
    "One hand reaches back, the other reaches forward, and for a moment two people hold one thing.",
)


def long_prompt() -> str:
    """About 1,500 tokens of English in which every paragraph differs from the one before."""
    paragraphs = [
        f"Lap {number}. " + " ".join(_SCENES[(number + turn) % len(_SCENES)] for turn in range(4))
        for number in range(1, 19)
    ]
    return "A report from the relay.\n\n" + "\n\n".join(paragraphs) + "\n\nIn short, the race"


def curl_line(endpoint: str, model_id: str) -> str:
    """What to paste into a shell to try it oneself."""
    body = json.dumps({
        "model": model_id,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": CHAT_TOKENS,
        "stream": True,
    })  # fmt: skip
    return f"curl -N {endpoint}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"
