"""Runs the prefill leg: the caller's prompt, one token, and an offer of KV as the answer.

Whatever becomes of a leg, the KV that its engine may hold has an owner: the caller of `prefill_on`
when it offers some, `releases` on every other way out.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from baton.errors import LegFailed, PrefillFailed
from baton.gateway.engine_client import failure_of_status
from baton.gateway.generations import generation_of
from baton.gateway.handoff import FOR_PREFILL, Handoff, parse_params
from baton.gateway.openai_errors import reshape
from baton.gateway.releases import event_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from baton.gateway.ask import Parts
    from baton.gateway.engine_client import EngineClient
    from baton.gateway.handoff import KVTransferParams
    from baton.gateway.lease_guard import LeaseWatch
    from baton.gateway.request_body import Body
    from baton.gateway.routes import Route
    from baton.spec.lease import EngineLease

# Left out of the prefill leg: they shape the answer, which nobody reads, and none of them is seen
# by vLLM's prompt rendering. What renderers do see stays as the caller sent it: `tools`,
# `tool_choice` ("none" can drop the tools from the template: `exclude_tools_when_tool_choice_none`)
# and `response_format` (vLLM 0.29 `ChatParams` hands both to model-specific renderers). They are
# also checked there, so that an invalid schema is a 400 before anything was computed.
DROPPED = frozenset({
    "min_tokens",           # larger than max_tokens 1, which vLLM refuses
    "logprobs", "top_logprobs", "logprob_token_ids", "return_tokens_as_token_ids",
    "return_token_ids", "return_prompt_text",
    "stop", "stop_token_ids", "stop_sequences", "include_stop_str_in_output",
    "stream_interval", "include",
    "request_id",           # the answer's id is decode's business
})  # fmt: skip

# A null that the caller may send and vLLM takes for "as usual", until it has computed everything
# and builds its answer, which has no room for it (0.29, `ResponsesRequest` against
# `ResponsesResponse`, entrypoints/openai/responses/protocol.py). The caller would get a 400, and
# prefill's KV, whose params were in that answer, would stay until its lease ends.
NULL_IS_ABSENT: dict[str, frozenset[str]] = {
    "responses": frozenset({"background", "truncation"}),
}


def usable(body: Body, route: Route) -> Body:
    """The caller's body without what vLLM would stumble over when it answers."""
    absent = NULL_IS_ABSENT.get(route.dialect)
    if absent is None:
        return body
    return {key: value for key, value in body.items() if value is not None or key not in absent}


class RequestRejected(Exception):
    """An engine says that the caller's request is wrong. `body` is its OpenAI-shaped answer."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.body = body
        super().__init__(f"the engine answered {status}")


def prefill_body(body: Body, route: Route) -> Body:
    """A copy of the caller's body for the prefill leg: same prompt, one token, not streamed."""
    copy = {key: value for key, value in usable(body, route).items() if key not in DROPPED}
    if copy.get("stream"):
        copy.pop("stream_options", None)  # only allowed with stream; kept otherwise, to be refused
    copy["stream"] = False
    for limit in route.token_limits:
        # A limit that vLLM would refuse stays, so that it is refused before prefill and not after.
        if _is_valid_limit(copy.get(limit)):
            copy[limit] = 1
    if route.dialect == "responses":
        copy["store"] = False
    copy["kv_transfer_params"] = dict(FOR_PREFILL)
    return copy


# vLLM quotes the body that it refuses (pydantic's `input`), as Python writes a dict.
_QUOTED_BODY = re.compile(
    rb", 'input': \{(?:(?!, 'input': ).)*?'kv_transfer_params': \{[^{}]*\}\}", re.DOTALL
)


def without_our_words(raw: bytes) -> bytes:
    """An engine's refusal without the body that it quotes, where that is ours and not the caller's.

    The place, the parameter and the reason stay.
    """
    return _QUOTED_BODY.sub(b"", raw) if b"kv_transfer_params" in raw else raw


def _is_valid_limit(value: Any) -> bool:
    return value is None or (type(value) is int and value >= 1)


async def run_prefill(
    client: EngineClient,
    engine: EngineLease,
    route: Route,
    body: bytes,
    *,
    headers: Mapping[str, str],
    heard: Callable[[Any], None] | None = None,
) -> KVTransferParams:
    """Send the prefill leg (`prefill_body`, encoded) and read its offer.

    Args:
        client: Sends it.
        engine: Where to.
        route: The caller's.
        body: Of the leg.
        headers: Of the leg.
        heard: Gets the whole answer, if it has an offer.

    Raises:
        LegFailed: Refused, broken, 5xx, busy, or an answer without usable params.
        RequestRejected: 4xx: the caller's request is wrong.
    """
    answer = await client.send(engine, "POST", route.path, body=body, headers=headers)
    try:
        failure = failure_of_status(answer.status)
        if failure is not None:
            raise LegFailed(failure, engine.replica_id, f"status {answer.status}")
        raw = await answer.read()
    finally:
        answer.close()
    if answer.status >= 400:  # noqa: PLR2004
        raise RequestRejected(answer.status, reshape(answer.status, without_our_words(raw)))
    try:
        said = msgspec.json.decode(raw)
        params = parse_params(said, engine.replica_id)
    except (msgspec.DecodeError, PrefillFailed) as exc:
        raise LegFailed("no_params", engine.replica_id, str(exc)) from exc
    if heard is not None:
        heard(said)
    return params


@dataclass(frozen=True, slots=True)
class Offered:
    """What a prefill leg ended with: KV that its engine holds for this request.

    `said` is its whole answer.
    """

    handoff: Handoff
    lease: LeaseWatch
    said: Any


async def prefill_on(
    parts: Parts,
    engine: EngineLease,
    route: Route,
    body: bytes,
    *,
    headers: Mapping[str, str],
    leg_id: str,
    timeout_s: float,
) -> Offered:
    """One prefill leg on this engine, within its time.

    Args:
        parts: What every journey shares.
        engine: Where to.
        route: The caller's.
        body: Of the leg: `prefill_body`, encoded.
        headers: Of the leg.
        leg_id: Its internal request id.
        timeout_s: How long it may take.

    Raises:
        LegFailed: As `run_prefill`, or `timeout`.
        RequestRejected: 4xx: the caller's request is wrong.
    """
    heard: list[Any] = []
    # A task of its own, so that a leg which nobody waits for can still be asked what it holds.
    leg = asyncio.create_task(
        run_prefill(parts.client, engine, route, body, headers=headers, heard=heard.append)
    )
    handoff = Handoff(engine.replica_id, leg_id, generation=generation_of(engine))
    lease = parts.leases.begin(engine)
    leg.add_done_callback(lease.offered)
    parts.inflight.begin(engine)
    try:
        done, _ = await asyncio.wait({leg}, timeout=max(0.0, timeout_s))
    except asyncio.CancelledError:
        lease.close()
        parts.releases.give_up(handoff, leg=leg, size=len(body))
        raise
    finally:
        parts.inflight.end(engine)
    if not done:
        lease.close()
        parts.releases.give_up(handoff, leg=leg, size=len(body))
        raise LegFailed("timeout", engine.replica_id)
    try:
        handoff.answered(leg.result())
    except Exception as failure:
        lease.close()
        parts.releases.give_up(handoff, event_of(failure))
        raise
    (said,) = heard
    return Offered(handoff, lease, said)
