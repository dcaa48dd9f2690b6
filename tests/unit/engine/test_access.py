"""The engine's own access line and its count of open requests."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from baton.engine.access import AccessLog, prompt_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

SCOPE = {
    "type": "http",
    "path": "/v1/completions",
    "headers": [(b"x-request-id", b"abc-p0")],
}


async def receive() -> dict[str, Any]:
    return {"type": "http.disconnect"}


async def send(message: Any) -> None:
    assert message


async def test_an_open_request_is_counted_until_it_ends() -> None:
    """A drain waits for exactly these."""
    inside, leave = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inside.set()
        await leave.wait()

    access = AccessLog(app, role="decode")
    task = asyncio.create_task(access(dict(SCOPE), receive, send))
    await inside.wait()
    assert access.count == 1
    leave.set()
    await task
    assert access.count == 0


async def test_a_request_that_is_cancelled_is_no_longer_counted() -> None:
    """A caller who hangs up must not hold up a drain for ever."""
    inside = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    access = AccessLog(app, role="decode")
    task = asyncio.create_task(access(dict(SCOPE), receive, send))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert access.count == 0


class Lines(logging.Handler):
    """Keeps what is logged; other tests may have rearranged the loggers above."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger("baton.engine.access"), Lines()
    level, disabled = logger.level, logger.disabled
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.disabled = False
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.disabled = disabled


async def test_the_line_carries_the_gateways_request_id(lines: Lines) -> None:
    """One id leads from the caller through the gateway to both engines."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    await AccessLog(app, role="prefill")(dict(SCOPE), receive, send)
    (record,) = lines.records
    assert (record.request_id, record.status, record.role) == ("abc-p0", 200, "prefill")


async def test_probes_are_neither_counted_nor_logged(lines: Lines) -> None:
    """A probe every second must not keep a drain from ending."""
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(access.count)

    access = AccessLog(app, role="prefill")
    await access({**SCOPE, "path": "/metrics"}, receive, send)
    assert seen == [0]
    assert lines.records == []


@pytest.mark.parametrize(
    ("changed", "size"),
    [
        ({}, 700),
        ({"method": "GET"}, 0),
        ({"path": "/tokenize"}, 0),
        ({"headers": []}, 0),
        ({"headers": [(b"content-length", b"many")]}, 0),
    ],
)
def test_only_bodies_that_the_engine_generates_for_count_as_prompts(
    changed: dict[str, Any], size: int
) -> None:
    """They are what tokens are estimated from."""
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions",
        "headers": [(b"content-length", b"700")],
    }  # fmt: skip
    assert prompt_bytes({**scope, **changed}) == size
