"""A connection that cuts everything: endpoints that are right, and those that are not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from baton.conformance.cases import ALL
from baton.conformance.keyhole import SEGMENT_BYTES, ask_through_keyhole
from baton.conformance.probe import Probe
from baton.conformance.run import run
from baton.conformance.wire import Reply, Unanswered, Wire
from tests.unit.conformance.endpoints import MODELS, answer, as_json, models_else, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SPLIT = [case for case in ALL if case.id == "stream.chat.split"]


def stream(end: bytes = b"\n\n") -> list[bytes]:
    """A chat's events."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    texts = [("Zürich 🎈", None), (" and on", "length")]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}
        for text, reason in texts
    ]
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    chunks.append({"choices": [], "usage": usage})
    events = [json.dumps({**head, **chunk}, ensure_ascii=False).encode() for chunk in chunks]
    return [b"data: " + event + end for event in [*events, b"[DONE]"]]


async def _ask(wire: Wire) -> Reply:
    return await asyncio.to_thread(
        ask_through_keyhole, wire, "/v1/x", b"{}", over=threading.Event()
    )


async def test_bytes_come_one_at_a_time_over_segments_smaller_than_an_event() -> None:
    """The other side sees the small segments, so what it writes is cut below it."""
    seen: list[int] = []

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        sock = writer.get_extra_info("socket")
        seen.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG))
        writer.write(answer(200, b"".join(stream()), "text/event-stream"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        reply = await _ask(wire)
    assert seen[0] <= SEGMENT_BYTES
    assert {len(piece) for piece in reply.pieces} == {1}
    assert reply.body == b"".join(stream())


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"], ids=["LF", "CRLF"])
async def test_a_stream_that_is_right_passes(end: bytes) -> None:
    """However it is cut, and whichever of the standard's line ends it has."""
    said = answer(200, b"".join(stream(end)), "text/event-stream")
    async with serving(models_else(said)) as url:
        (outcome,) = (await run(url, SPLIT)).outcomes
    assert outcome.status == "pass", outcome.detail


@contextlib.asynccontextmanager
async def dropping() -> AsyncIterator[str]:
    """A server that writes what fits into the connection and forgets the rest."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "/v1/models" in head:
            writer.write(as_json(MODELS))
        else:
            sock = writer.get_extra_info("socket")
            usual = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) > 2 * SEGMENT_BYTES
            events = stream()
            body = b"".join(events if usual else [events[0], *events[2:]])
            writer.write(answer(200, body, "text/event-stream"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_server_that_loses_what_a_narrow_connection_does_not_take_fails() -> None:
    """A proxy that drops an event under back-pressure, say."""
    async with dropping() as url:
        (outcome,) = (await run(url, SPLIT)).outcomes
    assert outcome.status == "fail"


async def test_a_stream_without_an_end_is_let_go_when_the_cases_time_is_over() -> None:
    """Else its thread would read on, and the command would not end."""
    asked, gone = asyncio.Event(), asyncio.Event()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b": still here\n\n")
                await writer.drain()
                await asyncio.sleep(0.001)
        gone.set()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    async with server:
        wire = Wire(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        case = asyncio.create_task(Probe(wire, "m").stream_through_keyhole())
        await asked.wait()
        case.cancel()
        await asyncio.wait_for(gone.wait(), 60)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "framing"),
        (b"", "closed"),
    ],
    ids=["no http", "nothing"],
)
async def test_what_is_no_http_is_no_answer(said: bytes, why: str) -> None:
    """As over an ordinary connection."""
    speak: Callable[[str], bytes] = lambda _: said  # noqa: E731
    async with serving(speak) as url:
        with pytest.raises(Unanswered, match=why):
            await _ask(Wire(url))
