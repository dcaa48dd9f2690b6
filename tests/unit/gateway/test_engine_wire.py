"""What goes over a connection to an engine, byte by byte: the server says what it likes."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from baton.errors import LegFailed
from baton.gateway import engine_client, engine_wire
from baton.gateway.engine_client import EngineClient
from baton.spec.lease import EngineLease
from tests.unit.gateway.fakes import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Server:
    """Says the same to each request, in pieces; then closes, or waits for the next."""

    says: list[bytes]
    closes: bool = False
    resets: bool = False
    lease: EngineLease = field(default_factory=lambda: lease("http://127.0.0.1:1"))
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    said: int = 0
    gate: Any = None
    """A semaphore: each piece waits for leave."""
    drops: int = 0
    """So many requests are not answered: their connection is closed."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                at = head.find(b"content-length: ")
                length = int(head[at + 16 :].split(b"\r")[0]) if at >= 0 else 0
                self.requests.append(head + await reader.readexactly(length))
                if self.drops:
                    self.drops -= 1
                    break
                for piece in self.says:
                    if self.gate is not None:
                        await self.gate.acquire()
                    writer.write(piece)
                    await writer.drain()
                    self.said += len(piece)
                    await asyncio.sleep(0)
                if self.resets:
                    writer.transport.abort()
                if self.closes or self.resets:
                    break
        self.open -= 1
        writer.close()


def lease(url: str) -> EngineLease:
    return EngineLease(replica_id="e", role="decode", url=url, engine_id="e", model_id="m")


@contextlib.asynccontextmanager
async def asked(*says: bytes, **how: Any) -> AsyncIterator[tuple[EngineClient, Server]]:
    """A client, and a server that says these pieces."""
    server = Server(list(says), **how)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.lease = lease(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    client = EngineClient()
    try:
        yield client, server
    finally:
        await client.close()
        listening.close()


async def post(client: EngineClient, server: Server) -> engine_wire.EngineAnswer:
    return await client.send(server.lease, "POST", "/v1/x", body=b"{}")


async def chunks_of(answer: engine_wire.EngineAnswer) -> bytes:
    """All of a stream, as somebody reads it who asks for each piece."""
    got = b""
    while piece := await answer.next_chunk():
        got += piece
    return got


async def test_a_request_is_one_head_and_one_body():
    """With the engine's name, the length, and the headers that were given."""
    async with asked(WHOLE) as (client, server):
        answer = await client.send(
            server.lease, "POST", "/v1/x?a=1", body=b'{"a":1}', headers={"X-Request-Id": "7"}
        )
        assert (answer.status, await answer.read()) == (200, b"{}")
        host = server.lease.url.removeprefix("http://").encode()
        assert server.requests == [
            b"POST /v1/x?a=1 HTTP/1.1\r\nhost: " + host + b"\r\nX-Request-Id: 7\r\n"
            b'content-length: 7\r\n\r\n{"a":1}'
        ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_a_chunked_answer_reads_the_same_however_it_is_cut(size):
    """TCP may cut anywhere: in the head, in a chunk's length, between CR and LF."""
    raw = STREAM + b"".join(chunk(b"data: %d\n\n" % n) for n in range(40)) + END
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    async with asked(*pieces) as (client, server):
        answer = await post(client, server)
        assert answer.is_stream
        assert await chunks_of(answer) == b"".join(b"data: %d\n\n" % n for n in range(40))


async def test_chunk_extensions_trailers_and_an_interim_answer_are_skipped():
    """All of them are HTTP, and none is the answer."""
    raw = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + STREAM
    async with asked(raw + b"3;a=b\r\nabc\r\n0\r\nx-t: 1\r\n\r\n") as (client, server):
        answer = await post(client, server)
        assert (answer.status, answer.header("link")) == (200, None)
        assert await answer.read() == b"abc"


async def test_a_connection_is_used_again_after_a_stream_and_after_a_whole_answer():
    """Two requests one after the other need one connection."""
    for said in (WHOLE, STREAM + chunk(b"data: 1\n\n") + END):
        async with asked(said) as (client, server):
            for _ in range(3):
                answer = await post(client, server)
                await answer.read()
                answer.close()
            assert (server.connections, len(server.requests)) == (1, 3)


async def test_closing_an_answer_that_was_whole_leaves_the_next_request_alone():
    """Its connection is somebody else's by then."""
    async with asked(WHOLE) as (client, server):
        first = await post(client, server)
        await first.read()
        second = client.send(server.lease, "POST", "/v1/x", body=b"{}")
        task = asyncio.create_task(second)
        await asyncio.sleep(0)
        first.close()
        assert await (await task).read() == b"{}"
        assert server.connections == 1


async def test_closing_an_answer_early_closes_its_connection():
    """That is how an engine hears of it, and aborts."""
    async with asked(STREAM + chunk(b"data: 1\n\n")) as (client, server):
        answer = await post(client, server)
        assert await answer.next_chunk() == b"data: 1\n\n"
        answer.close()
        await until(lambda: server.open == 0)
        with pytest.raises(LegFailed, match="truncated"):
            await answer.next_chunk()


@pytest.mark.parametrize(
    "raw",
    [
        STREAM + b"5\r\nab",  # in the middle of a chunk
        STREAM + chunk(b"ab"),  # between two
        STREAM + chunk(b"ab") + b"0\r\n",  # before the last line
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab",
    ],
)
@pytest.mark.parametrize("how", ["closes", "resets"])
async def test_an_answer_that_breaks_off_is_never_taken_for_a_whole_one(raw, how):
    """What came is given; then it is said to be broken, each time somebody asks."""
    async with asked(raw, **{how: True}) as (client, server):
        answer = await post(client, server)
        with pytest.raises(LegFailed, match="truncated"):
            await chunks_of(answer)
        with pytest.raises(LegFailed, match="truncated"):
            await answer.read()


@pytest.mark.parametrize(
    "raw",
    [
        STREAM + chunk(b"ab") + b"zz\r\nab\r\n",
        STREAM + chunk(b"ab") + b"5\r\nabcdefgh\r\n",
        STREAM + chunk(b"ab") + b"fffffffffffffffff\r\n",
    ],
)
async def test_garbage_between_chunks_is_a_broken_answer(raw):
    """And its connection is not used again."""
    async with asked(raw) as (client, server):
        answer = await post(client, server)
        with pytest.raises(LegFailed, match="truncated"):
            await chunks_of(answer)
        await until(lambda: server.open == 0)


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (engine_wire.MAX_HEAD + 1) + b"\r\n\r\n",
    ],
)
async def test_a_head_that_is_no_answer_is_a_dropped_connection(raw):
    """Whoever speaks there is no engine, or a sick one."""
    async with asked(raw) as (client, server):
        with pytest.raises(LegFailed, match="disconnected"):
            await post(client, server)
        await until(lambda: server.open == 0)


async def test_bytes_behind_an_answer_close_its_connection_and_not_the_answer():
    """A second answer that nobody asked for must never be taken for the next request's."""
    async with asked(WHOLE + WHOLE) as (client, server):
        for number in (1, 2):
            answer = await post(client, server)
            assert await answer.read() == b"{}"
            assert server.connections == number


async def test_an_answer_that_ends_with_its_connection_is_whole():
    """HTTP/1.0's way: neither a length nor chunks."""
    async with asked(b"HTTP/1.1 200 OK\r\n\r\nab", b"cd", closes=True) as (client, server):
        answer = await post(client, server)
        assert await answer.read() == b"abcd"


async def test_an_answer_without_a_body_is_over_at_once():
    """204 has none, whatever else it says."""
    async with asked(b"HTTP/1.1 204 No Content\r\n\r\n") as (client, server):
        for _ in range(2):
            assert await (await post(client, server)).read() == b""
        assert server.connections == 1


async def test_an_engine_that_closes_after_each_answer_is_asked_on_a_new_connection():
    """`connection: close` is heeded before it is done."""
    said = WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    async with asked(said) as (client, server):
        for number in (1, 2):
            assert await (await post(client, server)).read() == b"{}"
            assert server.connections == number


async def test_a_connection_that_has_rested_for_long_is_not_used(monkeypatch):
    """The engine may be closing it."""
    async with asked(WHOLE) as (client, server):
        await (await post(client, server)).read()
        monkeypatch.setattr(engine_client, "KEEPALIVE_S", 0.0)
        await (await post(client, server)).read()
        assert server.connections == 2
        client._sweep()
        await until(lambda: server.open == 0)


async def test_what_may_be_done_twice_is_when_a_resting_connection_was_closed():
    """A GET is sent again; a POST is not: the engine may have begun."""
    async with asked(WHOLE) as (client, server):
        await (await post(client, server)).read()
        server.drops = 1
        with pytest.raises(LegFailed, match="disconnected"):
            await post(client, server)
        await (await post(client, server)).read()
        server.drops = 1
        status, _ = await client.fetch(server.lease, "GET", "/health", timeout_s=5)
        assert (status, server.connections) == (200, 3)


async def test_a_slow_reader_stops_the_engine_and_loses_nothing():
    """What is kept for him is bounded; the rest waits in the engine."""
    piece = chunk(b"x" * 16384)
    async with asked(STREAM, *[piece] * 2000, END) as (client, server):
        answer = await post(client, server)
        before = -1
        while server.said != before:  # until nothing moves any more
            before = server.said
            await asyncio.sleep(0.05)
        assert server.said < 2000 * len(piece)
        # The mark, and what one read of the loop may bring.
        assert sum(map(len, answer._held)) <= engine_wire.HIGH_WATER + 256 * 1024
        assert len(await answer.read()) == 2000 * 16384
        answer.close()
        assert (await post(client, server)).status == 200
        assert server.connections == 1


async def test_a_taker_gets_each_piece_until_it_does_not_want_one():
    """What it did not take is the next to be read, and nothing is lost or doubled."""
    pieces = [chunk(b"%d " % n) for n in range(9)]
    async with asked(STREAM, *pieces, END, gate=asyncio.Semaphore(1)) as (client, server):
        answer = await post(client, server)
        got: list[bytes] = []

        def take(piece: bytes) -> bool:
            if piece == b"5 ":
                return False
            got.append(piece)
            server.gate.release()
            return True

        server.gate.release()
        await answer.flow(take)
        assert got == [b"%d " % n for n in range(5)]
        assert await answer.next_chunk() == b"5 "
        server.gate.release()
        await answer.flow(take)
        assert await chunks_of(answer) == b""
        assert got == [b"%d " % n for n in (0, 1, 2, 3, 4, 6, 7, 8)]


async def test_a_taker_that_fails_is_heard_where_the_answer_is_waited_for():
    """A fault of ours ends the request, not the connection's callback."""

    def fail(piece: bytes) -> bool:
        raise KeyError(piece)

    async with asked(STREAM, chunk(b"a"), chunk(b"b"), END) as (client, server):
        answer = await post(client, server)
        held = await answer.next_chunk()
        if held == b"a":
            with pytest.raises(KeyError):
                await answer.flow(fail)
        answer.close()


async def test_flow_ends_when_the_answer_does_or_breaks():
    """The end and the failure are then said by `next_chunk`."""
    for closes, last in ((False, END), (True, b"")):
        async with asked(STREAM + chunk(b"a") + last, closes=closes) as (client, server):
            answer = await post(client, server)
            await answer.flow(lambda _: True)
            await answer.flow(lambda _: True)
            if closes:
                with pytest.raises(LegFailed, match="truncated"):
                    await chunks_of(answer)
            else:
                await chunks_of(answer)


@pytest.mark.parametrize(
    "given",
    [
        {"path": "/v1/x\r\nx-evil: 1"},
        {"path": "/v1/x y"},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": {"a": "b\nc: d"}},
        {"headers": {"a": "b\rc: d"}},
    ],
)
async def test_nothing_that_would_end_its_line_is_sent(given):
    """No header, and no request, that nobody checked."""
    async with asked(WHOLE) as (client, server):
        with pytest.raises(ValueError, match="line's end"):
            await client.send(server.lease, "POST", **{"path": "/", **given})
        assert server.requests == []


async def test_closing_the_client_breaks_what_is_on_the_way():
    """A gateway that ends waits for nobody's connection."""
    async with asked(STREAM + chunk(b"a")) as (client, server):
        answer = await post(client, server)
        await answer.next_chunk()
        await client.close()
        with pytest.raises(LegFailed, match="truncated"):
            await answer.next_chunk()
        await until(lambda: server.open == 0)
        with pytest.raises(LegFailed, match="disconnected"):
            await post(client, server)
