"""How the gateway's own answers look: errors in the caller's dialect, headers that tell the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.errors import GatewayError, Saturated
from baton.gateway.openai_errors import body_of, rejection_event, stream_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.gateway.caller import Caller, Header
    from baton.gateway.prefill import RequestRejected
    from baton.gateway.routes import Route
    from baton.observe.timeline import Timeline


def way_headers(timeline: Timeline) -> list[Header]:
    """Headers that say which way a request went."""
    headers = []
    if timeline.route is not None:
        headers.append((b"x-baton-route", timeline.route.encode()))
    if timeline.fallbacks:
        headers.append((b"x-baton-fallback", ",".join(timeline.fallbacks).encode()))
    return headers


def wants_timing(caller: Caller) -> bool:
    """Whether the caller asked for the request's timeline."""
    return caller.header(b"x-baton-timing") == b"1"


def timing_comment(timeline: Timeline) -> bytes:
    """The same for a stream, before its last event."""
    return b": baton-timing " + timeline.as_json().encode() + b"\n\n"


def last_headers(timeline: Timeline, caller: Caller) -> list[Header]:
    """Headers of an answer that ends the request: its way, and its timeline if asked for."""
    headers = way_headers(timeline)
    if wants_timing(caller):
        headers.append((b"x-baton-timing", timeline.as_json().encode()))
    return headers


async def answer_error(
    caller: Caller, error: GatewayError, route: Route | None, headers: Sequence[Header] = ()
) -> None:
    dialect = "openai" if route is None else route.dialect
    if caller.started:
        await caller.body(stream_event(error, dialect), more=True)
        await caller.body(b"", more=False)
        return
    extra = list(headers)
    if isinstance(error, Saturated):
        extra.append((b"retry-after", str(error.retry_after_s).encode()))
    if error.status == 401:  # noqa: PLR2004
        extra.append((b"www-authenticate", b"Bearer"))
    await caller.answer_json(error.status, body_of(error, dialect), extra)


async def answer_rejection(
    caller: Caller, rejected: RequestRejected, route: Route, headers: Sequence[Header] = ()
) -> None:
    """An engine's own words about a request that is wrong; an event when the answer has begun."""
    if caller.started:
        await caller.body(rejection_event(rejected.body, route.dialect), more=True)
        await caller.body(b"", more=False)
        return
    await caller.answer(rejected.status, rejected.body, headers=headers)


async def answer_fault(caller: Caller, route: Route) -> None:
    await answer_error(caller, GatewayError("The gateway failed on this request."), route)
