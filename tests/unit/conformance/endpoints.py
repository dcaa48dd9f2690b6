"""Endpoints that are odd in one way each, on loopback, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

MODELS = {"object": "list", "data": [
    {"id": "m", "object": "model", "created": 1, "owned_by": "x", "max_model_len": 64},
]}  # fmt: skip


def answer(status: int, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def as_json(value: Any, status: int = 200) -> bytes:
    return answer(status, json.dumps(value).encode())


def models_else(rest: bytes | None) -> Callable[[str], bytes | None]:
    """Names a model, and does something else for everything else; None hangs."""
    return lambda path: as_json(MODELS) if path == "/v1/models" else rest


def half_broken() -> Callable[[str], bytes]:
    """A 500 for every other request."""
    turns = itertools.count()
    whole = {
        "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop",
                     "message": {"role": "assistant", "content": "hello"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }  # fmt: skip

    def act(path: str) -> bytes:
        if next(turns) % 2 == 0:
            return as_json({"error": {"message": "no"}}, 500)
        return as_json(MODELS if path == "/v1/models" else whole)

    return act


@contextlib.asynccontextmanager
async def serving(act: Callable[[str], bytes | None]) -> AsyncIterator[str]:
    """Serve what `act` says for a path; None for no answer at all."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            said = act(head.split(" ")[1])
            if said is None:
                await reader.read()
            else:
                writer.write(said)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
