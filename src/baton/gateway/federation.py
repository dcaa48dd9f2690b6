"""Every engine's own metrics at one address: `/baton/engines/metrics`.

Engines listen on ports that nobody but gateways may use, and come and go; Prometheus would need the
directory and the secret. Here it scrapes one page instead: each engine's `/metrics` with the labels
`role`, `engine` and `node`. An engine that does not answer in time costs its own samples and no
others, and `baton_engine_scrape_up` says so.

Ask one gateway for it, not each: all have the same engines. What a scrape finds is kept for
`KEEP_S`, so that callers who ask together cost the engines one request.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from baton.errors import LegFailed
from baton.gateway.ask import leg_headers
from baton.observe import state_definitions as s
from baton.observe.exposition import Page

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from baton.gateway.ask import Parts
    from baton.spec.lease import EngineLease

TIMEOUT_S = 3.0
"""For one engine."""
DEADLINE_S = 8.0
"""For all: below Prometheus' default of 10 s."""
AT_ONCE = 16
MAX_BYTES = 4 * 1024 * 1024
"""Of one engine's page."""
MAX_PAGE_BYTES = 64 * 1024 * 1024
KEEP_S = 1.0
LINES_AT_ONCE = 200
"""Streams wait while a piece of this length is read, and no longer."""


@dataclass(frozen=True)
class _Scraped:
    engine: EngineLease
    seconds: float
    text: bytes | None
    """None: it did not answer in time, or with what is no page."""


class Federation:
    """One gateway's. Made outside the event loop, used inside one."""

    def __init__(self) -> None:
        self._made_at = float("-inf")
        self._page = b""
        self._running: asyncio.Task[bytes] | None = None

    async def page(self, parts: Parts) -> bytes:
        """The page, not older than `KEEP_S`."""
        if time.monotonic() - self._made_at < KEEP_S:
            return self._page
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._make(parts))
        # Whoever hangs up must not end it for the others.
        return await asyncio.shield(self._running)

    def close(self) -> None:
        """The gateway ends: nobody is asked any more."""
        if self._running is not None:
            self._running.cancel()

    async def _make(self, parts: Parts) -> bytes:
        scraped = await scrape(parts)
        registry = CollectorRegistry()
        up, took, dropped = (
            one.gauge(registry) for one in (s.SCRAPE_UP, s.SCRAPE_SECONDS, s.SCRAPE_DROPPED)
        )
        page, size = Page(), 0
        for one in scraped:
            labels = (one.engine.role, one.engine.replica_id, one.engine.node)
            fits = one.text is not None and size + len(one.text) <= MAX_PAGE_BYTES
            up.labels(*labels).set(fits)
            took.labels(*labels).set(one.seconds)
            if one.text is None or not fits:
                continue
            size += len(one.text)
            named = dict(zip(("role", "engine", "node"), labels, strict=True))
            part, lines = page.part(named), one.text.decode(errors="replace").split("\n")
            for at in range(0, len(lines), LINES_AT_ONCE):
                part.feed(lines[at : at + LINES_AT_ONCE])
                await asyncio.sleep(0)  # streams go on meanwhile
            dropped.labels(*labels).set(part.dropped)
        self._page = generate_latest(registry) + page.text().encode()
        self._made_at = time.monotonic()
        return self._page


async def scrape(parts: Parts) -> list[_Scraped]:
    """Ask all engines, a few at once; those that are not asked by the deadline did not answer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    places = asyncio.Semaphore(AT_ONCE)

    async def ask(engine: EngineLease) -> _Scraped:
        async with places:
            started = loop.time()
            left = min(TIMEOUT_S, deadline - started)
            text = await _ask(parts, engine, left) if left > 0 else None
            return _Scraped(engine, loop.time() - started, text)

    return await asyncio.gather(*(ask(engine) for engine in parts.directory.all_engines()))


async def _ask(parts: Parts, engine: EngineLease, timeout_s: float) -> bytes | None:
    headers = leg_headers(parts.directory, {"accept": "text/plain; version=0.0.4"}, "metrics")
    try:
        async with asyncio.timeout(timeout_s):
            answer = await parts.client.send(engine, "GET", "/metrics", headers=headers)
            try:
                if answer.status != 200 or answer.content_type.startswith("application/json"):  # noqa: PLR2004
                    return None
                return await _limited(answer.next_chunk)
            finally:
                answer.close()
    except (LegFailed, TimeoutError):
        return None


async def _limited(next_chunk: Callable[[], Awaitable[bytes]]) -> bytes | None:
    """The whole body; None when it is larger than `MAX_BYTES`."""
    chunks, size = [], 0
    while chunk := await next_chunk():
        size += len(chunk)
        if size > MAX_BYTES:
            return None
        chunks.append(chunk)
    return b"".join(chunks)
