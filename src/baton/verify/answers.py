"""Compares greedy answers with P/D to those without, over prompts that go wrong first.

    short        less than a KV block: nothing whole to hand over
    long         many blocks
    repeated     the same again: both engines have it in their caches
    lengthened   the same and more: part cached, part handed over
    mid-char     token ids that end inside a character

Both answers come from one decode engine, and each side has a cache of its own (`cache_salt`): an
answer without P/D must not be made from blocks that P/D has brought. Where two answers part, the
gap between the two best log-probabilities tells a tie from a wrong one.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from baton.errors import VerifyFailed
from baton.verify.evidence import Check

if TYPE_CHECKING:
    from baton.verify.deployment import Deployment
    from baton.verify.evidence import EngineEvidence

ANSWER_TOKENS = 12
LONG_TOKENS = 1_200
_SPARE_TOKENS = 64
SHORT = "The baton is handed from"
_SENTENCE = "Runner {k} of {n} takes the baton at mark {m} and looks back once. "
_MORE = "Then the last of them crosses the line, and"
# Outside the Basic Multilingual Plane and rare: byte-level vocabularies spell it in pieces.
_RARE = "The sign for an owl is \U00013153"


async def compare(
    deployment: Deployment, prefill: EngineEvidence, decode: EngineEvidence
) -> tuple[Check, ...]:
    """One check for each prompt, in an order in which each meets the caches that it is about."""
    room = min(
        (limit for limit in (prefill.max_model_len, decode.max_model_len) if limit > 0),
        default=1024,
    )
    salts = secrets.token_hex(8), secrets.token_hex(8)
    found = []
    for name, prompt in await _prompts(deployment, decode.model_id, room - _SPARE_TOKENS):
        if isinstance(prompt, VerifyFailed):
            found.append(Check(name=name, same=False, error=prompt.fact))
            continue
        try:
            found.append(
                await _check(deployment, prefill, decode, name=name, prompt=prompt, salts=salts)
            )
        except VerifyFailed as failure:
            found.append(Check(name=name, same=False, error=failure.fact))
    return tuple(found)


async def _prompts(
    deployment: Deployment, model: str, room: int
) -> list[tuple[str, list[int] | VerifyFailed]]:
    try:
        short = await deployment.tokens_of(model, SHORT)
        sentences = "".join(_SENTENCE.format(k=k, n=99, m=k * k) for k in range(99))
        long = (await deployment.tokens_of(model, sentences))[: min(LONG_TOKENS, room // 2)]
        more = await deployment.tokens_of(model, _MORE)
        cut = await _cut_in_mid_character(deployment, model)
    except VerifyFailed as failure:
        return [("short", failure)]
    return [
        ("short", short),
        ("long", long),
        ("repeated", long),
        ("lengthened", long + more[: room // 4]),
        ("mid-char", cut),
    ]


async def _cut_in_mid_character(deployment: Deployment, model: str) -> list[int] | VerifyFailed:
    whole = await deployment.tokens_of(model, _RARE)
    before = await deployment.tokens_of(model, _RARE[:-1])
    if len(whole) - len(before) < 2:  # noqa: PLR2004
        return VerifyFailed("this tokenizer has no character in pieces")
    return whole[:-1]


async def _check(
    deployment: Deployment,
    prefill: EngineEvidence,
    decode: EngineEvidence,
    *,
    name: str,
    prompt: list[int],
    salts: tuple[str, str],
) -> Check:
    asked = {
        "decode": decode.replica_id,
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "logprobs": 2,
    }
    with_pd = await deployment.answer(prefill=prefill.replica_id, cache_salt=salts[0], **asked)
    without = await deployment.answer(way="local", cache_salt=salts[1], **asked)
    error = None
    if with_pd["way"] != "pd" or with_pd["fallbacks"]:
        error = f"there was no handoff: {', '.join(with_pd['fallbacks'])}"
    ours, theirs = _tokens(with_pd), _tokens(without)
    same = ours == theirs
    return Check(
        name=name,
        same=same,
        with_pd=with_pd["text"],
        without_pd=without["text"],
        gap=None if same else _gap(without, _parting(ours, theirs)),
        error=error,
    )


def _tokens(answer: dict[str, Any]) -> list[str]:
    """The answer's tokens: two tokens that are no whole character look alike as text."""
    said = answer.get("logprobs")
    return list(said["tokens"]) if said else [answer["text"]]


def _parting(ours: list[str], theirs: list[str]) -> int:
    for place, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return place
    return min(len(ours), len(theirs))


def _gap(answer: dict[str, Any], place: int) -> float | None:
    """Between the two best log-probabilities at a place; None where they are not there."""
    best = ((answer.get("logprobs") or {}).get("top_logprobs") or [])[place : place + 1]
    values = sorted((best[0] or {}).values(), reverse=True) if best else []
    return values[0] - values[1] if len(values) > 1 else None
