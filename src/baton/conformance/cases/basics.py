"""Models, and one answer of each kind: shape, limits of length, usage that adds up."""

from __future__ import annotations

import asyncio
import json
import uuid
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from baton.conformance.case import Case, Fails, NotOffered, check
from baton.conformance.cases import sources
from baton.conformance.probe import LONG, OK, short

if TYPE_CHECKING:
    from typing import Any

    from baton.conformance.probe import Probe, Told

_LIMIT = 5


async def _models(probe: Probe) -> None:
    listed = probe.offered(await probe.get("/v1/models"))
    check(listed.get("object") == "list", f"object is {listed.get('object')!r}")
    cards = listed.get("data")
    if not isinstance(cards, list) or not cards:
        raise Fails(f"data is {cards!r}")
    for card in cards:
        _is_model(card)
    probe.see(models=sorted(card["id"] for card in cards), keys=sorted(cards[0]))


async def _model(probe: Probe) -> None:
    reply = await probe.get(f"/v1/models/{quote(probe.model, safe='')}")
    card = probe.offered(reply)
    _is_model(card)
    check(card["id"] == probe.model, f"id is {card['id']!r}")


def _is_model(card: Any) -> None:
    check(isinstance(card, dict), f"a model is {card!r}")
    check(isinstance(card.get("id"), str), f"id is {card.get('id')!r}")
    check(card.get("object") == "model", f"object is {card.get('object')!r}")
    check(isinstance(card.get("created"), int), f"created is {card.get('created')!r}")
    check(isinstance(card.get("owned_by"), str), f"owned_by is {card.get('owned_by')!r}")


async def _unknown_model(probe: Probe) -> None:
    probe.refused(await probe.get("/v1/models/no-such-model"), 404)


async def _answer(probe: Probe, *, chat: bool) -> None:
    told = await probe.whole(chat=chat)
    check(told.reasons[0] in ("stop", "length"), f"finish_reason is {told.reasons[0]!r}")
    probe.see(text=told.text, finish_reason=told.reasons[0], choices=len(told.texts))
    if chat:
        probe.see(message_keys=sorted(told.chunks[0]["choices"][0]["message"]))
    probe.see(keys=sorted(told.chunks[0]))


async def _limit(probe: Probe, *, chat: bool, name: str) -> None:
    told = await probe.whole(chat=chat, **{name: _LIMIT})
    used = counts(told)[1]
    check(used <= _LIMIT, f"{used} tokens with {name}: {_LIMIT}")
    check(used < _LIMIT or told.reasons[0] == "length", f"finish_reason is {told.reasons[0]!r}")
    probe.see(completion_tokens=used, finish_reason=told.reasons[0])


async def _usage(probe: Probe, *, chat: bool) -> None:
    told = await probe.whole(chat=chat)
    prompt, completion, total = counts(told)
    check(prompt > 0, f"prompt_tokens is {prompt}")
    check(total == prompt + completion, f"{total} is not {prompt} + {completion}")
    probe.see(prompt_tokens=prompt, completion_tokens=completion)


async def _cached(probe: Probe) -> None:
    asked = [{"role": "user", "content": f"{uuid.uuid4().hex} {LONG}"}]
    told = [await probe.whole(messages=asked) for _ in range(2)]
    found = [((one.usage or {}).get("prompt_tokens_details") or {}) for one in told]
    first, again = (one.get("cached_tokens") for one in found)
    if first is None and again is None:
        raise NotOffered("usage.prompt_tokens_details.cached_tokens is not told")
    prompt = counts(told[0])[0]
    check(not first, f"cached_tokens is {first} for a prompt that nobody has sent before")
    check(0 <= (again or 0) <= prompt, f"cached_tokens is {again} of {prompt}")
    streamed = ((await probe.stream(messages=asked)).usage or {}).get("prompt_tokens_details") or {}
    last = streamed.get("cached_tokens")
    # Not the same figure: which replica answers, and what it still holds, is its own business.
    check(last is not None and 0 <= last <= prompt, f"cached_tokens of a stream is {last}")
    probe.see(cached_tokens=again)


async def _parts(probe: Probe) -> None:
    told = await probe.whole(
        messages=[
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "Name a river."}]},
            {"role": "assistant", "content": "The Rhine."},
            {"role": "user", "content": [{"type": "text", "text": "And a lake, please."}]},
        ]
    )
    probe.see(text=told.text, prompt_tokens=counts(told)[0])


async def _unicode_prompt(probe: Probe) -> None:
    text = "Žluťoučký kůň, 東京, 🎈👩‍👩‍👧 and a naïve café. " * 4
    told = await probe.whole(messages=[{"role": "user", "content": text}])
    probe.see(text=told.text, prompt_tokens=counts(told)[0])


async def _answers_concurrently(probe: Probe) -> None:
    path, body = probe.asked(chat=True)
    replies = await asyncio.gather(
        *(probe.wire.ask("POST", path, json.dumps(body).encode()) for _ in range(4))
    )
    bad = [reply for reply in replies if reply.status != OK]
    check(
        not bad, f"{len(bad)} of 4 requests at a time failed: {short(bad[0].body) if bad else ''}"
    )
    ids = {reply.data.get("id") for reply in replies if isinstance(reply.data, dict)}
    check(len(ids) == len(replies), "two answers have the same id")


def counts(told: Told) -> tuple[int, int, int]:
    """Tokens of the prompt, of the answer, and of both, as usage tells them."""
    usage = told.usage
    if not isinstance(usage, dict):
        raise Fails(f"usage is {usage!r}")
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    values = [usage.get(name) for name in names]
    for name, value in zip(names, values, strict=True):
        check(isinstance(value, int) and value >= 0, f"usage.{name} is {value!r}")
    prompt, completion, total = values
    return prompt, completion, total  # type: ignore[return-value]  # checked just above


CASES = (
    Case("models.list", "a list of models, each with id, created and owned_by", sources.MODELS,
         _models),
    Case("models.retrieve", "one model by its id", sources.MODELS, _model),
    Case("models.unknown", "404 for a model that is not there", sources.ERRORS, _unknown_model),
    Case("chat.answer", "an object `chat.completion` with an assistant message",
         sources.CHAT_OBJECT, partial(_answer, chat=True)),
    Case("chat.messages", "system, user and assistant turns; content as text or as parts",
         sources.CHAT, _parts),
    Case("chat.unicode", "any Unicode text is a prompt", sources.CHAT, _unicode_prompt),
    Case("chat.parallel", "requests at the same time, each with an id of its own",
         sources.CHAT_OBJECT, _answers_concurrently),
    Case("chat.max_tokens", "no more tokens than `max_tokens`; finish_reason `length` when cut",
         sources.CHAT, partial(_limit, chat=True, name="max_tokens")),
    Case("chat.max_completion_tokens", "as max_tokens, which it replaces", sources.CHAT,
         partial(_limit, chat=True, name="max_completion_tokens")),
    Case("chat.usage", "total_tokens = prompt_tokens + completion_tokens", sources.CHAT_OBJECT,
         partial(_usage, chat=True)),
    Case("chat.cached_tokens", "how many prompt tokens a cache had, within the prompt's",
         sources.CHAT_OBJECT, _cached),
    Case("completions.answer", "an object `text_completion` with text", sources.COMPLETIONS,
         partial(_answer, chat=False)),
    Case("completions.max_tokens", "no more tokens than `max_tokens`", sources.COMPLETIONS,
         partial(_limit, chat=False, name="max_tokens")),
    Case("completions.usage", "total_tokens = prompt_tokens + completion_tokens",
         sources.COMPLETIONS, partial(_usage, chat=False)),
)  # fmt: skip
