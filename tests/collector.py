"""An OpenTelemetry collector, as far as OTLP over HTTP goes: it keeps the spans that come in."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@dataclass
class Collector:
    """What came in. `status` is what it answers."""

    url: str = ""
    status: int = 200
    spans: list[Any] = field(default_factory=list)
    services: set[str] = field(default_factory=set)

    def take(self, raw: bytes) -> int:
        said = ExportTraceServiceRequest.FromString(raw)
        if self.status == 200:
            for resource in said.resource_spans:
                self.services |= {
                    a.value.string_value
                    for a in resource.resource.attributes
                    if a.key == "service.name"
                }
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        return self.status

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


@contextlib.contextmanager
def running_collector() -> Iterator[Collector]:
    """One that listens, in a thread of its own."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(collector.take(raw) if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


@contextlib.asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    """The same for `async with`."""
    with running_collector() as running:
        yield running
