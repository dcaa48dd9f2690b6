"""Counts an engine's open requests and writes one log line for each, with the gateway's id."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from baton.engine.occupancy import Occupancy

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("baton.engine.access")

# Asked every second by probes: a line for each would bury the others.
QUIET_PATHS = frozenset({"/health", "/metrics", "/load"})


class AccessLog:
    """ASGI middleware. `occupancy` knows what is open now and how busy it has been."""

    def __init__(self, app: App, *, role: str) -> None:
        self._app = app
        self._role = role
        self.occupancy = Occupancy()

    @property
    def count(self) -> int:
        """Requests that are open now."""
        return self.occupancy.count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; nothing is done per chunk but to look at the first message."""
        if scope["type"] != "http" or scope["path"] in QUIET_PATHS:
            await self._app(scope, receive, send)
            return
        started_s = time.monotonic()
        status = 0

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        size = prompt_bytes(scope)
        self.occupancy.begin(size)
        try:
            await self._app(scope, receive, watch)
        finally:
            self.occupancy.end(size)
            log.info(
                "request",
                extra={
                    "request_id": request_id(scope),
                    "role": self._role,
                    "path": scope["path"],
                    "status": status,
                    "duration_s": round(time.monotonic() - started_s, 4),
                },
            )


def request_id(scope: Scope) -> str:
    """The caller's `X-Request-Id`, or an empty string."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return str(value, "latin-1")
    return ""


def prompt_bytes(scope: Scope) -> int:
    """How large the body of a request is that the engine generates for; 0 for all others.

    Gateways always send a length.
    """
    if scope.get("method") != "POST" or not scope["path"].startswith("/v1/"):
        return 0
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value) if value.isdigit() else 0
    return 0
