"""Decides what follows when a leg fails. Pure: `journey` acts on it.

Before the first byte every failure can be made good; after it the stream belongs to the caller
(`stream`).

| fails   | then                                                                      |
| ------- | ------------------------------------------------------------------------- |
| prefill | another prefill engine; past its deadline or with none left, decode alone |
| decode  | another decode engine with a fresh prefill; the last try is alone         |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from baton.errors import DeadlinePassed, DecodeFailed, NoEngineAvailable, Saturated

if TYPE_CHECKING:
    from baton.errors import FailureKind, GatewayError

ASKED_AGAIN: frozenset[FailureKind] = frozenset({
    "unreachable", "disconnected", "truncated", "error_event", "server_error", "stale_kv",
})  # fmt: skip


def after_prefill_failure(
    kind: FailureKind, *, attempt: int, max_attempts: int, others: bool, budget: bool
) -> Literal["another_prefill", "decode_alone"]:
    """What follows a prefill leg that failed.

    A deadline that has passed leaves no time for another. Everything else is worth another engine
    while there is one, and costs the caller nothing but time.
    """
    if kind == "timeout" or not others or attempt >= max_attempts or not budget:
        return "decode_alone"
    return "another_prefill"


def after_decode_failure(
    kind: FailureKind,
    *,
    attempt: int,
    max_attempts: int,
    others: bool,
    resting: bool,
    budget: bool,
) -> Literal["another_decode", "same_decode", "give_up"]:
    """What follows a decode leg that failed before its first byte.

    The same engine is asked again only when it may well answer: it dropped a connection, or could
    not load this request's KV, or not in time. It is not when it refuses, is busy, or let the time
    pass. An engine with an open circuit (`resting`) is better than an error.
    """
    if attempt >= max_attempts or not budget:
        return "give_up"
    if others:
        return "another_decode"
    if kind in ASKED_AGAIN:
        return "same_decode"
    return "another_decode" if resting else "give_up"


def final_error(kind: FailureKind) -> GatewayError:
    """What the caller is told when nothing worked."""
    if kind == "busy":
        return Saturated("Every engine is at capacity.", retry_after_s=2)
    if kind == "timeout":
        return DeadlinePassed("No engine answered in time.")
    if kind in ("refused", "unreachable"):
        return NoEngineAvailable("No decode engine can be reached.")
    return DecodeFailed(f"The engines failed ({kind}) and no other could take the request.")


class RetryBudget:
    """Keeps retries from becoming a storm: each takes a token, a request brings a fifth."""

    def __init__(self, size: float = 100.0, per_request: float = 0.2) -> None:
        self._size = size
        self._per_request = per_request
        self._tokens = size

    def request(self) -> None:
        self._tokens = min(self._size, self._tokens + self._per_request)

    @property
    def left(self) -> bool:
        return self._tokens >= 1

    def spend(self) -> None:
        self._tokens -= 1
