"""What an ASGI server tells an app of its own beginning and end, and what a process does then."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from baton.gateway.caller import Receive, Send

log = logging.getLogger("baton.gateway")


async def lifespan(
    receive: Receive,
    send: Send,
    *,
    start: Callable[[], Awaitable[Any]],
    close: Callable[[], Awaitable[None]],
) -> None:
    """Start when the server says so, close when it ends."""
    await receive()
    try:
        await start()
    except Exception as exc:  # the server must hear of it, whatever it is
        log.exception("the gateway could not start")
        await send({"type": "lifespan.startup.failed", "message": repr(exc)})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await close()
    await send({"type": "lifespan.shutdown.complete"})
