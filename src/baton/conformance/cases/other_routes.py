"""Responses and embeddings: routes that not every endpoint or model has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from baton.conformance.case import Case, Fails, NotOffered, check
from baton.conformance.cases import sources
from baton.conformance.probe import LONG, OK, message_of
from baton.conformance.sse import SseReader

if TYPE_CHECKING:
    from baton.conformance.probe import Probe

_RESPONSES = "/v1/responses"


def _asked(probe: Probe, **more: Any) -> dict[str, Any]:
    return {"model": probe.model, "input": LONG, "max_output_tokens": 12, "temperature": 0, **more}


def _text(response: dict[str, Any]) -> str:
    """The text of a response object that has ended, held to its shape."""
    check(response.get("object") == "response", f"object is {response.get('object')!r}")
    status = response.get("status")
    check(status in ("completed", "incomplete"), f"status is {status!r}")
    if status == "incomplete":
        reason = (response.get("incomplete_details") or {}).get("reason")
        check(reason == "max_output_tokens", f"incomplete_details.reason is {reason!r}")
    texts = [
        part.get("text") or ""
        for item in response.get("output") or ()
        if item.get("type") == "message"
        for part in item.get("content") or ()
    ]
    usage = response.get("usage")
    if not isinstance(usage, dict):
        raise Fails(f"usage is {usage!r}")
    total = usage["input_tokens"] + usage["output_tokens"]
    check(usage["total_tokens"] == total, f"total_tokens is {usage['total_tokens']}, not {total}")
    return "".join(texts)


async def _create(probe: Probe) -> None:
    response = probe.offered(await probe.post(_RESPONSES, _asked(probe)))
    probe.see(text=_text(response), status=response["status"],
              input_tokens=response["usage"]["input_tokens"])  # fmt: skip


async def _streamed(probe: Probe) -> None:
    reply = await probe.post(_RESPONSES, _asked(probe, stream=True))
    if reply.status != OK:
        probe.offered(reply)
    reader = SseReader()
    events = []
    for data in reader.feed(reply.body):
        if data != "[DONE]":
            try:
                events.append(json.loads(data))
            except ValueError as exc:
                raise Fails(f"an event that is no JSON: {data[:120]!r}") from exc
    kinds = [event.get("type") for event in events]
    check(kinds[:1] == ["response.created"], f"the first event is {kinds[:1]}")
    ends = ("response.completed", "response.incomplete")
    check(kinds[-1] in ends, f"the last event is {kinds[-1]!r}")
    check(sum(kind in ends for kind in kinds) == 1, "more than one end")
    text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    whole = _text(events[-1]["response"])
    check(text == whole, f"the deltas make {text!r:.80}, the end says {whole!r:.80}")
    numbers = [event.get("sequence_number") for event in events]
    check(numbers == sorted(set(numbers)), f"sequence numbers are {numbers[:12]}")
    probe.see(text=text, kinds=sorted(set(kinds)))


async def _unknown(probe: Probe) -> None:
    first = await probe.post(_RESPONSES, _asked(probe, max_output_tokens=1))
    probe.offered(first)
    probe.refused(await probe.get(f"{_RESPONSES}/resp_000000000000000000000000"), 404)


async def _embed(probe: Probe) -> None:
    asked = {"model": probe.model, "input": ["a river", "a lake"]}
    reply = await probe.post("/v1/embeddings", asked)
    if reply.status in (400, 500) and "embed" in message_of(reply).lower():
        raise NotOffered(f"status {reply.status}: {message_of(reply)[:160]}")
    answer = probe.offered(reply)
    check(answer.get("object") == "list", f"object is {answer.get('object')!r}")
    rows = answer.get("data") or ()
    check([row.get("index") for row in rows] == [0, 1], "not one embedding for each text")
    lengths = {len(row["embedding"]) for row in rows}
    check(len(lengths) == 1 and 0 not in lengths, f"lengths are {lengths}")
    probe.see(length=lengths.pop())


CASES = (
    Case("responses.create", "a response object with output, status and usage", sources.RESPONSES,
         _create),
    Case("responses.stream", "events from `response.created` to the one end, numbered",
         sources.RESPONSES, _streamed),
    Case("responses.unknown", "404 for a response that is not there", sources.ERRORS, _unknown),
    Case("embeddings.create", "a vector for each text, in order", sources.EMBEDDINGS, _embed),
)  # fmt: skip
