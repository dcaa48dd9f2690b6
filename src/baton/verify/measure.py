"""Makes handoffs of several lengths through one pair, and the raw transfer beside it.

Prompts are token ids that no cache has seen, so that every block is computed and handed over. Each
length is tried several times, the shortest first; the first of all is a warm-up that does not
count (the handshake, and a first transfer at a new size takes longer). Time is bounded.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from baton.verify.deployment import Deployment
    from baton.verify.evidence import EngineEvidence, Handoff, Raw

LONGEST_TOKENS = 16_000
SHARES = (0.06, 0.25, 0.5, 0.95)
"""Of the longest prompt that is tried."""
ROUNDS = 3
PAIR_TIME_S = 60.0
"""After so long no further round begins; every length has been tried once by then or not at all."""
_SPARE_TOKENS = 8
_SHORTEST = 16
# Ids that every tokenizer has and none of which begins or ends a text: bytes and common pieces.
_FIRST_ID, _IDS = 100, 100


def lengths(max_model_len: int) -> tuple[int, ...]:
    """Prompt lengths for a context of so many tokens; a thousand where that is not known."""
    longest = min(LONGEST_TOKENS, (max_model_len or 1024) - _SPARE_TOKENS)
    return tuple(sorted({max(_SHORTEST, round(share * longest)) for share in SHARES}))


def fresh_prompt(tokens: int) -> list[int]:
    """Token ids that nobody has sent before."""
    return [_FIRST_ID + byte % _IDS for byte in secrets.token_bytes(tokens)]


async def measure_handoffs(
    deployment: Deployment,
    prefill: EngineEvidence,
    decode: EngineEvidence,
    *,
    now: Callable[[], float] = time.monotonic,
) -> tuple[Handoff, ...]:
    """Handoffs from one prefill engine to one decode engine."""
    began = now()
    tokens = lengths(_least(prefill.max_model_len, decode.max_model_len))

    async def once(count: int) -> Handoff:
        return await deployment.handoff(
            prefill.replica_id, decode.replica_id, fresh_prompt(count), secrets.token_hex(8)
        )

    warm_up = await once(tokens[-1])
    if warm_up.way != "pd" or warm_up.fallbacks:
        return (warm_up,)  # that there was none is all there is to know
    found: list[Handoff] = []
    for turn in range(ROUNDS):
        for count in tokens:
            if turn and now() - began > PAIR_TIME_S:
                return tuple(found)
            found.append(await once(count))
    return tuple(found)


def _least(*limits: int) -> int:
    known = [limit for limit in limits if limit > 0]
    return min(known, default=0)


async def measure_raw(
    deployment: Deployment, prefill: EngineEvidence, decode: EngineEvidence
) -> Raw | None:
    """A NIXL transfer between the same two places, with the backend that decode holds."""
    facts = decode.facts
    if facts is None or prefill.facts is None or facts.simulated or not facts.workers:
        return None
    worker = facts.workers[0]
    if not worker.observed_backends:
        return None
    backend = (
        "LIBFABRIC" if "LIBFABRIC" in worker.observed_backends else worker.observed_backends[0]
    )
    device = worker.kv_buffer_device or "cpu"
    return await deployment.raw(prefill.replica_id, decode.replica_id, backend, device)


def sample(
    prefills: Sequence[EngineEvidence], decodes: Sequence[EngineEvidence], most: int
) -> list[tuple[EngineEvidence, EngineEvidence]]:
    """Pairs to measure: all of them, or so many that every engine is among them where that fits.

    Diagonals of the table, so that the first `max(P, D)` pairs hold each engine at least once.
    """
    pairs = []
    wide = max(len(prefills), len(decodes), 1)
    for shift in range(wide):
        for k in range(wide):
            pair = (prefills[k % len(prefills)], decodes[(k + shift) % len(decodes)])
            if pair not in pairs:
                pairs.append(pair)
    return pairs[:most]
