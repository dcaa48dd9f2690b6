"""What the demo asks of the endpoint and of the engines behind it, over HTTP.

Nothing here judges: `run.py` does. Every failure to get an answer is a `DemoFailed` with the place.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from baton.errors import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.spec.lease import EngineLease

TIMING_COMMENT = ": baton-timing "
# vLLM 0.29, distributed/kv_transfer/kv_connector/v1/nixl/stats.py: histograms, one sample a
# transfer, bytes and seconds (transfers are counted on the engine that pulls, which is decode).
BYTES = "vllm:nixl_bytes_transferred"
SECONDS = "vllm:nixl_xfer_time_seconds"
FAILED = "vllm:nixl_num_failed_transfers"


@dataclass(frozen=True)
class Answer:
    """A streamed answer, and what the gateway said about its way."""

    text: str
    chunks: int
    """Events that carried text."""
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float
    """Request sent → first text, at the caller."""
    first_text_at: float
    """The same moment on the clock of `time.monotonic`."""
    route: str | None
    fallback: str | None
    prefill_engine: str | None
    decode_engine: str | None
    stages: dict[str, float] = field(default_factory=dict)
    gateway_ttft_s: float | None = None
    """Request received → first byte, at the gateway: without the edge and the way to it."""


@dataclass(frozen=True)
class TransferCounts:
    """What an engine has counted since it started."""

    bytes: float = 0.0
    seconds: float = 0.0
    transfers: int = 0
    failed: int = 0

    def since(self, earlier: TransferCounts) -> TransferCounts:
        """The difference."""
        return TransferCounts(
            bytes=self.bytes - earlier.bytes,
            seconds=self.seconds - earlier.seconds,
            transfers=self.transfers - earlier.transfers,
            failed=self.failed - earlier.failed,
        )


def models(client: httpx.Client) -> list[str]:
    """The ids that `/v1/models` lists."""
    with _said(client, "/v1/models"):
        answer = client.get("/v1/models")
        _must_be_ok(answer)
        return [str(card["id"]) for card in answer.json()["data"]]


def stream(
    client: httpx.Client,
    path: str,
    body: dict[str, Any],
    *,
    disaggregate: bool,
    on_text: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Send a request, read its stream to the end.

    Args:
        client: Has the endpoint as its base URL.
        path: `/v1/chat/completions` or `/v1/completions`.
        body: Without `stream`.
        disaggregate: Through both engines, or on the decode engine alone.
        on_text: Gets each piece of text when it comes.

    Raises:
        DemoFailed: no 200, an error event, or a stream that breaks off.
    """
    headers = {
        "x-baton-timing": "1",
        "x-baton-disaggregate": "always" if disaggregate else "never",
    }
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    reader = _Reader(on_text)
    sent_at = time.monotonic()
    with (
        _said(client, path),
        client.stream("POST", path, json=body, headers=headers) as answer,
    ):
        if answer.status_code != httpx.codes.OK:
            answer.read()
            _must_be_ok(answer)
        for line in answer.iter_lines():
            reader.feed(line)
    if not reader.ended or reader.first_text_at is None:
        what = "without any text" if reader.ended else "before [DONE]"
        raise DemoFailed(f"the stream ended {what}", place=f"{client.base_url}{path}")
    return Answer(
        text="".join(reader.pieces),
        chunks=len(reader.pieces),
        prompt_tokens=reader.prompt_tokens,
        completion_tokens=reader.completion_tokens,
        ttft_s=reader.first_text_at - sent_at,
        first_text_at=reader.first_text_at,
        route=answer.headers.get("x-baton-route"),
        fallback=answer.headers.get("x-baton-fallback"),
        prefill_engine=answer.headers.get("x-baton-prefill-engine"),
        decode_engine=answer.headers.get("x-baton-decode-engine"),
        stages=reader.stages,
        gateway_ttft_s=reader.gateway_ttft_s,
    )


class _Reader:
    """Takes an SSE stream apart, line by line."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self.pieces: list[str] = []
        self.first_text_at: float | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.stages: dict[str, float] = {}
        self.gateway_ttft_s: float | None = None
        self.ended = False

    def feed(self, line: str) -> None:
        if line.startswith(TIMING_COMMENT):
            timeline = json.loads(line.removeprefix(TIMING_COMMENT))
            self.stages = timeline["stages"]
            self.gateway_ttft_s = timeline.get("ttft_s")
        elif line == "data: [DONE]":
            self.ended = True
        elif line.startswith("data: "):
            self._event(json.loads(line.removeprefix("data: ")))

    def _event(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise DemoFailed(f"the stream ended in an error: {event['error'].get('message')}")
        usage = event.get("usage") or {}
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
        self.completion_tokens = usage.get("completion_tokens", self.completion_tokens)
        for choice in event.get("choices", ()):
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if text:
                if self.first_text_at is None:
                    self.first_text_at = time.monotonic()
                self.pieces.append(text)
                self._on_text(text)


def transfer_counts(
    client: httpx.Client, engine: EngineLease, engine_secret: str | None
) -> TransferCounts:
    """What a decode engine has pulled by NIXL so far.

    Args:
        client: Any; the engine's URL is absolute.
        engine: Whose metrics.
        engine_secret: Opens the engine's port.
    """
    headers = {"x-baton-engine-secret": engine_secret} if engine_secret else {}
    url = f"{engine.url}/metrics"
    with _said(client, url):
        answer = client.get(url, headers=headers)
        _must_be_ok(answer)
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return TransferCounts(
        bytes=totals.get(f"{BYTES}_sum", 0.0),
        seconds=totals.get(f"{SECONDS}_sum", 0.0),
        transfers=int(totals.get(f"{BYTES}_count", 0)),
        failed=int(totals.get(f"{FAILED}_total", 0)),
    )


def _must_be_ok(answer: httpx.Response) -> None:
    if answer.status_code == httpx.codes.OK:
        return
    message = answer.text.strip()[:300]
    with contextlib.suppress(ValueError, KeyError, TypeError):
        message = str(answer.json()["error"]["message"])
    raise DemoFailed(f"HTTP {answer.status_code}: {message}", place=str(answer.url))


@contextlib.contextmanager
def _said(client: httpx.Client, path: str) -> Iterator[None]:
    """Turn what a broken connection or an answer of the wrong shape raises into a `DemoFailed`."""
    place = path if path.startswith("http") else f"{client.base_url}{path}"
    try:
        yield
    except httpx.HTTPError as exc:
        raise DemoFailed(f"no answer: {type(exc).__name__}: {exc}", place=place) from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise DemoFailed(f"an answer that is not OpenAI-shaped: {exc!r}", place=place) from exc
