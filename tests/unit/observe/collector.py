"""An OpenTelemetry collector, as far as OTLP over HTTP goes, in the test's own event loop."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass
class Collector:
    """What came in. `status` is what it answers."""

    url: str = ""
    status: int = 200
    spans: list[Any] = field(default_factory=list)
    services: set[str] = field(default_factory=set)
    requests: int = 0

    async def take(self, request: web.Request) -> web.Response:
        self.requests += 1
        said = ExportTraceServiceRequest.FromString(await request.read())
        if self.status == 200:
            for resource in said.resource_spans:
                self.services |= {
                    a.value.string_value
                    for a in resource.resource.attributes
                    if a.key == "service.name"
                }
                for scope in resource.scope_spans:
                    self.spans += scope.spans
        return web.Response(status=self.status, content_type="application/x-protobuf")

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


@contextlib.asynccontextmanager
async def collector() -> Any:
    result = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", result.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    result.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield result
    finally:
        await runner.cleanup()
