"""The caller's side of a request, on bare ASGI: read the body, send an answer, notice a hang-up."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from baton.errors import BodyTooLarge, BodyTooSlow, MediaTypeRefused
from baton.gateway.caller_wire import wire_behind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from baton.gateway.admission import HeldBodies
    from baton.gateway.caller_wire import CallerWire, Outbox

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

Header = tuple[bytes, bytes]

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class CallerGone(Exception):
    """The caller hung up before its body was read."""


class Caller:
    """One request's ASGI channel. Headers that every answer carries are set once."""

    __slots__ = (
        "_headers",
        "_outbox",
        "_receive",
        "_send",
        "extra",
        "finished",
        "held",
        "request_id",
        "scope",
        "sent",
        "started",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, outbox: Outbox | None = None
    ) -> None:
        self.scope = scope
        self._outbox = outbox
        self._receive = receive
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self._headers.get(b"x-request-id", b"").decode("latin-1")
        self.request_id = given if _SANE_ID.fullmatch(given) else os.urandom(16).hex()
        self.extra: dict[bytes, bytes] = {
            b"x-request-id": self.request_id.encode(),
            b"x-baton-served-by": b"local",  # overflow says otherwise
        }
        self.held = 0
        self.started = False
        self.finished = False
        self.sent = 0

    def header(self, name: bytes) -> bytes | None:
        return self._headers.get(name)

    async def read_body(self, limit: int, timeout_s: float, all_bodies: HeldBodies) -> bytes:
        """The whole body. What it took of `all_bodies` is in `held` and must be given back.

        Raises:
            BodyTooLarge: By its Content-Length, or while it comes in.
            BodyTooSlow: It takes longer than `timeout_s`.
            Saturated: All bodies together would be too large.
            MediaTypeRefused: A content encoding, or a type that is not JSON.
            CallerGone: The caller hung up.
        """
        encoding = self._headers.get(b"content-encoding", b"identity").strip().lower()
        if encoding not in (b"identity", b""):
            raise MediaTypeRefused(
                f"Content-Encoding {encoding.decode('latin-1')!r} is not accepted.",
                cure="send the body uncompressed",
            )
        media = self._headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media and media != b"application/json" and not media.endswith(b"+json"):
            raise MediaTypeRefused(
                f"Content-Type {media.decode('latin-1')!r} is not accepted.",
                cure="send application/json",
            )
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise CallerGone
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise _too_large(limit)
                    all_bodies.take(len(part))
                    self.held += len(part)
                    parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError as exc:
            raise BodyTooSlow(f"The body did not arrive within {timeout_s:g} s.") from exc
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def hung_up(self) -> None:
        """Return when the caller goes away. Only after the body was read."""
        while True:
            if (await self._receive())["type"] == "http.disconnect":
                return

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        """Send status and headers."""
        self.started = True
        await self._transmit(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *self.extra.items()],
            }
        )

    async def body(self, chunk: bytes, *, more: bool) -> None:
        """Send a part of the body; waits while the caller reads slower than we write."""
        self.sent += len(chunk)
        # Servers report "disconnected" after a whole answer as well: that is no hang-up.
        self.finished = not more
        await self._transmit({"type": "http.response.body", "body": chunk, "more_body": more})

    def wire(self) -> CallerWire | None:
        """A way to write pieces of the answer that has begun without waiting, where there is one.

        What is written there has to be added to `sent`.
        """
        if self._outbox is None:
            return None
        return wire_behind(self.scope, self._send, self._outbox)

    async def _transmit(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as exc:  # how ASGI servers say that nobody listens (spec 2.4)
            raise CallerGone from exc

    async def answer(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: Iterable[Header] = (),
    ) -> None:
        """Send a whole answer."""
        await self.start(
            status,
            [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        )
        await self.body(b"" if self.scope["method"] == "HEAD" else body, more=False)

    async def answer_json(self, status: int, value: Any, headers: Iterable[Header] = ()) -> None:
        await self.answer(status, msgspec.json.encode(value), headers=headers)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {limit} bytes.")
