"""Keeps an engine's HTTP port shut to everybody but the gateways.

vLLM's own app serves far more than `/v1/*` (LoRA loading, profiling, tokens in and tokens out), and
its `--api-key` looks only at paths that begin with `/v1`. Whoever may send `kv_transfer_params`
names a host to read memory from. So the guard stands in front of every path and every websocket,
and knows one thing: the secret that the directory hands to gateways.
"""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING

from baton.errors import ConfigRefused

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SECRET_HEADER = "x-baton-engine-secret"  # noqa: S105 - the header's name, not a secret

_HEADER_BYTES = SECRET_HEADER.encode("ascii")
_BODY = json.dumps(
    {
        "error": {
            "message": "This port answers only to Baton's gateways. Send the request to the "
            "gateway's endpoint.",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_engine_secret",
        }
    }
).encode()
_HEADERS: list[tuple[bytes, bytes]] = [
    (b"content-type", b"application/json"),
    (b"content-length", str(len(_BODY)).encode("ascii")),
]
# The ASGI extension by which a websocket that was not accepted is answered with plain HTTP:
# https://asgi.readthedocs.io/en/latest/extensions.html#websocket-denial-response
_DENIAL = "websocket.http.response"


class EngineGuard:
    """ASGI middleware: without the right secret, 401 on every path, before anything else.

    Args:
        app: The engine's own app.
        secret: What the header `x-baton-engine-secret` must say; None lets everybody through.

    Raises:
        ConfigRefused: `secret` is an empty text, which would be no secret at all.
    """

    def __init__(self, app: ASGIApp, secret: str | None) -> None:
        if secret is not None and not secret:
            raise ConfigRefused(
                "the engine secret is empty",
                cure="give a secret of at least one character, or none at all to leave the "
                "engine open",
            )
        self.app = app
        self._secret = None if secret is None else secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._admits(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _deny_websocket(scope, send)
        else:
            await _deny(send, prefix="http")

    def _admits(self, scope: Scope) -> bool:
        if self._secret is None:
            return True
        given = [value for name, value in scope["headers"] if name.lower() == _HEADER_BYTES]
        # Two headers are an attempt to be read twice in two ways: exactly one counts.
        return len(given) == 1 and hmac.compare_digest(given[0], self._secret)


async def _deny(send: Send, *, prefix: str) -> None:
    await send({"type": f"{prefix}.response.start", "status": 401, "headers": _HEADERS})
    await send({"type": f"{prefix}.response.body", "body": _BODY})


async def _deny_websocket(scope: Scope, send: Send) -> None:
    if _DENIAL in (scope.get("extensions") or {}):
        await _deny(send, prefix="websocket.http")
    else:
        # Servers without the extension turn a close before the accept into a plain 403.
        await send({"type": "websocket.close", "code": 1008, "reason": "engine secret missing"})
