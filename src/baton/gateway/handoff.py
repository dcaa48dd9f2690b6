"""The control of a handoff: a state machine for the KV that prefill may hold for one request.

Once prefill has answered, its KV blocks sit under a lease (30 s by default) until a decode engine
takes or rejects the request. An abort frees nothing there any more. So whatever happens to a
request, its handoff must come to an end in which prefill holds nothing, and only where nobody can
reach it any more is it left to its lease.

`FACTS` is the machine: what each state may become, how long it may last, and what is done about
the KV when nobody wants it. `releases` does it.

    prefilling ─answered→ offered ─asked→ asked ─took→ taken
        │                    │              │
        │ gave_up            │ gave_up      │ failed, gave_up
        ↓                    ↓              ↓
    collecting ─answered→ releasing ←─── settling
        │                    │
        ↓                    ↓
     nothing, lapsing    released, lapsing
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from baton.errors import PrefillFailed

if TYPE_CHECKING:
    from baton.gateway.generations import Generation

FOR_PREFILL: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class State(StrEnum):
    """Where a handoff is."""

    PREFILLING = "prefilling"
    """The prefill leg is open. An abort still ends it and frees its blocks."""
    OFFERED = "offered"
    """Prefill holds KV, and nobody has been told of it."""
    ASKED = "asked"
    """A decode engine was given the offer and may be reading it."""
    COLLECTING = "collecting"
    """Nobody wants the KV; prefill may have finished, so its answer is waited for."""
    SETTLING = "settling"
    """The decode leg was closed; its abort has to arrive before the blocks are given away."""
    RELEASING = "releasing"
    """A decode engine is asked to reject the offer, which frees the blocks."""
    TAKEN = "taken"
    """Decode has generated from it: its blocks were read and are free."""
    RELEASED = "released"
    NOTHING = "nothing"
    """Prefill holds nothing."""
    LAPSING = "lapsing"
    """Prefill may hold KV that nobody can name or reach any more: its lease ends it."""


class Event(StrEnum):
    """What can happen to it."""

    ANSWERED = "answered"
    """Prefill's answer with params has come."""
    FAILED = "failed"
    """The open leg failed, and its engine holds nothing for it, or has let go."""
    BROKE = "broke"
    """The open leg broke: what its engine holds cannot be known from here."""
    GAVE_UP = "gave_up"
    """Nobody wants it any more: the caller went away, another error, a deadline."""
    ASKED = "asked"
    TOOK = "took"
    REFUSED = "refused"
    """Decode refused the request without looking at the offer (vLLM's parser)."""
    HUNG = "hung"
    """Decode says nothing within its time, and may be reading still."""
    SETTLED = "settled"
    LET_GO = "let_go"
    NOT_LET_GO = "not_let_go"
    IMPATIENT = "impatient"
    """The prefill leg was closed without its answer."""
    SHUT_DOWN = "shut_down"
    """The gateway ends."""


@dataclass(frozen=True)
class Facts:
    """A state's place in the machine.

    Args:
        moves: What each event makes of it. Any other event there is a fault of ours.
        holds: Whether prefill may hold blocks.
        deadline: What bounds the state: a setting of `recovery`, or a constant of `releases`.
        late: The event when that time has passed.
        release: What is done so that prefill holds nothing.
    """

    moves: dict[Event, State]
    holds: bool
    deadline: str | None = None
    late: Event | None = None
    release: str | None = None


_ENDED: dict[Event, State] = {}

FACTS: dict[State, Facts] = {
    State.PREFILLING: Facts(
        {
            Event.ANSWERED: State.OFFERED,
            Event.FAILED: State.NOTHING,
            Event.BROKE: State.LAPSING,
            Event.GAVE_UP: State.COLLECTING,
            Event.SHUT_DOWN: State.LAPSING,
        },
        holds=True,
        deadline="recovery.prefill_timeout_s",
        late=Event.GAVE_UP,
        release="collect the answer, or abort the leg by closing it",
    ),
    State.OFFERED: Facts(
        {
            Event.ASKED: State.ASKED,
            Event.GAVE_UP: State.RELEASING,
            Event.SHUT_DOWN: State.LAPSING,
        },
        holds=True,
        deadline="the lease less a margin (lease_guard)",
        late=Event.GAVE_UP,
        release="a decode engine rejects it",
    ),
    State.ASKED: Facts(
        {
            Event.TOOK: State.TAKEN,
            Event.REFUSED: State.RELEASING,
            Event.FAILED: State.SETTLING,
            Event.BROKE: State.SETTLING,
            Event.GAVE_UP: State.SETTLING,
            Event.HUNG: State.LAPSING,
            Event.SHUT_DOWN: State.LAPSING,
        },
        holds=True,
        deadline="recovery.decode_first_byte_timeout_s",
        late=Event.HUNG,
        release="close the leg: decode's abort frees it; then a decode engine rejects it as well",
    ),
    State.COLLECTING: Facts(
        {
            Event.ANSWERED: State.RELEASING,
            Event.FAILED: State.NOTHING,
            Event.BROKE: State.LAPSING,
            Event.IMPATIENT: State.LAPSING,
            Event.SHUT_DOWN: State.LAPSING,
        },
        holds=True,
        deadline="releases.PATIENCE_S",
        late=Event.IMPATIENT,
        release="wait for the answer; abort by closing the leg when it takes too long",
    ),
    State.SETTLING: Facts(
        {Event.SETTLED: State.RELEASING, Event.SHUT_DOWN: State.LAPSING},
        holds=True,
        deadline="releases.ABORT_SETTLES_S",
        late=Event.SETTLED,
        release="wait: blocks that are given away while they are read would end in decode's cache",
    ),
    State.RELEASING: Facts(
        {
            Event.LET_GO: State.RELEASED,
            Event.NOT_LET_GO: State.LAPSING,
            Event.SHUT_DOWN: State.LAPSING,
        },
        holds=True,
        deadline="releases.RELEASE_TIMEOUT_S for each engine that is asked",
        late=Event.NOT_LET_GO,
        release="a decode engine rejects it",
    ),
    State.TAKEN: Facts(_ENDED, holds=False),
    State.RELEASED: Facts(_ENDED, holds=False),
    State.NOTHING: Facts(_ENDED, holds=False),
    State.LAPSING: Facts(_ENDED, holds=True),
}


class IllegalMove(Exception):
    """An event that a state does not know: a fault of ours, never of an engine or a caller."""


class KVTransferParams(BaseModel):
    """Prefill's answer to "who has the KV, and where": vLLM's own spellings, passed on whole."""

    # A newer vLLM may say more; decode must get it.
    model_config = ConfigDict(frozen=True, extra="allow")

    do_remote_prefill: Literal[True]
    do_remote_decode: Literal[False] = False
    remote_engine_id: str = Field(min_length=1)
    remote_block_ids: list[Any]
    remote_host: str
    remote_port: int

    @field_validator("remote_block_ids")
    @classmethod
    def _holds_blocks(cls, value: list[Any]) -> list[Any]:
        # vLLM 0.29 `update_state_after_alloc` asserts that params without blocks bring no tokens,
        # and the assertion ends decode's EngineCore. Such an offer must never be sent.
        if not any(group if isinstance(group, list) else True for group in value):
            raise ValueError("no KV block is offered")
        return value

    @property
    def most_blocks(self) -> int:
        """Blocks in the largest group: those of all tokens, where one group has full attention."""
        groups = self.remote_block_ids
        return max(len(group) if isinstance(group, list) else len(groups) for group in groups)

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens whose KV is offered: all of the prompt. None where the engine does not say."""
        # vLLM 0.29, nixl/pull_scheduler.py `request_finished`: the tokens that were computed, and
        # the one that prefill sampled was not.
        said = (self.model_extra or {}).get("remote_num_tokens")
        return said if type(said) is int and said > 0 else None


class Handoff:
    """One request's KV on one prefill engine.

    Args:
        prefill_engine: `replica_id` of the engine.
        request_id: The prefill leg's id.
        generation: The engine's versions: decode must have the same. None: anybody may take it.
    """

    __slots__ = ("_params", "generation", "prefill_engine", "request_id", "state")

    def __init__(
        self, prefill_engine: str, request_id: str, generation: Generation | None = None
    ) -> None:
        self.prefill_engine = prefill_engine
        self.request_id = request_id
        self.generation = generation
        self.state = State.PREFILLING
        self._params: KVTransferParams | None = None

    @property
    def params(self) -> KVTransferParams:
        """What prefill offers.

        Raises:
            IllegalMove: It has not answered.
        """
        if self._params is None:
            raise IllegalMove(f"a handoff that is {self.state} has no params")
        return self._params

    @property
    def ended(self) -> bool:
        return not FACTS[self.state].moves

    def answered(self, params: KVTransferParams) -> State:
        """Prefill's answer has come."""
        self._params = params
        return self.move(Event.ANSWERED)

    def move(self, event: Event) -> State:
        """The state after an event.

        Raises:
            IllegalMove: The state does not know the event; nothing has changed.
        """
        after = FACTS[self.state].moves.get(event)
        if after is None:
            raise IllegalMove(f"{event} while {self.state}")
        self.state = after
        return after


def parse_params(answer: Any, prefill_engine: str) -> KVTransferParams:
    """The params in prefill's JSON answer.

    Raises:
        PrefillFailed: There are none, or not such as decode may be given.
    """
    params = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
    try:
        return KVTransferParams.model_validate(params)
    except ValidationError as exc:
        what = "none" if params is None else "; ".join(str(e["loc"]) for e in exc.errors())
        raise PrefillFailed(
            f"prefill's answer has no usable kv_transfer_params ({what})", place=prefill_engine
        ) from exc
