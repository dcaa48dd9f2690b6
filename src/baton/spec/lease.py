"""What an engine replica tells the directory, and what gateways read there.

A lease lives for `lease_s` after its last renewal. It carries everything a gateway needs to send
the engine a request, and everything a person asks about it in `baton status`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from baton.spec.schema import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


Continues = Literal["unknown", "nothing", "completions", "chat"]
"""Which answers `/v1/completions` of an engine goes on with exactly, from prompt and first tokens
as token ids. `chat`: those of both routes. `unknown`: nobody has looked."""


class _Fact(BaseModel):
    # Newer replicas may say more than an older gateway knows: extra keys are ignored here.
    model_config = ConfigDict(frozen=True, extra="ignore")


class EngineLoad(_Fact):
    """The engine's own counts. `kv_usage` is a share from 0 to 1.

    The last three are what pools scale by; 0 means that nothing is known yet.
    """

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    queued_prompt_tokens: int = 0
    """Prompt tokens of open requests: their bytes, by the tokens that bytes have made so far."""
    prefill_tokens_per_s: float = 0.0
    """Prompt tokens a second while the engine had work."""
    tpot_s: float = 0.0
    """Recent mean gap between two tokens of a sequence."""


class TransferEvidence(_Fact):
    """What the KV transfer was asked to use and what the worker's NIXL agent really created."""

    connector: str | None = None
    requested_backends: tuple[str, ...] = ()
    observed_backends: tuple[str, ...] = ()
    kv_buffer_device: str | None = None
    nixl_version: str | None = None
    checks_lease: bool = False
    """Whether its workers fail a load that ended behind prefill's lease."""


class EngineStart(_Fact):
    """Where the time of an engine's start went."""

    began_at: float = 0.0
    """When the replica's process was started, in seconds since the epoch."""
    phases_s: dict[str, float] = {}
    """In the order of time; names are `baton.engine.startup`'s."""
    weights_s: float | None = None
    """What vLLM took for reading the weights, a part of the phase that names them."""
    weights_bytes: int = 0
    weights_from_disk_bytes: int | None = None
    """How much of it came from storage; the rest was in the page cache. None: not told."""


class EngineLease(_Fact):
    """One engine replica: who it is, where it listens, how it fares."""

    replica_id: str
    role: Role
    url: str
    """`http://host:port`, without a trailing slash."""
    engine_id: str
    model_id: str
    state: Literal["starting", "ready", "draining"] = "ready"
    node: str = ""
    pid: int = 0
    max_model_len: int = 0
    block_size: int = 0
    kv_lease_s: float = 0.0
    """How long prefill keeps the KV of an offer that nobody reads; 0 when that is not known."""
    kv_bytes_per_token: int = 0
    """Bytes of KV that a token has in all workers together; 0 when that is not known."""
    tensor_parallel_size: int = 1
    continues: Continues = "unknown"
    vllm_version: str = ""
    baton_version: str = ""
    compatibility: str = ""
    """vLLM's hash of what both ends of a transfer must have alike; empty where it is not enforced
    or not known. KV passes only between engines that say the same here and of all versions
    (`baton.gateway.generations`)."""
    load: EngineLoad = EngineLoad()
    evidence: TransferEvidence = TransferEvidence()
    start: EngineStart | None = None
    times_seen_to_start: int = 0
    """How often a gateway with fixed URLs saw it come up. A replica of Ray Serve has a new
    `replica_id` each time; behind a fixed URL only this tells one process from the next."""

    @property
    def process(self) -> str:
        """Stands for this process of the engine, as far as anybody can tell."""
        return f"{self.replica_id}#{self.times_seen_to_start}"


class DirectorySnapshot(_Fact):
    """All leases that are alive, and the secret that opens the engines' HTTP ports."""

    engines: tuple[EngineLease, ...] = ()
    engine_secret: str | None = None
    awake_s: float | None = None
    """How long the directory has been listening without a break; None: it always was. One that has
    just started, or was stopped for a while, has not heard from everybody yet."""


def all_used(engines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a gateway gives all engines of its `/baton/engines` requests, and knows any."""
    return bool(engines) and all(is_used(engine) for engine in engines)


def is_used(engine: Mapping[str, Any]) -> bool:
    """Whether a gateway gives this engine of its `/baton/engines` requests as to any other."""
    return bool(engine["state"] == "ready" and engine["circuit"] == "closed")
