"""Writes one answer onto one connection: whole or as a stream, in order or as a fault has it.

vLLM sends the status and the headers of a stream before anything is computed, so what goes wrong
later (KV that did not come, an engine that died) stands inside a 200. So it does here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from baton.engine.simulated.answers import stream_error
from baton.engine.simulated.core import Core, EngineDead, Generation
from baton.engine.simulated.handoff import KvLoadFailed
from baton.engine.simulated.requests import error_body

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.types import Receive, Scope, Send

    from baton.engine.simulated.answers import Answer
    from baton.engine.simulated.faults import Plan
    from baton.engine.simulated.prompts import Job
    from baton.engine.simulated.requests import ChatRequest, CompletionRequest
    from baton.engine.simulated.sequence import Step

    AnyJob = Job[ChatRequest] | Job[CompletionRequest]

TRANSPORT = "baton.simulated.transport"
"""Where the server leaves the connection in the scope, so that a fault can cut it."""
JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
_INTERNAL_ERROR = "Internal server error"
_DEAD_ERROR = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_GARBAGE = b"\xff\xfe{data: not json}\n\n"


class _CutOff(Exception):
    """A fault has cut the connection: nothing more can be said on it."""


class Line:
    """The connection of one request, and what faults do to it."""

    def __init__(self, scope: Scope, send: Send, on_kill: Callable[[], None]) -> None:
        self.send = send
        self._transport = scope.get(TRANSPORT)
        self._on_kill = on_kill

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def fail_at(self, plan: Plan, written: int) -> None:
        """Do what the plan has for this number of tokens."""
        if plan.die_at == written:
            self._on_kill()
            raise _CutOff
        if plan.drop_at == written:
            self.cut()
            raise _CutOff
        if plan.hang_at == written or plan.hang:
            await asyncio.Event().wait()


class Writing:
    """Turns a job into the answer's bytes."""

    def __init__(self, core: Core, job: AnyJob, answer: Answer, plan: Plan, line: Line) -> None:
        self._core, self._job, self._answer = core, job, answer
        self._plan, self._line = plan, line
        self._arrived = time.monotonic()
        self._has_fault = bool(plan.hang or plan.die_at is not None) or (
            plan.drop_at is not None or plan.hang_at is not None
        )

    async def whole_or_stream(self) -> None:
        with contextlib.suppress(_CutOff):
            if self._plan.garbage:
                await self._garbage()
            elif self._job.stream:
                await self._stream()
            else:
                await self._whole()

    def _generations(self) -> list[Generation]:
        name, job = self._answer.request_id, self._job
        return [
            Generation(
                request_id=f"{name}-{number}" if job.numbered else name,
                tokens=prompt,
                sampling=job.sampling[number],
                n=job.n,
                kv=job.kv,
                salt=job.request.cache_salt or "",
            )
            for number, prompt in enumerate(job.prompts)
        ]

    async def _stream(self) -> None:
        send, answer, n = self._line.send, self._answer, self._job.n
        await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        if self._has_fault:
            await self._line.fail_at(self._plan, 0)
        prompt_tokens = written = 0
        try:
            for number, generation in enumerate(self._generations()):
                prompt_tokens += len(generation.tokens)
                async with self._core.admitted(generation, self._plan) as run:
                    answer.cached = run.cached
                    of_this = 0
                    async for step in run.steps(arrived=self._arrived):
                        if not of_this and (opening := answer.opening(generation.tokens)):
                            await send(_part(opening))
                        of_this += 1
                        for choice in range(number * n, number * n + n):
                            await send(_part(answer.chunk(choice, step, of_this)))
                        if self._has_fault:
                            await self._line.fail_at(self._plan, written + of_this)
                    written += of_this
            last = answer.closing(prompt_tokens, written * n)
        except KvLoadFailed:
            # No error and no finish_reason: vLLM 0.29 skips results without text and tokens before
            # it looks at why they ended (openai/completion/serving.py, "Chunked prefill case").
            last = answer.opening(generation.tokens) + answer.closing(prompt_tokens, written * n)
        except EngineDead:
            last = stream_error(_DEAD_ERROR)
        await send({"type": "http.response.body", "body": last})

    async def _whole(self) -> None:
        if self._has_fault:
            await self._line.fail_at(self._plan, 0)
        answers: list[tuple[str, list[Step]]] = []
        kv: dict[str, Any] | None = None
        written = 0
        try:
            for generation in self._generations():
                steps: list[Step] = []
                async with self._core.admitted(generation, self._plan) as run:
                    self._answer.cached = run.cached
                    async for step in run.steps(arrived=self._arrived):
                        steps.append(step)
                        written += 1
                        if self._has_fault:
                            await self._line.fail_at(self._plan, written)
                    if generation.kv.get("do_remote_decode") and kv is None:
                        kv = self._core.transfer_params(run)
                text = "".join(step.text for step in steps)
                answers += [(text, steps)] * self._job.n
        except (KvLoadFailed, EngineDead) as exc:
            said = _DEAD_ERROR if isinstance(exc, EngineDead) else _INTERNAL_ERROR
            body = error_body(said, kind="InternalServerError", param=None, code=500)
            await send_answer(self._line.send, 500, body)
            return
        await send_answer(self._line.send, 200, self._answer.whole(self._job.prompts, answers, kv))

    async def _garbage(self) -> None:
        content_type = EVENTS if self._job.stream else JSON
        await send_answer(self._line.send, 200, _GARBAGE, content_type=content_type)


def _part(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


_STREAM_HEADERS = [(b"content-type", EVENTS)]


async def until_gone(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do the work, unless the caller hangs up first: then it is cancelled where it stands."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    leaving = loop.create_task(_hang_up(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_answer(
    send: Send, status: int, body: bytes, *, content_type: bytes | None = JSON
) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    if content_type is not None:
        headers.append((b"content-type", content_type))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
