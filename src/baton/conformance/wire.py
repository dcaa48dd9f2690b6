"""HTTP over a raw socket: who reads a stream here decides how many bytes each read takes.

Client libraries hide where the pieces of a stream begin and end. A case that is about just that
needs its own reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httptools

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

CONNECT_S = 5.0
_READ = 65_536


class Unanswered(Exception):
    """No HTTP answer came: nobody listens, it is not HTTP, or the connection broke."""


@dataclass
class Reply:
    """An answer. `pieces` are the body's parts as they came in; `broke` says why it is not whole.

    `data` is the body as JSON, None where it is none.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    broke: str = ""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def data(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class AnswerParser:
    """Puts a reply together out of bytes as they come; httptools calls it back."""

    def __init__(self) -> None:
        self.reply = Reply()
        self.headed = self.done = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.reply.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.reply.status = self._parser.get_status_code()
        self.headed = True

    def on_body(self, body: bytes) -> None:
        self.reply.pieces.append(body)

    def on_message_complete(self) -> None:
        # An interim answer (100 Continue) is not the one that is waited for.
        self.done = self.reply.status >= 200  # noqa: PLR2004


class Wire:
    """One endpoint; a connection for each request.

    Args:
        url: Base URL, with or without a path; `/v1` at its end is left out.
        headers: Of every request.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        self.url = url.rstrip("/").removesuffix("/v1")
        self.host = parts.hostname or ""
        self.tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.tls else 80)
        self._prefix = urlsplit(self.url).path.rstrip("/")
        self._authority = parts.netloc.rpartition("@")[2]
        self.headers = dict(headers or {})

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request and read the whole answer.

        Args:
            method: GET or POST.
            path: Behind the base URL.
            body: JSON, or what pretends to be.
            headers: Beside those of every request.

        Raises:
            Unanswered: There is no answer that is HTTP.
        """
        async with self.open(method, path, body, headers=headers) as (reader, parser):
            while not parser.done and await _next(reader, parser):
                pass
            return parser.reply

    @contextlib.asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[tuple[asyncio.StreamReader, AnswerParser]]:
        """Send a request; leaving the block hangs up."""
        tls = ssl.create_default_context() if self.tls else None
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(self.host, self.port, ssl=tls)
        except (OSError, TimeoutError) as exc:
            why = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise Unanswered(f"no connection: {why or type(exc).__name__}") from exc
        try:
            writer.write(self.head(method, path, body, headers) + (body or b""))
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            yield reader, AnswerParser()
        finally:
            writer.transport.abort()

    def head(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Request line and headers."""
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"host: {self._authority}"]
        every = {"accept": "*/*", "connection": "close", **self.headers, **(headers or {})}
        if body is not None:
            every.setdefault("content-type", "application/json")
            every["content-length"] = str(len(body))
        lines += [f"{name}: {value}" for name, value in every.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _next(reader: asyncio.StreamReader, parser: AnswerParser) -> bool:
    """Read once. False at the end of the connection."""
    try:
        data = await reader.read(_READ)
        if data:
            parser.feed(data)
            return True
    except httptools.HttpParserError as exc:
        if not parser.headed:
            raise Unanswered(f"what came back is not HTTP: {exc}") from exc
        parser.reply.broke = f"the body's framing is broken: {exc}"
        return False
    except OSError as exc:
        if not parser.headed:
            raise Unanswered(f"the connection broke: {exc.strerror or exc}") from exc
        parser.reply.broke = "the connection broke in the body"
        return False
    if not parser.headed:
        raise Unanswered("the connection was closed without an answer")
    framed = {"content-length", "transfer-encoding"} & parser.reply.headers.keys()
    if framed and not parser.done:
        parser.reply.broke = "the connection was closed in the middle of the body"
    return False


async def until(reader: asyncio.StreamReader, parser: AnswerParser, marks: int) -> bool:
    """Read until the body holds so many event ends; False when it ended before."""
    while parser.reply.body.count(b"\n\n") < marks:
        if parser.done or not await _next(reader, parser):
            return False
    return True
