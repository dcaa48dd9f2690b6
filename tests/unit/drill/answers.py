"""Cases and answers as values, and a small server that answers as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from baton.drill.asks import CHAT, COMPLETIONS, Ask, Case
from baton.drill.client import Seen

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiohttp.typedefs import Handler

TEXT = "the runner hands the baton on"
USAGE = {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


def seen(**changes: Any) -> Seen:
    """A whole answer, with changes."""
    good: dict[str, Any] = {
        "status": 200, "text": TEXT, "finish_reason": "length", "usage": dict(USAGE),
        "sent_at": 1.0, "first_byte_at": 1.2, "ended_at": 2.0, "ids": {"a"},
    }  # fmt: skip
    return Seen(**{**good, **changes})


def ask(*, chat: bool = False, stream: bool = False, **more: Any) -> Ask:
    body: dict[str, Any] = {"model": "m", "messages" if chat else "prompt": "x", **more}
    if stream:
        body["stream"] = True
    return Ask("one", CHAT if chat else COMPLETIONS, body)


def case(**changes: Any) -> Case:
    return Case(ask(), seen(**changes))


def chunk(text: str = "", *, reason: str | None = None, name: str = "a", **more: Any) -> bytes:
    """One event of a streamed text completion."""
    data = {"id": name, "choices": [{"index": 0, "text": text, "finish_reason": reason}], **more}
    return b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def whole(**changes: Any) -> dict[str, Any]:
    """A text completion that is not streamed."""
    choice = {"index": 0, "text": TEXT, "finish_reason": "length"}
    return {"id": "a", "choices": [choice], "usage": USAGE, **changes}


@contextlib.asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    """Serves every path with one handler."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def streams(*pieces: bytes, cut: bool = False, pause_s: float = 0.0) -> Callable[..., Any]:
    """A handler that streams these pieces, and cuts the connection if asked to."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(pause_s)
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    return handler
