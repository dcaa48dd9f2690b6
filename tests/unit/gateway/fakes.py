"""A small engine and a running gateway, in the test's own event loop, on real sockets.

The engine speaks as much of vLLM's P/D protocol as the gateway relies on: KV params out and in,
blocks held until decode takes or rejects them, aborts when the connection closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from aiohttp import web

from baton.gateway.app import build_gateway_app
from baton.gateway.directory import FixedDirectory
from baton.spec.schema import BatonBlock


@dataclass(frozen=True)
class Behave:
    """How one request goes. The default is well."""

    delay_s: float = 0.0
    status: int = 200
    body: Any = None
    drop: bool = False
    """Close the connection instead of answering."""
    no_params: bool = False
    no_blocks: bool = False
    die_after: int | None = None
    """Streamed: break the connection after so many events."""
    half_event: bool = False
    """Streamed: die in the middle of the next event."""
    end_early: bool = False
    """Streamed: end properly, but without the last event."""
    no_answer: bool = False
    """Streamed: 200, perhaps a role and the usage, then [DONE]: vLLM when a KV load fails."""
    error_first: bool = False
    """Streamed: 200, then vLLM's error event and [DONE]."""
    error_after: int | None = None
    """Streamed: vLLM's error event and [DONE] after so many tokens, as when its core dies."""
    hang_after: int | None = None
    split: int = 0
    """Streamed: write in pieces of so many bytes."""


@dataclass
class Seen:
    path: str
    body: dict[str, Any]
    headers: dict[str, str]
    method: str = "POST"


@dataclass
class FakeEngine:
    name: str
    model: str = "m"
    version: str = "0.29.0"
    """vLLM's; KV of another version fails its decode leg, as a handshake that is refused."""
    tokens: int = 5
    token_delay_s: float = 0.0
    secret: str | None = None
    healthy: bool = True
    probe_delay_s: float = 0.0
    peers: dict[str, FakeEngine] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)
    met: list[tuple[str, str]] = field(default_factory=list)
    """Versions of prefill and decode in each handoff that reached it."""
    cancelled: int = 0
    running: int = 0
    released: int = 0
    plan: deque[Behave] = field(default_factory=deque)
    always: Behave = Behave()
    page: bytes | None = None
    """What `/metrics` answers; JSON, which is no page, when None."""
    gate: asyncio.Event | None = None
    """Requests wait for it."""
    pad: int = 0
    """So many bytes more in each event."""
    wrote: int = 0
    """Bytes of streams."""
    url: str = ""
    _runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> FakeEngine:
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def generated(self) -> list[Seen]:
        """Requests that were not probes and not releases."""
        return [s for s in self.seen if s.body.get("model") != "baton-kv-release"]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.secret is not None and request.headers.get("x-baton-engine-secret") != self.secret:
            return web.json_response({"error": {"message": "no", "code": 401}}, status=401)
        if request.path == "/health":
            await asyncio.sleep(self.probe_delay_s)
            return web.Response(status=200 if self.healthy else 503)
        if request.path == "/version":
            return web.json_response({"version": self.version})
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": self.model, "max_model_len": 1000}]})
        raw = await request.read()
        body = json.loads(raw) if raw else {}
        self.seen.append(
            Seen(
                request.path_qs,
                body,
                {k.lower(): v for k, v in request.headers.items()},
                request.method,
            )
        )
        behave = self.plan.popleft() if self.plan else self.always
        self.running += 1
        try:
            if request.path == "/metrics" and self.page is not None and behave.status == 200:
                await asyncio.sleep(behave.delay_s)
                return web.Response(body=self.page, content_type="text/plain")
            return await self._answer(request, body, behave)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    def _free(self, params: dict[str, Any]) -> None:
        peer = self.peers.get(params["remote_engine_id"])
        if peer is not None:
            peer.held.discard(params["remote_request_id"])

    async def _answer(
        self, request: web.Request, body: dict[str, Any], behave: Behave
    ) -> web.StreamResponse:
        params = body.get("kv_transfer_params")
        model = body.get("model")
        if model is not None and model != self.model:
            if params:
                self.released += 1
                self._free(params)
            return _error(404, f"The model `{model}` does not exist.")
        await asyncio.sleep(behave.delay_s)
        if self.gate is not None:
            await self.gate.wait()
        if behave.drop:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if behave.status != 200 or self._cannot_read(params):
            return web.json_response(
                behave.body or {"error": {"message": "no", "type": "t", "param": None, "code": 1}},
                status=behave.status if behave.status != 200 else 500,
            )
        if params and params.get("do_remote_decode"):
            return self._prefill(request, behave)
        if body.get("stream"):
            return await self._stream(request, params, behave)
        if params:
            self._free(params)
        return web.json_response({"engine": self.name, "path": request.path, "text": self.text()})

    def _cannot_read(self, params: dict[str, Any] | None) -> bool:
        """Notes the handshake with prefill, and whether it is refused."""
        peer = self.peers.get((params or {}).get("remote_engine_id") or "")
        if peer is None:
            return False
        self.met.append((peer.version, self.version))
        return peer.version != self.version

    def text(self) -> str:
        return "".join(f"t{n} " for n in range(self.tokens))

    def _prefill(self, request: web.Request, behave: Behave) -> web.Response:
        if behave.no_params:
            return web.json_response({"choices": [], "kv_transfer_params": None})
        held = f"kv-{request.headers['x-request-id']}"
        self.held.add(held)
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.name,
            "remote_request_id": held,
            "remote_block_ids": [[]] if behave.no_blocks else [[1, 2]],
            "remote_host": "127.0.0.1",
            "remote_port": 5,
            "tp_size": 1,
        }
        return web.json_response({"choices": [], "kv_transfer_params": params})

    async def _stream(  # noqa: C901  (one branch for each way to fail)
        self, request: web.Request, params: dict[str, Any] | None, behave: Behave
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def write(data: bytes) -> None:
            step = behave.split or len(data)
            for at in range(0, len(data), step):
                await response.write(data[at : at + step])
                self.wrote += step
                if behave.split:
                    await asyncio.sleep(0)

        last = b"data: [DONE]\n\n"
        if request.path == "/v1/messages":
            last = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        if behave.error_first:
            await write(ENGINE_ERROR)
            return response
        if params and not behave.no_answer:
            self._free(params)
        if request.path.startswith("/v1/chat"):
            await write(b'data: {"role": "assistant","finish_reason":null}\n\n')
        elif request.path == "/v1/messages":
            await write(b'event: message_start\ndata: {"stop_reason":null}\n\n')
        if behave.no_answer:
            await write(b'data: {"choices":[],"usage":{}}\n\n' + last)
            return response
        for n in range(self.tokens):
            if behave.die_after == n:
                if behave.half_event:
                    await write(b'data: {"text": "ha')
                assert request.transport is not None
                await asyncio.sleep(0.01)
                request.transport.abort()
                return response
            if behave.error_after == n:
                await write(b'data: {"text": "last "}\n\n' + ENGINE_ERROR)
                return response
            if behave.hang_after == n:
                await asyncio.sleep(3600)
            pad = f', "pad": "{"x" * self.pad}"' if self.pad else ""
            await write(f'data: {{"engine": "{self.name}", "text": "t{n} "{pad}}}\n\n'.encode())
            await asyncio.sleep(self.token_delay_s)
        mark = "stop_reason" if request.path == "/v1/messages" else "finish_reason"
        await write(f'data: {{"{mark}":"stop"}}\n\n'.encode())
        if not behave.end_early:
            await write(last)
        return response


ENGINE_ERROR = (
    b'data: {"error": {"message": "EngineCore encountered an issue.", "type": "x", "code": 500}}'
    b"\n\ndata: [DONE]\n\n"
)


def _error(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "NotFoundError", "param": "model", "code": status}
    return web.json_response({"error": error}, status=status)


class Stack:
    """Engines, a gateway served by uvicorn, and a client."""

    def __init__(
        self, prefill: list[FakeEngine], decode: list[FakeEngine], app: Any, url: str
    ) -> None:
        self.prefill = prefill
        self.decode = decode
        self.app = app
        self.url = url
        self.session: aiohttp.ClientSession

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        names = {k.replace("_", "-"): v for k, v in headers.items()}
        async with self.session.post(self.url + path, json=body, headers=names) as r:
            return r.status, await r.read(), {k.lower(): v for k, v in r.headers.items()}

    async def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        names = {k.replace("_", "-"): v for k, v in headers.items()}
        async with self.session.get(self.url + path, headers=names) as r:
            return r.status, await r.read()

    async def complete(self, **body: Any) -> tuple[int, Any, dict[str, str]]:
        status, raw, headers = await self.post("/v1/completions", {"prompt": LONG, **body})
        return status, json.loads(raw), headers

    async def stream(self, path: str = "/v1/completions", **body: Any) -> tuple[bytes, dict]:
        status, raw, headers = await self.post(path, {"prompt": LONG, "stream": True, **body})
        assert status == 200, raw
        return raw, headers

    def kv_is_free(self) -> bool:
        return not any(engine.held for engine in self.prefill)


LONG = "long enough to be worth a handoff. " * 4


@contextlib.asynccontextmanager
async def stack(
    *,
    prefill: int = 1,
    decode: int = 1,
    settings: BatonBlock | None = None,
    route_prefix: str = "/",
    root_path: str = "",
    lifespan: str = "on",
    **directory: Any,
) -> Any:
    """A running gateway in front of fake engines."""
    prefills = [await FakeEngine(f"p{n}").start() for n in range(prefill)]
    decodes = [await FakeEngine(f"d{n}").start() for n in range(decode)]
    secret = directory.get("engine_secret")
    for engine in (*prefills, *decodes):
        engine.secret = secret
    for engine in decodes:
        engine.peers = {p.name: p for p in prefills}
    view = FixedDirectory(
        [p.url for p in prefills],
        [d.url for d in decodes],
        **{"interval_s": 30.0, **directory},
    )
    app = build_gateway_app(settings or BatonBlock(), view, route_prefix=route_prefix)
    try:
        async with (
            listening(
                app, lifespan=lifespan, root_path=root_path, timeout_graceful_shutdown=1
            ) as url,
            aiohttp.ClientSession() as session,
        ):
            result = Stack(prefills, decodes, app, url)
            result.session = session
            yield result
    finally:
        await asyncio.gather(*(engine.stop() for engine in (*prefills, *decodes)))


@contextlib.asynccontextmanager
async def serving(directory: Any, settings: BatonBlock | None = None, **config: Any) -> Any:
    """A gateway before any directory, once it sees every engine there as ready: app and URL."""
    app = build_gateway_app(settings or BatonBlock(), directory)
    async with listening(app, **config) as url:
        for _ in range(5):  # a first look that took too long on a busy machine is taken again
            if all(engine.state == "ready" for engine in directory.all_engines()):
                break
            await directory._read()
        yield app, url


@contextlib.asynccontextmanager
async def listening(app: Any, **config: Any) -> Any:
    """A gateway's app on a port of its own, in this event loop: its URL."""
    made = uvicorn.Config(app, port=0, log_config=None, ws="none", **{"lifespan": "on", **config})
    made.load()
    server = uvicorn.Server(made)
    server.lifespan = made.lifespan_class(made)
    await server.startup()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        for _ in range(100):  # the server sees the session's connections close
            if not server.server_state.connections:
                break
            await asyncio.sleep(0.002)
        # uvicorn's own shutdown sleeps a tenth of a second, two hundred times.
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        await server.lifespan.shutdown()
        await app.close()


async def until(claim: Any, seconds: float = 20.0) -> None:
    """Wait until something is so; fails when it does not become so."""
    for _ in range(int(seconds / 0.01)):
        if claim():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not become so")
