"""What Ray Serve puts around uvicorn's `send` is known, so that pieces need not go through it."""

from __future__ import annotations

from types import CodeType
from typing import Any

from ray.serve._private.http_util import RequestIdMiddleware
from ray.serve._private.replica import Replica

from baton.gateway.caller_wire import SEND
from baton.serve.gateway import _SERVES_OWN, _unwrapped, _WithoutRequestId

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


def test_serves_replica_wraps_send_as_it_is_known():
    """Ray's wrapper has the name and the variable that are looked for."""
    inner = {
        code.co_qualname: code
        for code in Replica._direct_ingress_asgi.__code__.co_consts
        if isinstance(code, CodeType)
    }
    found = [code for name, code in inner.items() if name in _SERVES_OWN]
    assert len(found) == 1
    assert "send" in found[0].co_freevars


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
