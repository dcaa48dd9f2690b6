"""One verification from end to end: look, measure, compare, look again, judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from baton.errors import VerifyFailed
from baton.verify.answers import compare
from baton.verify.evidence import PairEvidence
from baton.verify.judge import judge
from baton.verify.measure import measure_handoffs, measure_raw, sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.verify.deployment import Deployment
    from baton.verify.evidence import EngineEvidence, Requirement, Verdict

MOST_PAIRS = 8


class Verification(NamedTuple):
    """What came out. `left_out`: pairs that were not measured, because there are too many."""

    endpoint: str
    evidence: tuple[PairEvidence, ...]
    verdicts: tuple[Verdict, ...]
    left_out: int

    @property
    def exit_status(self) -> int:
        """0 when every pair passes, 1 when one fails, 2 when one is inconclusive."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
        if "FAIL" in outcomes:
            return 1
        return 0 if outcomes == {"PASS"} else 2


async def verify(
    deployment: Deployment,
    requirement: Requirement,
    *,
    progress: Callable[[str], None] = lambda _: None,
    most_pairs: int = MOST_PAIRS,
    raw: bool = True,
) -> Verification:
    """Verify every pair of a deployment, or a sample of them.

    Raises:
        VerifyFailed: There is no pair, or the deployment cannot be asked.
        NotRunning: Nobody answers there.
    """
    engines = await deployment.engines()
    prefills = [engine for role, engine in engines if role == "prefill"]
    decodes = [engine for role, engine in engines if role == "decode"]
    if not prefills or not decodes:
        raise VerifyFailed(
            f"{len(prefills)} prefill and {len(decodes)} decode engines are ready: no pair",
            place=deployment.endpoint,
            cure="wait until both roles are ready (`baton status`)",
        )
    pairs = sample(prefills, decodes, most_pairs)
    found = []
    for number, (prefill, decode) in enumerate(pairs, 1):
        progress(f"pair {number} of {len(pairs)}: {prefill.replica_id} → {decode.replica_id}")
        found.append(await _one(deployment, prefill, decode, raw=raw))
    return Verification(
        deployment.endpoint,
        tuple(found),
        tuple(judge(evidence, requirement) for evidence in found),
        len(prefills) * len(decodes) - len(pairs),
    )


async def _one(
    deployment: Deployment, prefill: EngineEvidence, decode: EngineEvidence, *, raw: bool
) -> PairEvidence:
    # Before anything is sent, so that the counters' growth is this pair's.
    before = dict(await _facts(deployment))
    handoffs = await measure_handoffs(deployment, prefill, decode)
    after = dict(await _facts(deployment))

    def seen(engine: EngineEvidence) -> EngineEvidence:
        now = after.get(engine.replica_id, engine)
        was = before.get(engine.replica_id, engine)
        return now.model_copy(update={"facts_before": was.facts})

    checks = await compare(deployment, prefill, decode)
    beside = await measure_raw(deployment, prefill, decode) if raw else None
    return PairEvidence(
        prefill=seen(prefill),
        decode=seen(decode),
        handoffs=handoffs,
        raw=beside,
        checks=checks,
        source=f"baton verify {deployment.endpoint}",
    )


async def _facts(deployment: Deployment) -> list[tuple[str, EngineEvidence]]:
    return [(engine.replica_id, engine) for _, engine in await deployment.engines()]
