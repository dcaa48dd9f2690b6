"""Opens the decode leg: the caller's request, with prefill's params when there are any.

The answer is handed on only when it says something: a streamed answer begins with status 200
before the KV has come, and a load that failed shows as its next event. Until then another engine
can still be asked.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from typing import TYPE_CHECKING

import msgspec

from baton.errors import LegFailed
from baton.gateway.engine_client import failure_of_status
from baton.gateway.openai_errors import reshape
from baton.gateway.prefill import RequestRejected, usable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton.gateway.engine_client import EngineClient
    from baton.gateway.engine_wire import EngineAnswer
    from baton.gateway.handoff import Handoff
    from baton.gateway.prompt_usage import PromptUsage
    from baton.gateway.request_body import Body
    from baton.gateway.routes import Route
    from baton.spec.lease import EngineLease

# vLLM 0.29 `create_streaming_error_response`; its Anthropic and Responses streams name the event.
_ERROR_EVENT = re.compile(rb"(?:^|\n)(?:data: (\{\"error\": ?\{.*)|event: error\n)")
_LONGEST_SALT = 1024
"""vLLM 0.29 takes no longer one (`cache_salt`, entrypoints/**/protocol.py)."""
_EVENT_END = b"\n\n"
_EMPTY_CHOICES = b'"choices":[]'


def engine_tag(replica_id: str) -> str:
    """Eight hex digits that stand for an engine in the id of a response it holds."""
    return hashlib.sha256(replica_id.encode()).hexdigest()[:8]


def tag_in(response_id: str) -> str | None:
    """The engine's tag in a response id that this deployment gave out."""
    match = re.fullmatch(r"resp_([0-9a-f]{8})[0-9a-f]{32}", response_id)
    return match.group(1) if match else None


def decode_body(
    body: Body, route: Route, engine: EngineLease, offer: Handoff | None, *,
    asks_ids: bool = False, salt: str | None = None,
) -> Body:  # fmt: skip
    """A copy of the caller's body for a decode engine.

    With `asks_ids` it also asks for token ids, so that another engine can go on (`resume`). With
    `salt` nothing is found in what its prefix cache holds of others (`lease_guard`).
    """
    copy = {key: value for key, value in usable(body, route).items() if key != "request_id"}
    if route.path == "/v1/responses":
        # The id names the engine that holds the response, so that any gateway finds it again.
        copy["request_id"] = f"resp_{engine_tag(engine.replica_id)}{uuid.uuid4().hex}"
    if asks_ids:
        copy["return_token_ids"] = True
    if salt is not None:
        copy["cache_salt"] = f"{copy.get('cache_salt') or ''}{salt}"[-_LONGEST_SALT:]
    if offer is not None:
        copy["kv_transfer_params"] = offer.params.model_dump()
    return copy


class DecodeAnswer:
    """A decode engine's answer that is worth handing on.

    `held` is what was read before that was clear. For an answer that is not streamed it is all.
    `first_byte_at` is on the clock of `time.perf_counter`. `refused`: a stream whose first event
    is the engine's refusal of the request.
    """

    __slots__ = (
        "_answer", "content_type", "engine", "first_byte_at", "held", "prompt_usage", "refused",
        "status", "streamed",
    )  # fmt: skip

    def __init__(
        self,
        answer: EngineAnswer,
        engine: EngineLease,
        held: bytes,
        first_byte_at: float,
        *,
        refused: bool = False,
    ) -> None:
        self.refused = refused
        self.prompt_usage: PromptUsage | None = None
        """What prefill said of the prompt; None where decode itself has read it."""
        self._answer = answer
        self.engine = engine
        self.held = held
        self.first_byte_at = first_byte_at
        self.status = answer.status
        self.content_type = answer.content_type
        self.streamed = answer.is_stream

    async def next_chunk(self) -> bytes:
        """More bytes of a streamed answer; empty at its proper end."""
        return await self._answer.next_chunk()

    async def flow(self, taker: Callable[[bytes], bool]) -> None:
        """Have pieces taken as they come (`EngineAnswer.flow`)."""
        await self._answer.flow(taker)

    def read_by_prefill(self, said: PromptUsage | None) -> None:
        """Prefill has read the prompt and said this of it; decode was handed its KV."""
        self.prompt_usage = said
        if said is not None and not self.streamed:
            self.held = said.put_into(self.held, streamed=False)

    def close(self) -> None:
        self._answer.close()


async def open_decode(
    client: EngineClient,
    engine: EngineLease,
    route: Route,
    *,
    method: str,
    path: str,
    body: bytes | None,
    headers: Mapping[str, str],
) -> DecodeAnswer:
    """Send the request to a decode engine and wait until its answer says something.

    Raises:
        LegFailed: Refused, broken, 5xx, busy, or a stream that begins with an engine's error.
        RequestRejected: 4xx: the caller's request is wrong.
    """
    answer = await client.send(engine, method, path, body=body, headers=headers)
    try:
        await _look_at_status(answer, engine)
        if not answer.is_stream:
            raw = await answer.read()
            return DecodeAnswer(answer, engine, raw, time.perf_counter())
        return await _first_words(answer, engine, route)
    except BaseException:
        answer.close()
        raise


async def _look_at_status(answer: EngineAnswer, engine: EngineLease) -> None:
    failure = failure_of_status(answer.status)
    if failure is not None:
        raise LegFailed(failure, engine.replica_id, f"status {answer.status}")
    if answer.status >= 400:  # noqa: PLR2004
        raw = (await answer.read()).replace(b", 'return_token_ids': True", b"")  # we asked for them
        raise RequestRejected(answer.status, reshape(answer.status, raw))


async def _first_words(answer: EngineAnswer, engine: EngineLease, route: Route) -> DecodeAnswer:
    held = b""
    first_byte_at = 0.0
    ended = False
    while not says_something(held, route):
        chunk = await answer.next_chunk()
        if not chunk:
            ended = True
            break
        first_byte_at = first_byte_at or time.perf_counter()
        held += chunk
    if not held:
        raise LegFailed("truncated", engine.replica_id, "the stream ended before its first byte")
    status = error_in(held)
    if status is None and (ended or _is_over(held, route)) and not _has_finished(held, route):
        raise LegFailed("error_event", engine.replica_id, "the stream ended without an answer")
    if status is not None and status >= 500:  # noqa: PLR2004
        raise LegFailed("error_event", engine.replica_id, f"status {status} in the first event")
    return DecodeAnswer(answer, engine, held, first_byte_at, refused=status is not None)


def says_something(held: bytes, route: Route) -> bool:
    """Whether these first events are enough to know that the answer is good, or that it is not.

    A usage chunk (`choices: []`) says nothing: it may be all that a failed request sends.
    """
    *events, rest = held.split(_EVENT_END)
    del rest
    return any(_EMPTY_CHOICES not in event for event in events[route.preamble_events :])


def _is_over(held: bytes, route: Route) -> bool:
    return route.terminator is not None and held.endswith(route.terminator + _EVENT_END)


def _has_finished(held: bytes, route: Route) -> bool:
    """Whether the answer says why it ended.

    vLLM 0.29 does not when a KV load fails on a streamed chat or completion: the output with
    `finish_reason: error` has no tokens yet, is taken for a chunk of prefill and skipped before
    its error is raised (openai/chat_completion/serving.py and openai/completion/serving.py,
    "Chunked prefill case, don't return empty chunks"). What is left is an empty answer and [DONE].
    """
    return route.finish_mark is None or route.finish_mark in held


def may_be_error(events: bytes) -> bool:
    """Whether an error event may be among these: two plain searches."""
    return b'data: {"error"' in events or b"event: error\n" in events


def find_error(events: bytes) -> tuple[int, int] | None:
    """Where an engine's error event begins among whole events, and the status inside it."""
    if not may_be_error(events):
        return None
    match = _ERROR_EVENT.search(events)
    if match is None:
        return None
    at = match.start() + (events[match.start() : match.start() + 1] == b"\n")
    if match.group(1) is None:
        return at, 500
    try:
        code = msgspec.json.decode(match.group(1))["error"]["code"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return at, 500
    return at, code if isinstance(code, int) else 500


def error_in(events: bytes) -> int | None:
    """The status inside an error event among these events, or None."""
    found = find_error(events)
    return None if found is None else found[1]
