"""The judge: evidence of one pair in, a verdict out. Pure, so that every situation can be replayed.

FAIL when anything is wrong for certain; else INCONCLUSIVE when anything that matters is not known;
else PASS. A backend's name proves nothing here. What counts:

1. The handoffs really happened, over a backend that was asked for, between engines that match.
2. They ran on the fabric that is required, and the device counters agree.
3. They are as fast as prefill makes KV. Slower is a failure whatever the backend is called: then
   prefilling on decode would have been quicker.
4. Greedy answers with P/D are those without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.verify.cures import of_fabric
from baton.verify.evidence import PairEvidence, Reason, Requirement, Verdict
from baton.verify.fabric import fabric_of
from baton.verify.speed import lost_to_engine, numbers_of, speed_reasons

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.transfer import EngineFacts, Fabric
    from baton.verify.evidence import Check, EngineEvidence, Outcome
    from baton.verify.fabric import Seen

COUNTERS_MOVED = 0.5
"""An RDMA device must have moved this share of the bytes at least, or it was not it."""
TIE = 0.05
"""Log-probabilities that are nearer than this may change places between two right computations."""
_RDMA_KINDS = ("efa", "rdma")


def judge(evidence: PairEvidence, requirement: Requirement | None = None) -> Verdict:
    """What the evidence shows.

    Args:
        evidence: Of one pair.
        requirement: The fabric and the speed that are asked for; nothing in particular when None.
    """
    asked = requirement or Requirement()
    seen = fabric_of(evidence)
    speeds = numbers_of(evidence)
    reasons = [
        *_happened(evidence),
        *_backends(evidence),
        *_match(evidence),
        *_fabric(evidence, seen, asked),
        *_counters(evidence, seen.fabric),
        *speed_reasons(evidence, speeds, seen.fabric, asked),
        *_answers(evidence.checks),
        *lost_to_engine(speeds),
    ]
    facts = evidence.decode.facts
    return Verdict(
        prefill=evidence.prefill.replica_id,
        decode=evidence.decode.replica_id,
        outcome=_outcome(reasons),
        required=asked.require,
        requested_backends=() if facts is None else facts.requested_backends,
        observed_backends=() if facts is None else _observed(facts),
        observed_fabric=seen.fabric,
        numbers=speeds,
        reasons=tuple(reasons),
        unproven=evidence.origin != "observed",
    )


def _outcome(reasons: list[Reason]) -> Outcome:
    weights = {reason.weight for reason in reasons}
    if "fail" in weights:
        return "FAIL"
    return "INCONCLUSIVE" if "unknown" in weights else "PASS"


# -- 1: it happened ------------------------------------------------------------------------------


def _happened(evidence: PairEvidence) -> Iterator[Reason]:
    for engine in (evidence.prefill, evidence.decode):
        if engine.facts is not None and engine.facts.simulated:
            yield Reason(
                weight="unknown",
                fact=f"{engine.replica_id} is simulated: no KV moves",
                cure="verify a deployment with real engines",
            )
            break
    if not evidence.handoffs:
        yield Reason(
            weight="unknown",
            fact="no handoff was made",
            cure="see that both engines are ready (`baton status`) and run it again",
        )
        return
    lost = [one for one in evidence.handoffs if one.way != "pd" or one.fallbacks]
    if lost:
        why = sorted({kind for one in lost for kind in one.fallbacks})
        tries = [str(each.get("kind")) for one in lost for each in one.attempts]
        yield Reason(
            weight="fail",
            fact=f"{len(lost)} of {len(evidence.handoffs)} handoffs did not happen",
            evidence=f"fallbacks: {', '.join(why) or 'none'}; legs: {', '.join(tries) or 'none'}",
            cure="read the decode engine's log for the handshake and the transfer; both engines"
            " need the same model path, dtype and vLLM, and must reach each other's side channel",
        )
    failed = sum(one.moved.failed for one in evidence.handoffs if one.moved is not None)
    if failed:
        yield Reason(
            weight="fail",
            fact=f"{failed:g} NIXL transfers failed",
            evidence="vllm:nixl_num_failed_transfers of the decode engine",
            cure="read the decode engine's log around these requests",
        )
    elif not lost and not evidence.decode.counts_nixl and not _is_simulated(evidence):
        yield Reason(
            weight="unknown",
            fact="nothing shows that KV was moved: decode has no NIXL counters",
            evidence="no vllm:nixl_bytes_transferred in its /metrics",
            cure="serve decode with vLLM 0.29's NixlConnector and without --disable-log-stats",
        )
    elif not lost and evidence.decode.counts_nixl and not _bytes_moved(evidence):
        yield Reason(
            weight="fail",
            fact="answers came, and no KV was moved",
            evidence="vllm:nixl_bytes_transferred of the decode engine stood still",
            cure="decode computed the prompts itself: its kv_transfer_config must name the same"
            " connector as prefill's, with a kv_role that consumes",
        )


def _is_simulated(evidence: PairEvidence) -> bool:
    facts = evidence.decode.facts
    return facts is not None and facts.simulated


def _bytes_moved(evidence: PairEvidence) -> float:
    return sum(one.moved.bytes for one in evidence.handoffs if one.moved is not None)


def _observed(facts: EngineFacts) -> tuple[str, ...]:
    """Backends that every worker holds: one without the fast one makes every handoff slow."""
    each = [set(worker.observed_backends) for worker in facts.workers]
    return tuple(sorted(set.intersection(*each))) if each else ()


def _backends(evidence: PairEvidence) -> Iterator[Reason]:
    for engine in (evidence.prefill, evidence.decode):
        facts = engine.facts
        if facts is None or facts.simulated or not facts.requested_backends:
            continue
        missing = sorted(set(facts.requested_backends) - set(_observed(facts)))
        if missing:
            yield Reason(
                weight="fail",
                fact=f"{engine.replica_id} was asked for {', '.join(missing)} and does not have it",
                evidence="its workers' NIXL agents hold "
                + (", ".join(_observed(facts)) or "nothing"),
                cure="look for the plugin in the engine's log with NIXL_LOG_LEVEL=INFO: a library"
                " that it needs is most often missing in the image",
            )


def _match(evidence: PairEvidence) -> Iterator[Reason]:
    one, other = evidence.prefill.facts, evidence.decode.facts
    if one is None or other is None:
        return
    hashes = [
        {w.compatibility_hash for w in facts.workers if w.compatibility_hash}
        for facts in (one, other)
    ]
    if all(hashes) and hashes[0] != hashes[1]:
        yield Reason(
            weight="fail",
            fact="the engines do not match: NIXL's compatibility hashes differ",
            evidence=f"prefill {_short(hashes[0])}, decode {_short(hashes[1])}",
            cure="give both the same model path, dtype, KV cache dtype, attention backend and vLLM",
        )
    different = sorted(
        name
        for name in set(one.versions) & set(other.versions)
        if one.versions[name] != other.versions[name] and name != "kernel"
    )
    if different:
        yield Reason(
            weight="note",
            fact=f"versions differ: {', '.join(different)}",
            evidence="; ".join(f"{n} {one.versions[n]} and {other.versions[n]}" for n in different),
            cure="serve both roles from one image",
        )


def _short(hashes: set[str]) -> str:
    return ", ".join(sorted(value[:12] for value in hashes))


# -- 2: the fabric -------------------------------------------------------------------------------


def _fabric(evidence: PairEvidence, seen: Seen, asked: Requirement) -> Iterator[Reason]:
    staged = [
        engine.replica_id
        for engine in (evidence.prefill, evidence.decode)
        if engine.facts is not None and any(worker.host_buffer for worker in engine.facts.workers)
    ]
    if staged:
        yield Reason(
            weight="fail" if asked.require == "cuda_ipc" else "note",
            fact=f"KV is copied through the host's memory on {' and '.join(staged)}",
            evidence="kv_buffer_device is cpu beside a model on another device",
            cure="leave kv_buffer_device out, so that KV is handed over from where it is computed",
        )
    if asked.require == "any":
        if seen.fabric is None:
            yield Reason(weight="note", fact="the fabric is not known", evidence=seen.why_not)
        else:
            yield Reason(weight="good", fact=f"KV travels on {seen.fabric}", evidence=seen.shown_by)
    elif seen.fabric is None:
        yield Reason(
            weight="unknown",
            fact=f"whether KV travels on {asked.require} is not known",
            evidence=seen.why_not,
            cure="serve the engines with Baton, or give plain vLLM engines `--middleware"
            " baton.engine.proof.Proof --worker-extension-cls"
            " baton.engine.evidence.WorkerEvidence`",
        )
    elif seen.fabric == asked.require:
        yield Reason(weight="good", fact=f"KV travels on {seen.fabric}", evidence=seen.shown_by)
    else:
        fact, cure = of_fabric(evidence, seen.fabric, asked.require)
        yield Reason(weight="fail", fact=fact, evidence=seen.shown_by, cure=cure)


def _counters(evidence: PairEvidence, fabric: Fabric | None) -> Iterator[Reason]:
    """The kernel's own counters, where the fabric has a device that counts."""
    moved = _bytes_moved(evidence)
    if fabric not in _RDMA_KINDS or not moved:
        return
    received = [
        value
        for engine in (evidence.decode, evidence.prefill)
        if (value := _rdma_bytes(engine)) is not None
    ]
    if not received:
        yield Reason(
            weight="note",
            fact="device counters cannot be read",
            evidence="/sys/class/infiniband has none in the engines' containers",
        )
    elif max(received) < COUNTERS_MOVED * moved:
        yield Reason(
            weight="fail",
            fact="the RDMA devices did not carry the KV",
            evidence=f"{max(received):,} bytes by their counters, {moved:,.0f} by NIXL's",
            cure="another fabric did: see which with NIXL_LOG_LEVEL=INFO and UCX_PROTO_INFO=y",
        )
    else:
        yield Reason(
            weight="good",
            fact="device counters agree",
            evidence=f"{max(received):,} bytes by their counters, {moved:,.0f} by NIXL's",
        )


def _rdma_bytes(engine: EngineEvidence) -> int | None:
    """The most that one counter of RDMA bytes grew by, all devices together."""
    if engine.facts is None or engine.facts_before is None:
        return None
    grown: dict[str, int] = {}
    known = False
    for before, after in zip(engine.facts_before.workers, engine.facts.workers, strict=False):
        for port, counters in after.rdma_counters.items():
            for name, value in counters.items():
                known = True
                was = before.rdma_counters.get(port, {}).get(name, value)
                grown[name] = grown.get(name, 0) + value - was
        break  # workers of one node read the same counters
    return max(grown.values(), default=0) if known else None


# -- 4: the answers ------------------------------------------------------------------------------


def _answers(checks: tuple[Check, ...]) -> Iterator[Reason]:
    if not checks:
        yield Reason(
            weight="unknown",
            fact="answers with and without P/D were not compared",
            cure="run `baton verify` without --no-answers",
        )
        return
    failed = [check for check in checks if check.error is not None]
    parted = [check for check in checks if check.error is None and not check.same]
    ties = [check for check in parted if check.gap is not None and check.gap < TIE]
    wrong = [check for check in parted if check not in ties]
    for check in wrong:
        yield Reason(
            weight="fail",
            fact=f"the answer to the {check.name} prompt differs from the one without P/D",
            evidence=f"with {check.with_pd!r}, without {check.without_pd!r}",
            cure="do not serve this pair: check that both engines load the same weights, and that"
            " kv_load_failure_policy is not `recompute` on a hybrid model",
        )
    if ties:
        yield Reason(
            weight="unknown",
            fact=f"answers part at near ties: {', '.join(check.name for check in ties)}",
            evidence="the two best tokens were as good as equal there",
            cure="verify with real weights: random ones have ties everywhere",
        )
    for check in failed:
        yield Reason(
            weight="unknown",
            fact=f"the {check.name} prompt could not be compared",
            evidence=check.error or "",
        )
    if not wrong and not ties and not failed:
        yield Reason(
            weight="good",
            fact="greedy answers with P/D are those without it",
            evidence=", ".join(check.name for check in checks),
        )
