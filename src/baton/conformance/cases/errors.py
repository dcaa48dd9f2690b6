"""Requests that are wrong: the status, and an error in OpenAI's shape."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from baton.conformance.case import Case, NotOffered, check
from baton.conformance.cases import sources

if TYPE_CHECKING:
    from baton.conformance.probe import Probe

_CHAT = "/v1/chat/completions"
_LONGEST = 300_000
"""Words of a prompt that is made to be too long: enough for a context of a quarter million."""


async def _unknown_model(probe: Probe) -> None:
    path, body = probe.asked(chat=True, model="no-such-model")
    error = probe.refused(await probe.post(path, body), 404)
    check("no-such-model" in error["message"], f"the message is {error['message']!r:.120}")


async def _bad_json(probe: Probe) -> None:
    probe.refused(await probe.post(_CHAT, b'{"model": "x", "messages": ['), 400, 422)


async def _no_object(probe: Probe) -> None:
    probe.refused(await probe.post(_CHAT, b"[1, 2, 3]"), 400, 422)


async def _field(probe: Probe, **fields: Any) -> None:
    _, body = probe.asked(chat=True, **fields)
    probe.refused(await probe.post(_CHAT, body), 400, 422)


async def _unknown_route(probe: Probe) -> None:
    probe.refused(await probe.get("/v1/no/such/route"), 404)


async def _method(probe: Probe) -> None:
    reply = await probe.get(_CHAT)
    probe.refused(reply, 405, 404)


async def _too_long(probe: Probe) -> None:
    listed = probe.offered(await probe.get("/v1/models"))
    longest = next(
        (card.get("max_model_len") for card in listed["data"] if card["id"] == probe.model), None
    )
    if not isinstance(longest, int) or longest > _LONGEST:
        raise NotOffered("the model's card does not tell a context that could be passed")
    _, body = probe.asked(
        chat=True, messages=[{"role": "user", "content": "over " * (longest + 1)}]
    )
    error = probe.refused(await probe.post(_CHAT, body), 400)
    # A client finds out what to do (shorten, or ask another model) by this code.
    check(
        error["code"] == "context_length_exceeded",
        f"code is {error['code']!r}, message {error['message']!r:.120}",
    )


async def _too_many_tokens(probe: Probe) -> None:
    _, body = probe.asked(chat=True, max_tokens=2**31 - 1)
    probe.refused(await probe.post(_CHAT, body), 400)


async def _wrong_key(probe: Probe) -> None:
    if "authorization" not in probe.wire.headers:
        raise NotOffered("no key was given, so none is asked for")
    path, body = probe.asked(chat=True)
    headers = {"authorization": "Bearer not-a-key-of-anybody"}
    probe.refused(await probe.post(path, body, headers=headers), 401)


def _bad(name: str, says: str, **fields: Any) -> Case:
    return Case(f"errors.{name}", says, sources.CHAT, partial(_field, **fields))


CASES = (
    Case("errors.unknown_model", "404 that names the model", sources.ERRORS, _unknown_model),
    Case("errors.bad_json", "400 for a body that is no JSON", sources.ERRORS, _bad_json),
    Case("errors.no_object", "400 for JSON that is no object", sources.ERRORS, _no_object),
    _bad("no_messages", "400 without messages", messages=...),
    _bad("empty_messages", "400 for no messages at all", messages=[]),
    _bad("wrong_type", "400 for a temperature that is no number", temperature="hot"),
    _bad("temperature", "400 for a temperature below 0", temperature=-1),
    _bad("top_p", "400 for a top_p above 1", top_p=3),
    _bad("max_tokens", "400 for a negative max_tokens", max_tokens=-1),
    _bad("n", "400 for n: 0", n=0),
    _bad("top_logprobs", "400 for more than 20 top_logprobs", logprobs=True, top_logprobs=5000),
    _bad("five_stops", "400 for more than four stop strings", stop=list("abcde")),
    _bad("role", "400 for a role that there is not",
         messages=[{"role": "user"}, {"role": 7, "content": "x"}]),
    Case("errors.context", "400 with `context_length_exceeded` for a prompt that does not fit",
         sources.ERRORS, _too_long),
    Case("errors.answer_too_long", "400 for more tokens than the context has", sources.ERRORS,
         _too_many_tokens),
    Case("errors.unknown_route", "404 with an error object for a route that is not there",
         sources.ERRORS, _unknown_route),
    Case("errors.method", "405 with an error object for the wrong method", sources.ERRORS,
         _method),
    Case("errors.key", "401 for a wrong key", sources.ERRORS, _wrong_key),
)  # fmt: skip
