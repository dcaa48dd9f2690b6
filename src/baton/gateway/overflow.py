"""Sends what this deployment cannot take to another provider, and says so.

Only before anything was answered, only for requests that a provider understands (`portable`), and
only with the operator's own key: of the caller's headers none goes along. When the provider cannot
answer either, the caller gets the error he would have got without it, and the provider is left
alone for a moment. A request marked `x-baton-local-only: 1` never leaves.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Literal

import aiohttp

from baton.errors import BrokenStream, ConfigRefused, OverflowFailed
from baton.gateway.answers import last_headers, timing_comment, wants_timing, way_headers
from baton.gateway.openai_errors import reshape, stream_event
from baton.gateway.portable import NotPortable, portable_body
from baton.gateway.prefill import RequestRejected
from baton.gateway.request_body import encode_body
from baton.gateway.sse import EVENT_END, WholeEvents
from baton.spec.provider_url import url_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.errors import GatewayError
    from baton.gateway.ask import Ask
    from baton.gateway.caller import Caller
    from baton.gateway.request_body import Body
    from baton.observe.metrics import GatewayMetrics
    from baton.observe.timeline import Timeline
    from baton.spec.schema import Overflow as Settings

log = logging.getLogger("baton.gateway.overflow")

Reason = Literal["saturated", "unready"]
CONNECT_TIMEOUT_S = 5.0
COOL_OFF_S = 5.0
"""How long a provider that failed is left alone."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# The caller's own mistakes, which he should hear of. Anything else (our key, our model name, the
# provider's limits) is between the operator and the provider.
CALLERS_FAULT = frozenset({400, 413, 422})
_DONE = b"data: [DONE]"


class Overflow:
    """The provider, with its own limits. Made before the event loop, used inside one."""

    def __init__(
        self, settings: Settings, metrics: GatewayMetrics, environ: Mapping[str, str] | None = None
    ) -> None:
        """Read the provider's key.

        Raises:
            ConfigRefused: It is not there, or the URL is none.
        """
        fault = url_fault(settings.base_url)
        if fault is not None:
            raise ConfigRefused(f"overflow: {fault[0]}", cure=fault[1])
        self.settings = settings
        self.inflight = 0
        self._metrics = metrics
        self._headers = {"content-type": "application/json", "user-agent": "baton"}
        if settings.api_key_env is not None:
            key = (os.environ if environ is None else environ).get(settings.api_key_env, "").strip()
            if not key:
                raise ConfigRefused(
                    f"overflow.api_key_env names {settings.api_key_env}, which is unset or empty",
                    cure=f"set {settings.api_key_env} to the provider's key, or leave overflow out",
                )
            self._headers["authorization"] = f"Bearer {key}"
        self._session: aiohttp.ClientSession | None = None
        self._cool_until = 0.0

    def why_not(self, caller: Caller, ask: Ask) -> str | None:
        """Why this request cannot go to the provider now, or None when it can."""
        if caller.header(b"x-baton-local-only") not in (None, b"0"):
            return "local-only"
        if self.inflight >= self.settings.max_inflight:
            return "provider-full"
        if time.monotonic() < self._cool_until:
            return "provider-failed"
        try:
            self.body_for(ask)
        except NotPortable as exc:
            return exc.field
        return None

    def body_for(self, ask: Ask) -> Body:
        """The body for the provider, with its name for the model.

        Raises:
            NotPortable: There is none.
        """
        if ask.body is None:
            raise NotPortable(ask.route.path)
        body = portable_body(ask.route.path, ask.body, self.settings.pass_fields)
        asked = body.get("model")
        name = self.settings.models.get(asked or "", self.settings.model or asked)
        if name is None:
            raise NotPortable("model")
        body["model"] = name
        return body

    async def serve(
        self,
        caller: Caller,
        ask: Ask,
        timeline: Timeline,
        *,
        reason: Reason,
        instead_of: GatewayError,
        idle_s: float,
    ) -> None:
        """Let the provider answer. `why_not` has said that it can, just now.

        Raises:
            GatewayError: `instead_of`: the provider failed as well.
            RequestRejected: The provider says that the caller's request is wrong.
            BrokenStream: Its stream broke off; the caller got an SSE error event.
        """
        outcome = "hangup"
        self.inflight += 1
        try:
            response = None
            try:
                started = timeline.now()
                response, first = await self._open(ask)
                timeline.add("overflow", timeline.now() - started)
                timeline.route, timeline.reason = "overflow", reason
                caller.extra[b"x-baton-served-by"] = b"overflow"
                await _hand_on(response, first, caller, ask, timeline, idle_s=idle_s)
                outcome = "ok"
            finally:
                if response is not None:
                    response.close()  # one that is not read to its end: the provider sees it
        except OverflowFailed as failed:
            outcome = "failed"
            self._cool_until = time.monotonic() + COOL_OFF_S
            log.warning(
                "the overflow provider failed; the caller gets the local error",
                extra={"request_id": caller.request_id, "error": str(failed)},
            )
            raise instead_of from failed
        except RequestRejected:
            outcome = "rejected"
            timeline.route, timeline.reason = "overflow", reason
            caller.extra[b"x-baton-served-by"] = b"overflow"
            raise
        except BrokenStream:
            outcome = "broken"
            raise
        finally:
            self.inflight -= 1
            self._metrics.overflow.labels(reason, outcome).inc()

    async def _open(self, ask: Ask) -> tuple[aiohttp.ClientResponse, bytes]:
        """The provider's answer: with its first bytes when it streams, whole when not."""
        body = encode_body(self.body_for(ask))
        # base_url ends in /v1, as client libraries have it; our routes begin with it.
        url = self.settings.base_url.rstrip("/") + ask.route.path.removeprefix("/v1")
        accept = "text/event-stream" if ask.streamed else "application/json"
        headers = {**self._headers, "accept": accept}
        response = None
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                response = await self._client().request(
                    "POST", url, data=body, headers=headers, allow_redirects=False
                )
                return response, await _first_words(response)
        except BaseException as exc:
            if response is not None:
                response.close()
            if isinstance(exc, TimeoutError):
                why = f"the provider did not answer within {self.settings.timeout_s:g} s"
                raise OverflowFailed(why) from exc
            if isinstance(exc, (aiohttp.ClientError, OSError)):
                raise OverflowFailed(f"the provider cannot be reached: {exc!r}") from exc
            raise

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                # Not from the environment: a .netrc would put another key in place of ours.
                trust_env=False,
            )
        return self._session

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _first_words(response: aiohttp.ClientResponse) -> bytes:
    """The first bytes of a stream, or a whole answer that is none."""
    status = response.status
    if status in CALLERS_FAULT:
        raise RequestRejected(status, reshape(status, await _whole(response)))
    if status != 200:  # noqa: PLR2004
        raise OverflowFailed(f"the provider answered {status}")
    if not _streams(response):
        return await _whole(response)
    first = await response.content.readany()
    if not first:
        raise OverflowFailed("the provider's stream was empty")
    return first


def _streams(response: aiohttp.ClientResponse) -> bool:
    return response.content_type == "text/event-stream"


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise OverflowFailed(f"the provider's answer is larger than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


async def _hand_on(
    response: aiohttp.ClientResponse,
    first: bytes,
    caller: Caller,
    ask: Ask,
    timeline: Timeline,
    *,
    idle_s: float,
) -> None:
    """Send the answer on. Of the provider's headers only the kind of content goes along."""
    timeline.status = 200
    timeline.first_byte()
    if not _streams(response):
        timeline.count_usage(first)
        timeline.finish("ok")
        await caller.answer(200, first, headers=last_headers(timeline, caller))
        return
    headers = way_headers(timeline)
    timeline.streamed = True
    headers += [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ]
    await caller.start(200, headers)
    whole, lines = WholeEvents(), _Lines()
    done = False
    chunk, why = first, "ended early"
    try:
        while chunk:
            events = whole.feed(lines.feed(chunk))
            if events:
                done = events.endswith(_DONE + EVENT_END)
                if done and wants_timing(caller):
                    timeline.count_usage(events)
                    timeline.finish("ok")
                    events = events[: -len(_DONE + EVENT_END)] + timing_comment(timeline)
                    events += _DONE + EVENT_END
                await caller.body(events, more=True)
            async with asyncio.timeout(idle_s):
                chunk = await response.content.readany()
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        why = "silent" if isinstance(exc, TimeoutError) else "broke off"
    else:
        if whole.rest().strip() == _DONE:  # some end without the empty line
            await caller.body(_DONE + EVENT_END, more=True)
            done = True
        elif whole.rest().strip():
            done = False
    if not done:
        error = BrokenStream(f"The stream broke off before the answer was complete ({why}).")
        await caller.body(stream_event(error, ask.route.dialect), more=True)
        await caller.body(b"", more=False)
        raise error
    await caller.body(b"", more=False)
    timeline.finish("ok")


class _Lines:
    """Ends lines with a line feed alone, as the event cutter expects; JSON holds no bare ones."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        if b"\r" not in chunk and not self._held:
            return chunk
        chunk = self._held + chunk
        self._held = b"\r" if chunk.endswith(b"\r") else b""
        return chunk[: len(chunk) - len(self._held)].replace(b"\r\n", b"\n")
