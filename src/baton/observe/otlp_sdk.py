"""OpenTelemetry's SDK, as far as `otlp` needs it. Importing this file imports the SDK."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from baton.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Resource.create reads OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME, which win.
_RESOURCE = Resource.create({"service.name": "baton-gateway", "service.version": __version__})
_SCOPE = InstrumentationScope("baton", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_random = random.SystemRandom()


class _Counting(SpanExporter):
    """Tells how each batch went."""

    def __init__(self, inner: SpanExporter, done: Callable[[str, int], None]) -> None:
        self._inner, self._done = inner, done

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            went = "exported" if result is SpanExportResult.SUCCESS else "failed"
            self._done(went, len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


def start(
    endpoint: str,
    done: Callable[[str, int], None],
    *,
    queue: int,
    batch: int,
    every_ms: int,
    timeout_s: float,
) -> BatchSpanProcessor:
    """A thread that sends what it is given."""
    return BatchSpanProcessor(
        _Counting(OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s), done),
        max_queue_size=queue,
        max_export_batch_size=batch,
        schedule_delay_millis=every_ms,
    )


def make_span(
    *,
    name: str,
    kind: str,
    trace_id: int,
    state: str | None,
    span_id: int | None,
    parent_id: int | None,
    start: int,
    end: int,
    failure: str | None,
    attributes: dict[str, Any],
) -> ReadableSpan:
    """A span that has ended. Without a `span_id` it gets one: nobody refers to it."""
    tracestate = None if state is None else TraceState.from_header([state])

    def context(number: int, *, remote: bool) -> SpanContext:
        return SpanContext(trace_id, number, remote, _SAMPLED, tracestate)

    return ReadableSpan(
        name,
        context=context(span_id or _random.getrandbits(64) or 1, remote=False),
        parent=None if parent_id is None else context(parent_id, remote=True),
        resource=_RESOURCE,
        attributes=attributes,
        kind=_KINDS[kind],
        instrumentation_scope=_SCOPE,
        status=Status(StatusCode.UNSET) if failure is None else Status(StatusCode.ERROR, failure),
        start_time=start,
        end_time=end,
    )
