"""What is known of a deployment's KV transfer: frozen values that a judge can be handed.

Everything here was said by somebody: an engine's workers, NIXL's counters, a stopwatch at the
gateway. `origin` says whether that was a run (`observed`), figures that somebody published
(`published`), or values that were made up to say what the judge would do (`synthetic`). A verdict
on anything but a run is unproven.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from baton.spec.transfer import EngineFacts, Fabric, UcxProtocol

Require = Literal["any", "shm", "cuda_ipc", "rdma", "efa", "tcp"]
Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE"]
Origin = Literal["observed", "published", "synthetic"]


class Value(BaseModel):
    """A frozen value; keys that a newer gateway sends are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Moved(Value):
    """What NIXL counted on the decode side for one handoff; seconds are NIXL's own."""

    bytes: float = 0.0
    transfers: float = 0.0
    xfer_s: float = 0.0
    post_s: float = 0.0
    descriptors: float = 0.0
    failed: float = 0.0


class Handoff(Value):
    """One request through one pair, one token long.

    `decode_s` is decode's request sent → its answer: the transfer, decode's first step and HTTP.
    """

    prompt_tokens: int
    way: Literal["pd", "local"] = "pd"
    prefill_s: float | None = None
    decode_s: float | None = None
    moved: Moved | None = None
    fallbacks: tuple[str, ...] = ()
    attempts: tuple[dict[str, Any], ...] = ()


class Timed(Value):
    """One raw transfer."""

    bytes: int
    seconds: float


class Raw(Value):
    """A NIXL transfer without engines between the same two places; `error` when there was none."""

    backend: str = ""
    memory: str = ""
    transfers: tuple[Timed, ...] = ()
    ucx: tuple[UcxProtocol, ...] = ()
    nixl: dict[str, str | int] = {}
    """What NIXL's log said on the reading side: `provider`, `rails`, `devices`, `device_kind`."""
    error: str | None = None

    @property
    def gb_per_s(self) -> float | None:
        """The best of the largest size that was reached: noise only ever adds time."""
        if not self.transfers:
            return None
        most = max(one.bytes for one in self.transfers)
        best = min(one.seconds for one in self.transfers if one.bytes == most)
        return most / best / 1e9 if best > 0 else None


class Check(Value):
    """One prompt, answered greedily with P/D and without."""

    name: str
    same: bool
    with_pd: str = ""
    without_pd: str = ""
    gap: float | None = None
    """Where they part: how far apart the two best log-probabilities were there."""
    error: str | None = None


class EngineEvidence(Value):
    """One engine: what its lease says, and what its workers said before and after."""

    replica_id: str
    url: str = ""
    node: str = ""
    engine_id: str = ""
    model_id: str = ""
    max_model_len: int = 0
    kv_bytes_per_token: int = 0
    facts: EngineFacts | None = None
    facts_before: EngineFacts | None = None
    why_no_facts: str | None = None
    counts_nixl: bool = False
    """Whether its `/metrics` has NIXL's own counters."""


class PairEvidence(Value):
    """Everything that is known of one prefill-decode pair."""

    prefill: EngineEvidence
    decode: EngineEvidence
    handoffs: tuple[Handoff, ...] = ()
    raw: Raw | None = None
    checks: tuple[Check, ...] = ()
    origin: Origin = "observed"
    source: str = ""
    """Where it comes from: the command of the run, or the publication."""


class Requirement(Value):
    """What must be so."""

    require: Require = "any"
    min_gbps: float | None = None
    """Gigabytes a second of a handoff, at least."""


class Reason(Value):
    """One thing that was found, what shows it, and what to do."""

    weight: Literal["fail", "unknown", "note", "good"]
    fact: str
    evidence: str = ""
    cure: str = ""


class Numbers(Value):
    """What was measured; None where it could not be."""

    fixed_s: float | None = None
    """What a handoff of no bytes takes."""
    gb_per_s: float | None = None
    """Gigabytes a second by which a handoff grows: the slope of the fit."""
    least_gb_per_s: float | None = None
    """The longest prompt's bytes by all of its time: the transfer is this fast at least."""
    nixl_gb_per_s: float | None = None
    """NIXL's own bytes by NIXL's own seconds, of the longest prompt."""
    raw_gb_per_s: float | None = None
    needed_gb_per_s: float | None = None
    """The rate at which this prefill engine makes KV."""
    carried_by: dict[str, int] = {}
    """Bytes that devices of the decode side received meanwhile, where that is worth showing."""


class Verdict(Value):
    """The judgement on one pair."""

    prefill: str
    decode: str
    outcome: Outcome
    required: Require = "any"
    requested_backends: tuple[str, ...] = ()
    observed_backends: tuple[str, ...] = ()
    observed_fabric: Fabric | None = None
    numbers: Numbers = Numbers()
    reasons: tuple[Reason, ...] = ()
    unproven: bool = False
    """True for evidence that no run produced."""
