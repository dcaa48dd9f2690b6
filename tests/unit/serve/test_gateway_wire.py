"""What Ray Serve puts around uvicorn's `send` is known, so that pieces need not go through it."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn
from ray.serve._private.http_util import RequestIdMiddleware
from ray.serve._private.replica import Replica

from baton.gateway.caller import Caller
from baton.gateway.caller_wire import SEND, Outbox
from baton.serve.gateway import _unwrapped, _WithoutRequestId

SCOPE = {"type": "http", "headers": []}


async def _send(message: Any) -> None:
    """As a server's own."""


async def test_the_send_behind_serves_middleware_is_found():
    """And a wrapper that nobody knows is not looked behind."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(send)

    await RequestIdMiddleware(app)(dict(SCOPE), None, _send)  # type: ignore[arg-type]
    assert seen[0] is not _send
    assert _unwrapped(seen[0]) is _send

    async def stranger(message: Any) -> None:
        await seen[0](message)

    assert _unwrapped(stranger) is stranger


async def test_a_piece_reaches_the_connection_through_serves_own_code():
    """Ray's middleware and its replica's way in, in front of our app and behind uvicorn."""
    wires: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        caller = Caller(scope, receive, send, Outbox())
        await caller.start(200, [])
        wires.append(wire := caller.wire())
        if wire is not None:
            wire.write(b"over the wire, ")
            wire.flush()
        await caller.body(b"and not", more=False)

    async def entry(info: Any, scope: Any, receive: Any, send: Any) -> None:
        del info
        await _WithoutRequestId(app)(scope, receive, send)

    replica = _replica(entry)

    async def way_in(scope: Any, receive: Any, send: Any) -> None:
        await Replica._direct_ingress_asgi(replica, scope, receive, send)

    config = uvicorn.Config(
        RequestIdMiddleware(way_in), port=0, lifespan="off", log_config=None, access_log=False
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"http://127.0.0.1:{port}/v1/x", content=b"{}")
    server.servers[0].close()
    assert wires != [None]
    assert (answer.status_code, answer.text) == (200, "over the wire, and not")


def _replica(entry: Any) -> Any:
    """As much of a replica as its way in looks at, in one loop as ours is."""

    @contextlib.contextmanager
    def entered(*_: Any) -> Any:
        yield lambda *_: None

    @contextlib.asynccontextmanager
    async def started(_: Any) -> Any:
        yield

    calls = SimpleNamespace(
        _run_user_code_in_separate_thread=False,
        _call_http_entrypoint=entry,
        event_loop=asyncio.get_running_loop(),
        get_user_method_info=lambda _: None,
    )
    return SimpleNamespace(
        _user_callable_initialized=True,
        _user_callable_wrapper=calls,
        _route_prefix="/",
        _deployment_id=SimpleNamespace(app_name="a", name="d"),
        _can_accept_request=lambda _: True,
        _parse_request_timeout=lambda _: None,
        _determine_http_route=lambda _: "/",
        get_asgi_tracing_context=lambda _: None,
        _wrap_request=entered,
        _track_queued_request=entered,
        _start_request=started,
    )


async def test_the_app_is_told_where_the_servers_send_is():
    """In its scope; what it sends itself still goes through Serve."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope[SEND])
        await send(
            {"type": "http.response.start", "headers": [(b"x-request-id", b"1"), (b"a", b"b")]}
        )

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await _WithoutRequestId(app)(dict(SCOPE), None, send)
    assert seen == [send]
    assert sent[0]["headers"] == [(b"a", b"b")]
