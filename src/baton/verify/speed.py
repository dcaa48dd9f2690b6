"""How fast handoffs are, and whether that is enough. Pure.

What they must reach is the rate at which this prefill engine makes KV: a transport that is slower
turns P/D into a loss, whatever it is called, because decode would have read the prompt sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.verify.cures import of_speed
from baton.verify.evidence import Numbers, PairEvidence, Reason, Requirement
from baton.verify.fit import Fit, fit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.transfer import Fabric
    from baton.verify.evidence import EngineEvidence

LOST_TO_ENGINE = 4.0
"""A handoff that is so many times slower than the wire, and not so many times faster than it needs
to be, is worth a note."""


def numbers_of(evidence: PairEvidence) -> Numbers:
    """Fixed cost and speeds, in GB/s of KV."""
    size = _bytes_per_token(evidence)
    done = [one for one in evidence.handoffs if one.way == "pd" and not one.fallbacks]
    handoff = fit((one.prompt_tokens * size, one.decode_s or 0.0) for one in done)
    prefill = fit((one.prompt_tokens * size, one.prefill_s or 0.0) for one in done)
    longest = max((one.prompt_tokens for one in done), default=0)
    nixl = [
        one.moved.bytes / one.moved.xfer_s
        for one in done
        if one.prompt_tokens == longest and one.moved is not None and one.moved.xfer_s > 0
    ]
    return Numbers(
        fixed_s=handoff.fixed_s,
        gb_per_s=_giga(handoff.per_s),
        least_gb_per_s=_giga(handoff.at_least_per_s),
        nixl_gb_per_s=_giga(max(nixl, default=None)),
        raw_gb_per_s=None if evidence.raw is None else evidence.raw.gb_per_s,
        needed_gb_per_s=_giga(_needed(prefill)),
        carried_by=_carried(evidence.decode),
    )


def _needed(prefill: Fit) -> float | None:
    # Without a slope its whole time for the longest prompt counts: less KV a second than it makes.
    return prefill.per_s or prefill.at_least_per_s


def _bytes_per_token(evidence: PairEvidence) -> float:
    """As the engines say; else as NIXL counted for the longest prompt."""
    said = max(evidence.prefill.kv_bytes_per_token, evidence.decode.kv_bytes_per_token)
    if said:
        return float(said)
    counted = [one for one in evidence.handoffs if one.moved is not None and one.moved.bytes]
    if not counted:
        return 0.0
    most = max(counted, key=lambda one: one.prompt_tokens)
    return (most.moved.bytes if most.moved is not None else 0.0) / max(1, most.prompt_tokens)


def _giga(per_s: float | None) -> float | None:
    return None if per_s is None else per_s / 1e9


def _carried(engine: EngineEvidence) -> dict[str, int]:
    """Bytes that each network interface of the decode side received between both looks."""
    if engine.facts is None or engine.facts_before is None:
        return {}
    for before, after in zip(engine.facts_before.workers, engine.facts.workers, strict=False):
        grown = {
            name: counters["rx_bytes"] - before.net_counters.get(name, counters)["rx_bytes"]
            for name, counters in after.net_counters.items()
        }
        return {name: count for name, count in grown.items() if count > 0}
    return {}


def speed_reasons(
    evidence: PairEvidence, speeds: Numbers, seen: Fabric | None, asked: Requirement
) -> Iterator[Reason]:
    """Handoffs against what prefill makes, and against what is asked for."""
    if not evidence.handoffs:
        return
    yield from _against(
        evidence,
        speeds,
        seen,
        needed=speeds.needed_gb_per_s,
        what="prefill makes KV",
        unknown="how fast prefill makes KV could not be measured",
    )
    if asked.min_gbps is not None:
        yield from _against(
            evidence, speeds, seen, needed=asked.min_gbps, what="is asked for", unknown=""
        )


def _against(
    evidence: PairEvidence,
    speeds: Numbers,
    seen: Fabric | None,
    *,
    needed: float | None,
    what: str,
    unknown: str,
) -> Iterator[Reason]:
    """Compare what handoffs reach with what they must reach."""
    if needed is None:
        yield Reason(weight="unknown", fact=unknown, cure="allow longer prompts (max_model_len)")
        return
    least = speeds.least_gb_per_s
    reached = speeds.gb_per_s or speeds.nixl_gb_per_s
    told = _told(speeds)
    if (least is not None and least >= needed) or (reached is not None and reached >= needed):
        reached = max(value for value in (least, reached) if value is not None)
        yield Reason(
            weight="good",
            fact=f"{_gb(reached)} is as fast as {what} ({_gb(needed)})",
            evidence=told,
        )
    elif reached is not None:
        yield Reason(
            weight="fail",
            fact=f"KV is handed over at {_gb(reached)}, slower than {what} ({_gb(needed)})",
            evidence=told,
            cure=of_speed(evidence, speeds, seen),
        )
    else:
        yield Reason(
            weight="unknown",
            fact=f"whether handoffs are as fast as {what} ({_gb(needed)}) could not be told",
            evidence=told,
            cure="measure longer prompts (max_model_len), on a quiet machine",
        )


def _told(speeds: Numbers) -> str:
    parts = {
        "fit": speeds.gb_per_s,
        "at least": speeds.least_gb_per_s,
        "NIXL's own": speeds.nixl_gb_per_s,
        "raw NIXL": speeds.raw_gb_per_s,
    }
    fixed = "" if speeds.fixed_s is None else f", fixed {speeds.fixed_s * 1000:.1f} ms"
    return ", ".join(f"{name} {_gb(v)}" for name, v in parts.items() if v is not None) + fixed


def _gb(value: float) -> str:
    return f"{value:.3g} GB/s"


def lost_to_engine(speeds: Numbers) -> Iterator[Reason]:
    """A wire that is much faster than what handoffs make of it."""
    reached, raw, needed = speeds.gb_per_s, speeds.raw_gb_per_s, speeds.needed_gb_per_s
    if reached is None or raw is None or needed is None:
        return
    if raw > LOST_TO_ENGINE * reached and reached < LOST_TO_ENGINE * needed:
        yield Reason(
            weight="note",
            fact=f"the wire gives {_gb(raw)} and handoffs reach {_gb(reached)}",
            cure="posting descriptors is the cost: try a larger block_size, or"
            " kv_connector_extra_config.enable_cross_layers_blocks",
        )
