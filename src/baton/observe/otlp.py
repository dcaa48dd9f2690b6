"""Spans of requests that have ended, sent to an OpenTelemetry collector in the background.

    request                      received → last byte            SERVER, child of the caller's span
      admit, queue, route, …     the stages of the timeline      INTERNAL
      prefill                    the leg to a prefill engine     CLIENT; vLLM's `llm_request` below
      decode                     the leg to a decode engine      CLIENT; vLLM's `llm_request` below
        handoff, decode stage    the leg's own stages            INTERNAL

A request pays for putting its spans into a bounded queue. The SDK's batch processor takes them from
there in a thread of its own; a collector that is away costs spans, never a request.

The package `opentelemetry` is imported only when an endpoint is configured: it is part of the
pinned set (vLLM brings it), and not of `pip install baton`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from baton.errors import ConfigRefused
from baton.observe import trace
from baton.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from baton.observe.metrics import GatewayMetrics
    from baton.observe.timeline import Timeline
    from baton.observe.trace import Leg, Trace
    from baton.spec.schema import Tracing

log = logging.getLogger("baton.observe.otlp")

QUEUE = 4096
"""Spans that wait; what comes then is dropped and counted."""
BATCH = 256
EVERY_MS = 1000
TIMEOUT_S = 5.0
"""Of one batch on its way to the collector, with the SDK's own retries."""
CLOSE_S = 2.0
_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_STAGES_OF_LEG = {"handoff": "decode", "decode": "decode", "local_prefill": "decode"}


def endpoint_of(settings: Tracing, environ: Mapping[str, str] | None = None) -> str | None:
    """Where spans go, in full; None for nowhere.

    Raises:
        ConfigRefused: It is no HTTP URL.
    """
    environ = os.environ if environ is None else environ
    place, found = "tracing.otlp_endpoint", settings.otlp_endpoint
    for name in _VARIABLES:
        if not found:
            place, found = name, environ.get(name)
    if not found:
        return None
    parts = urlsplit(found)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigRefused(
            f"{found!r} is not an HTTP URL", place=place, cure="such as http://collector:4318"
        )
    # The specific variable is taken as it stands, by the OpenTelemetry specification.
    if parts.path in ("", "/") and place != _VARIABLES[0]:
        return found.rstrip("/") + "/v1/traces"
    return found


class Spans:
    """Sends spans. Made once for a gateway.

    Args:
        endpoint: Of the collector's traces, in full.
        count: Is told how many spans were `exported`, `failed` or `dropped`.

    Raises:
        ConfigRefused: OpenTelemetry's SDK is not installed.
    """

    def __init__(self, endpoint: str, count: Callable[[str, int], None]) -> None:
        try:
            from baton.observe import otlp_sdk  # noqa: PLC0415 - an optional package
        except ImportError as exc:
            raise ConfigRefused(
                f"spans are asked for and {exc.name} is not installed",
                place="tracing.otlp_endpoint",
                cure="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
            ) from exc
        self._make = otlp_sdk.make_span
        self._queued = 0
        self._lock = threading.Lock()
        self._count = count
        self._processor = otlp_sdk.start(
            endpoint, self._done, queue=QUEUE, batch=BATCH, every_ms=EVERY_MS, timeout_s=TIMEOUT_S
        )

    def _done(self, outcome: str, number: int) -> None:
        with self._lock:
            self._queued -= number
        self._count(outcome, number)

    def add(self, timeline: Timeline) -> None:
        """Queue the spans of a request that has ended, if it has any."""
        if timeline.trace is None:
            return
        spans = spans_of(timeline, timeline.trace)
        with self._lock:
            fits = self._queued + len(spans) <= QUEUE
            if fits:
                self._queued += len(spans)
        if not fits:  # all or none: half a trace misleads
            self._count("dropped", len(spans))
            return
        for span in spans:
            self._processor.on_end(self._make(**span))

    def close(self) -> None:
        """Send what is there, within `CLOSE_S`; what does not go by then is lost."""
        # The SDK's shutdown waits for a batch that is on its way, however long that takes.
        ending = threading.Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_S)


def spans_of(timeline: Timeline, part: Trace) -> list[dict[str, Any]]:
    """A request's spans as plain values: name, ids, nanoseconds since the epoch, attributes."""

    def at(moment: float) -> int:
        return int((timeline.received_at + moment - timeline.started) * 1e9)

    common = {"trace_id": part.trace_id, "state": part.state}
    ended = timeline.started + (timeline.total_s or 0.0)
    request = {
        **common,
        "name": f"baton {timeline.path}",
        "kind": "server",
        "span_id": part.span_id,
        "parent_id": part.parent_id,
        "start": at(timeline.started),
        "end": at(ended),
        "failure": None if timeline.outcome in ("ok", "rejected") else timeline.outcome,
        "attributes": _attributes(timeline),
    }
    legs = [
        {
            **common,
            "name": leg.name,
            "kind": "client",
            "span_id": leg.span_id,
            "parent_id": part.span_id,
            "start": at(leg.began),
            "end": at(leg.ended if leg.ended is not None else ended),
            "failure": leg.failure,
            "attributes": {"baton.engine": leg.engine},
        }
        for leg in part.legs
    ]
    stages = [
        {
            **common,
            "name": stage,
            "kind": "internal",
            "span_id": None,
            "parent_id": _leg_around(part.legs, stage, timeline.started + since, part.span_id),
            "start": at(timeline.started + since),
            "end": at(timeline.started + since + seconds),
            "failure": None,
            "attributes": {"baton.stage": stage},
        }
        for stage, since, seconds in timeline.steps
        if stage != "prefill"  # the leg itself says it
    ]
    return [request, *legs, *stages]


def _leg_around(legs: Sequence[Leg], stage: str, began: float, otherwise: int) -> int:
    """The span of the leg that a stage is part of."""
    name = _STAGES_OF_LEG.get(stage)
    # Ids are made before a request is sent: the stage begins a moment before its leg says so.
    around = [leg for leg in legs if leg.name == name and leg.began <= began + 0.005]
    return around[-1].span_id if around else otherwise


def _attributes(timeline: Timeline) -> dict[str, str | int | float]:
    said: dict[str, str | int | float | None] = {
        "baton.request_id": timeline.request_id,
        "baton.route": timeline.route,
        "baton.reason": timeline.reason,
        "baton.outcome": timeline.outcome,
        "baton.fallbacks": ",".join(timeline.fallbacks) or None,
        "baton.ttft_s": timeline.ttft_s,
        "baton.steps_left_out": timeline.steps_left_out or None,
        "baton.version": __version__,
        "http.route": timeline.path,
        "http.response.status_code": timeline.status or None,
        "gen_ai.usage.input_tokens": timeline.prompt_tokens,
        "gen_ai.usage.output_tokens": timeline.completion_tokens,
    }
    return {key: value for key, value in said.items() if value is not None}


class Tracer:
    """Begins and ends the traces of one gateway; does nothing where no endpoint is configured.

    Raises:
        ConfigRefused: The endpoint is none, or the SDK is not there.
    """

    def __init__(self, settings: Tracing, metrics: GatewayMetrics) -> None:
        endpoint = endpoint_of(settings)
        self._sample = settings.sample
        self._spans: Spans | None = None
        if endpoint is not None:
            self._spans = Spans(endpoint, lambda went, n: metrics.spans.labels(went).inc(n))
            log.info("spans go to the collector", extra={"endpoint": urlsplit(endpoint).hostname})

    def begin(self, traceparent: bytes | None, tracestate: bytes | None) -> Trace | None:
        """A request's trace, from its caller's headers or a new one."""
        if self._spans is None:
            return None
        parent, state = (
            None if value is None else value.decode("latin-1")
            for value in (traceparent, tracestate)
        )
        return trace.begin(parent, state, sample=self._sample)

    def end(self, timeline: Timeline) -> None:
        """The request has ended: its spans go to the queue. Never fails a request."""
        if self._spans is None or timeline.trace is None:
            return
        try:
            self._spans.add(timeline)
        except Exception:  # the SDK's, on a value that it cannot take
            log.exception("no spans", extra={"request_id": timeline.request_id})

    async def close(self) -> None:
        """Send what is left, without keeping the loop."""
        spans, self._spans = self._spans, None
        if spans is not None:
            await asyncio.to_thread(spans.close)
