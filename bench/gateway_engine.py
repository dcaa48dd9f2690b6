"""Engines to measure gateways with: vLLM's P/D protocol over HTTP, and nothing computed.

One process listens as a prefill engine and as a decode engine. A prefill leg is answered at once
with `kv_transfer_params`; a decode leg gets its first token at once and then one at every step, all
streams in the same step, as vLLM's batches do. The bytes are those of `baton engine --simulated`
(and so of vLLM 0.29; a unit test compares them), but put together once a stream, so that an engine
costs a fraction of what is measured. The text of a token is the time at which it was written,
on CLOCK_MONOTONIC, which all processes share: the reader knows how long it was on its way.

A decode leg without a handed-over prompt is refused: who is measured has really done P/D.

    python bench/gateway_engine.py        says on stderr where it listens: prefill, then decode
    GET /bench/step?ms=5                  a step takes so long from now on
    GET /bench/counts                     legs since the start
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sys
import time
from typing import Any

import msgspec
import uvloop

MODEL = "bench"
STAMP_DIGITS = 16
PROMPT_TOKENS = 512
BLOCK_TOKENS = 16
_PLAIN = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_DONE = b"data: [DONE]\n\n"
_MODELS = (
    b'{"object":"list","data":[{"id":"%b","object":"model","created":1,"owned_by":"vllm",'
    b'"root":"%b","parent":null,"max_model_len":8192,"permission":[]}]}'
) % (MODEL.encode(), MODEL.encode())
# Read by gateways that want to know whether an offer outlived its lease.
_METRICS = b"vllm:nixl_num_kv_expired_reqs_total 0.0\nprocess_start_time_seconds 1.0\n"


class Ask(msgspec.Struct):
    """What matters of a request's body; the decoder skips the rest."""

    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    return_token_ids: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None


_read = msgspec.json.Decoder(Ask).decode


def framed(body: bytes) -> bytes:
    """One chunk of a chunked HTTP body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class Chunks:
    """The events of one chat stream, each put together from parts made once.

    Args:
        name: The answer's id.
        ids: Whether token ids were asked for.
    """

    __slots__ = ("_after", "_before", "_head", "_ids")

    def __init__(self, name: bytes, *, ids: bool) -> None:
        self._ids = ids
        self._head = (
            b'data: {"id":"%b","object":"chat.completion.chunk","created":1795996259,'
            b'"model":"%b","choices":[' % (name, MODEL.encode())
        )
        self._before = self._head + b'{"index":0,"delta":{"content":" '
        self._after = b'"},"logprobs":null,"finish_reason":null,"token_ids":%b}]}\n\n' % (
            b"[1234]" if ids else b"null"
        )

    def opening(self) -> bytes:
        prompt = b"[" + b",".join([b"1234"] * PROMPT_TOKENS) + b"]" if self._ids else b"null"
        return (
            b'%b{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}],"prompt_token_ids":%b,"prompt_text":null}\n\n'
        ) % (self._head, prompt)

    def token(self, stamp: int) -> bytes:
        return b"%b%016d%b" % (self._before, stamp, self._after)

    def framed_token(self) -> tuple[bytes, bytes]:
        """What stands before and behind the stamp of a chunk of HTTP, which is always as long."""
        before, _, after = framed(self.token(0)).rpartition(b"0" * STAMP_DIGITS)
        return before, after

    def last_token(self, stamp: int) -> bytes:
        ids = b"[1234]" if self._ids else b"null"
        return (
            b'%b%016d"},"logprobs":null,"finish_reason":"length","stop_reason":null,'
            b'"token_ids":%b}],"system_fingerprint":"vllm-0.29.0-simulated"}\n\n'
        ) % (self._before, stamp, ids)


class Engine:
    """Both roles, and the clock that all decode streams share."""

    def __init__(self) -> None:
        self.step_s = 0.005
        self.counts = {"prefill": 0, "decode": 0, "refused": 0}
        self.open: set[Stream] = set()
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = 0.0

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def add(self, stream: Stream) -> None:
        self.open.add(stream)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._next_s = loop.time() + self.step_s
            self._timer = loop.call_at(self._next_s, self._step)

    def _step(self) -> None:
        self._timer = None
        for stream in list(self.open):
            stream.write_token()
        if self.open:
            loop = asyncio.get_running_loop()
            # On the grid: a step that came late makes no other late, and none is made up for.
            self._next_s = max(self._next_s + self.step_s, loop.time())
            self._timer = loop.call_at(self._next_s, self._step)


class Stream:
    """One decode leg."""

    __slots__ = ("_after", "_before", "_chunks", "_engine", "_left", "_transport")

    def __init__(self, engine: Engine, transport: asyncio.Transport, ask: Ask) -> None:
        self._engine, self._transport = engine, transport
        name = b"chatcmpl-%032x" % engine.number()
        self._chunks = Chunks(name, ids=bool(ask.return_token_ids))
        self._before, self._after = self._chunks.framed_token()
        self._left = ask.max_completion_tokens or ask.max_tokens or 16

    def begin(self) -> None:
        self._transport.write(_STREAM + framed(self._chunks.opening()))
        self.write_token()
        if self._left:
            self._engine.add(self)

    def write_token(self) -> None:
        self._left -= 1
        now = time.monotonic_ns()
        if self._left > 0:
            self._transport.write(b"%b%016d%b" % (self._before, now, self._after))
            return
        self._transport.write(framed(self._chunks.last_token(now)) + framed(_DONE) + b"0\r\n\r\n")
        self._engine.open.discard(self)


class Connection(asyncio.Protocol):
    """One connection of a gateway: HTTP/1.1, one request after the other."""

    def __init__(self, engine: Engine, role: str) -> None:
        self._engine, self._role = engine, role
        self._got = b""
        self._stream: Stream | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._stream is not None:
            self._engine.open.discard(self._stream)

    def data_received(self, data: bytes) -> None:
        got = self._got = self._got + data if self._got else data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        head = got[:end].lower()
        at = head.find(b"\r\ncontent-length:")
        length = 0 if at < 0 else int(head[at + 17 :].partition(b"\r")[0])
        if len(got) < end + 4 + length:
            return
        self._got = got[end + 4 + length :]
        method, path, _ = got.split(b" ", 2)
        if method == b"POST":
            self._generate(got[end + 4 : end + 4 + length])
        else:
            self._say(path)

    def _answer(self, status: int, body: bytes) -> None:
        reason = b"OK" if status == 200 else b"Bad Request"  # noqa: PLR2004
        self._transport.write(_PLAIN % (status, reason, len(body), body))

    def _say(self, path: bytes) -> None:
        if path.startswith(b"/bench/step?ms="):
            self._engine.step_s = float(path.partition(b"=")[2]) / 1e3
            self._answer(200, b"{}")
        elif path == b"/bench/counts":
            counts = {**self._engine.counts, "open": len(self._engine.open)}
            self._answer(200, msgspec.json.encode(counts))
        elif path == b"/metrics":
            self._answer(200, _METRICS)
        else:
            self._answer(200, _MODELS if path == b"/v1/models" else b"{}")

    def _generate(self, body: bytes) -> None:
        ask = _read(body)
        kv = ask.kv_transfer_params or {}
        counts = self._engine.counts
        if self._role == "prefill" and kv.get("do_remote_decode") and not ask.stream:
            counts["prefill"] += 1
            self._answer(200, self._offer())
        elif self._role == "decode" and kv.get("remote_block_ids") and ask.stream:
            counts["decode"] += 1
            self._stream = Stream(self._engine, self._transport, ask)
            self._stream.begin()
        else:
            counts["refused"] += 1
            self._answer(400, b'{"error":{"message":"not P/D","type":"BadRequestError"}}')

    def _offer(self) -> bytes:
        number = self._engine.number()
        blocks = b",".join(b"%d" % (number + n) for n in range(PROMPT_TOKENS // BLOCK_TOKENS))
        return (
            b'{"id":"chatcmpl-%032x","object":"chat.completion","created":1795996259,'
            b'"model":"%b","choices":[{"index":0,"message":{"role":"assistant","content":" a",'
            b'"refusal":null,"annotations":null,"audio":null,"function_call":null,'
            b'"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,'
            b'"token_ids":null}],"service_tier":null,"system_fingerprint":null,"usage":'
            b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":1,'
            b'"prompt_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,'
            b'"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,'
            b'"remote_block_ids":[[%b]],"remote_engine_id":"prefill","remote_request_id":'
            b'"chatcmpl-%032x","remote_host":"127.0.0.1","remote_port":1,"tp_size":1,'
            b'"remote_num_tokens":%d}}'
        ) % (
            number,
            MODEL.encode(),
            PROMPT_TOKENS,
            PROMPT_TOKENS + 1,
            blocks,
            number,
            PROMPT_TOKENS,
        )


async def serve() -> None:
    """Listen in both roles until the process is ended."""
    engine = Engine()
    loop = asyncio.get_running_loop()
    for role in ("prefill", "decode"):
        listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
        await loop.create_server(
            lambda role=role: Connection(engine, role),  # type: ignore[misc]
            sock=listening,
        )
        port = listening.getsockname()[1]
        print(f"{role} {os.getpid()} listens on http://127.0.0.1:{port}", file=sys.stderr)
    sys.stderr.flush()
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve())
