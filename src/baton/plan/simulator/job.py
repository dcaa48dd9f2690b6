"""A request on its way through the fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from baton.plan.simulator.engine import Engine

End = Literal["finished", "refused", "lost"]
"""`refused`: its KV fits no engine. `lost`: it never ended, because nothing could serve it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line of a trace: seconds since its begin, tokens of prompt and answer."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int


class Job:
    """A request's state. `made` counts tokens that the caller has."""

    __slots__ = (
        "arrival_s",
        "end",
        "end_s",
        "epoch",
        "first_s",
        "fixed_bytes",
        "held_by",
        "ident",
        "joined_at",
        "made",
        "output",
        "placed",
        "preempted",
        "prefilled_s",
        "prompt",
        "read",
        "started_s",
        "to_read",
        "transferred_s",
    )  # fmt: skip

    def __init__(self, ident: int, request: Request) -> None:
        self.ident = ident
        self.arrival_s = request.arrival_s
        self.prompt = request.prompt_tokens
        self.output = request.output_tokens
        self.made = 0
        self.to_read = request.prompt_tokens
        """Tokens to be prefilled: the prompt, after a loss with what was already written."""
        self.read = 0
        self.fixed_bytes = 0.0
        self.joined_at = 0
        """The engine's step count when it joined the running batch, less what it had made."""
        self.epoch = 0
        """Moves on whenever it leaves an engine: old entries in heaps are then void."""
        self.placed: Engine | None = None
        self.held_by: Engine | None = None
        """The prefill engine that keeps its KV for the handoff."""
        self.started_s: float | None = None
        self.prefilled_s: float | None = None
        self.transferred_s: float | None = None
        self.first_s: float | None = None
        self.end_s: float | None = None
        self.end: End | None = None
        self.preempted = 0

    @property
    def tokens(self) -> int:
        """Tokens that have to be in a KV cache for it to go on."""
        return self.prompt + self.made
