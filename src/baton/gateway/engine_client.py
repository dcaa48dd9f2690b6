"""HTTP to engines: one shared session, connections kept open, failures told apart.

What a leg needs to know about a failure is its kind, because the kind decides what is tried next
(`recovery`). Nothing above this file knows aiohttp.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp

from baton.errors import LegFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.errors import FailureKind
    from baton.spec.lease import EngineLease

CONNECT_TIMEOUT_S = 3.0
# vLLM's uvicorn closes idle connections after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE); ours go first,
# so that a request is never sent into a connection that is being closed.
KEEPALIVE_S = 4.0
_READ_BUFFER = 256 * 1024


class EngineAnswer:
    """An engine's answer whose status is known and whose body may still be coming."""

    __slots__ = ("_engine", "_response", "content_type", "status")

    def __init__(self, response: aiohttp.ClientResponse, engine: str) -> None:
        self._response = response
        self._engine = engine
        self.status = response.status
        self.content_type = response.headers.get("content-type", "application/json")

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    @property
    def is_stream(self) -> bool:
        return self.content_type.startswith("text/event-stream")

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            LegFailed: The body broke off.
        """
        try:
            return await self._response.read()
        except (aiohttp.ClientError, OSError) as exc:
            raise LegFailed("truncated", self._engine, repr(exc)) from exc

    async def next_chunk(self) -> bytes:
        """The bytes that have come since the last call; waits for some. Empty at the proper end.

        Raises:
            LegFailed: The body broke off. A body that ends early is never taken for a whole one.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as exc:
            raise LegFailed("truncated", self._engine, repr(exc)) from exc

    def close(self) -> None:
        """Done with it. A body that was not read to its end closes the connection: vLLM aborts."""
        self._response.close()


class EngineClient:
    """Sends legs to engines. Made inside the event loop that uses it."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEEPALIVE_S, ttl_dns_cache=30, use_dns_cache=True
            ),
            # Our own timeouts: aiohttp's total would cut long streams.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            auto_decompress=False,
            read_bufsize=_READ_BUFFER,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
            trust_env=False,
        )

    async def send(
        self,
        engine: EngineLease,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> EngineAnswer:
        """Send a request and wait for the answer's status.

        Raises:
            LegFailed: `refused`, `unreachable` or `disconnected`.
        """
        try:
            response = await self._session.request(
                method, engine.url + path, data=body, headers=headers, allow_redirects=False
            )
        except aiohttp.ConnectionTimeoutError as exc:
            raise LegFailed("unreachable", engine.replica_id, str(exc)) from exc
        except aiohttp.ClientConnectorError as exc:
            raise LegFailed("refused", engine.replica_id, str(exc)) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise LegFailed("disconnected", engine.replica_id, repr(exc)) from exc
        return EngineAnswer(response, engine.replica_id)

    async def fetch(
        self,
        engine: EngineLease,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Send a request and read the whole answer.

        Raises:
            LegFailed: With `timeout` when it takes longer than `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.send(engine, method, path, body=body, headers=headers)
                try:
                    return answer.status, await answer.read()
                finally:
                    answer.close()
        except TimeoutError as exc:
            raise LegFailed("timeout", engine.replica_id, f"after {timeout_s:g} s") from exc

    async def close(self) -> None:
        await self._session.close()


def failure_of_status(status: int) -> FailureKind | None:
    """What an engine's status means for the leg; None when the answer is the caller's."""
    if status in (401, 403):
        return "unauthorized"
    if status in (429, 503):
        return "busy"
    # 501 is vLLM's "this model cannot do that": no other engine of the deployment can.
    if status >= 500 and status != 501:  # noqa: PLR2004
        return "server_error"
    return None
