"""Every known situation, judged: what passes, what fails, what stays open, and with which cure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from baton.verify.evidence import Check, Requirement
from baton.verify.judge import judge
from tests.unit.verify.situations import FOLDER, OBSERVED, SYNTHETIC, situation

if TYPE_CHECKING:
    from baton.verify.evidence import PairEvidence, Verdict


def failures(verdict: Verdict) -> list[str]:
    return [reason.fact for reason in verdict.reasons if reason.weight == "fail"]


def of_decode(evidence: PairEvidence, **changes: object) -> PairEvidence:
    """The evidence with other fields in decode's only worker."""
    facts = evidence.decode.facts
    assert facts is not None
    workers = tuple(worker.model_copy(update=changes) for worker in facts.workers)
    facts = facts.model_copy(update={"workers": workers})
    return evidence.model_copy(
        update={"decode": evidence.decode.model_copy(update={"facts": facts})}
    )


@pytest.mark.parametrize(
    ("name", "require", "outcome", "fabric"),
    [
        ("ucx-shm", "any", "PASS", "shm"),
        ("ucx-shm", "shm", "PASS", "shm"),
        ("ucx-shm", "efa", "FAIL", "shm"),
        ("ucx-tcp", "any", "PASS", "tcp"),
        ("ucx-tcp", "tcp", "PASS", "tcp"),
        ("ucx-tcp", "shm", "FAIL", "tcp"),
        ("ucx-tcp", "efa", "FAIL", "tcp"),
        ("libfabric-tcp", "any", "PASS", "tcp"),
        ("libfabric-tcp", "efa", "FAIL", "tcp"),
        ("libfabric-tcp", "rdma", "FAIL", "tcp"),
        ("namespaces", "any", "PASS", "tcp"),
        ("namespaces-throttled", "any", "FAIL", "tcp"),
        ("ray", "any", "PASS", "tcp"),
        ("ray", "efa", "FAIL", "tcp"),
        ("ray-throttled", "any", "FAIL", "tcp"),
        ("synthetic-libfabric-efa", "efa", "PASS", "efa"),
        ("synthetic-libfabric-efa", "cuda_ipc", "FAIL", "efa"),
        ("h200-tcp", "any", "FAIL", "tcp"),
        ("h200-tcp", "tcp", "FAIL", "tcp"),
        ("h200-tcp", "cuda_ipc", "FAIL", "tcp"),
        ("h200-cuda-ipc", "any", "PASS", "cuda_ipc"),
        ("h200-cuda-ipc", "cuda_ipc", "PASS", "cuda_ipc"),
        ("h200-cuda-ipc", "rdma", "FAIL", "cuda_ipc"),
        ("h200-cuda-ipc-blocks-128", "cuda_ipc", "PASS", "cuda_ipc"),
        ("synthetic-h200-host-buffer", "any", "PASS", "shm"),
        ("synthetic-h200-host-buffer", "cuda_ipc", "FAIL", "shm"),
    ],
)
def test_each_known_situation_has_its_verdict(
    name: str, require: str, outcome: str, fabric: str
) -> None:
    """Fabric and verdict of every file of recorded and synthetic evidence."""
    verdict = judge(situation(name), Requirement.model_validate({"require": require}))
    assert (verdict.outcome, verdict.observed_fabric) == (outcome, fabric), verdict.reasons


def test_every_file_of_evidence_is_among_the_situations() -> None:
    """A recording that nobody judges proves nothing."""
    assert {path.stem for path in FOLDER.glob("*.json")} == {*OBSERVED, *SYNTHETIC}


@pytest.mark.parametrize("name", [*OBSERVED, *SYNTHETIC])
def test_a_verdict_on_evidence_that_no_run_produced_is_marked(name: str) -> None:
    """EFA and a host buffer beside a GPU have not been seen by this judge: it says so."""
    assert judge(situation(name)).unproven is (name in SYNTHETIC)


def test_libfabric_on_tcp_names_the_missing_device() -> None:
    """The field's best-known trap: the backend's name says nothing of its provider."""
    verdict = judge(situation("libfabric-tcp"), Requirement(require="efa"))
    reason = next(reason for reason in verdict.reasons if reason.weight == "fail")
    assert reason.fact == "LIBFABRIC runs on tcp, and efa is required"
    assert "provider tcp" in reason.evidence
    assert "vpc.amazonaws.com/efa: 1" in reason.cure


def test_a_link_slower_than_prefill_fails_whatever_it_is_called() -> None:
    """Throttled by tc: the right fabric, right answers, and a loss."""
    verdict = judge(situation("namespaces-throttled"), Requirement(require="tcp"))
    assert len(failures(verdict)) == 1
    assert "slower than prefill makes KV" in failures(verdict)[0]


def test_the_interface_that_carried_the_kv_is_among_the_numbers() -> None:
    """Between two nodes it is the link, and not the loopback."""
    numbers = judge(situation("ray")).numbers
    moved = sum(one.moved.bytes for one in situation("ray").handoffs if one.moved is not None)
    link = max(numbers.carried_by, key=lambda name: numbers.carried_by[name])
    assert link != "lo"
    assert numbers.carried_by[link] > moved


def test_a_slow_pull_between_gpus_of_one_machine_names_the_variable() -> None:
    """UCX on tcp/lo between two engines of one GPU: one variable makes it 30 times as fast."""
    verdict = judge(situation("h200-tcp"), Requirement())
    cures = [reason.cure for reason in verdict.reasons if reason.weight == "fail"]
    assert any("UCX_CUDA_IPC_ENABLE_GET_ZCOPY" in cure for cure in cures)


@pytest.mark.parametrize(("min_gbps", "outcome"), [(0.01, "PASS"), (1e6, "FAIL")])
def test_min_gbps_is_held_against_the_measured_speed(min_gbps: float, outcome: str) -> None:
    """Whatever prefill makes."""
    assert judge(situation("ucx-tcp"), Requirement(min_gbps=min_gbps)).outcome == outcome


def test_a_fabric_that_nobody_names_is_inconclusive_where_one_is_required() -> None:
    """Unknown is a verdict and never a pass."""
    evidence = of_decode(situation("ucx-shm"), notes_ucx=False, ucx=())
    verdict = judge(evidence, Requirement(require="shm"))
    assert verdict.outcome == "INCONCLUSIVE"
    assert judge(evidence, Requirement()).outcome == "PASS"


def plain(evidence: PairEvidence, *, counts_nixl: bool) -> PairEvidence:
    """The same from engines that are not Baton's."""
    no_facts = {"facts": None, "facts_before": None, "why_no_facts": "not an engine of Baton's"}
    return evidence.model_copy(
        update={
            "prefill": evidence.prefill.model_copy(update=no_facts),
            "decode": evidence.decode.model_copy(update={**no_facts, "counts_nixl": counts_nixl}),
            "raw": None,
        }
    )


def test_plain_engines_pass_by_speed_and_counters_alone() -> None:
    """Where no fabric is required, moved bytes, speed and right answers are enough."""
    evidence = plain(situation("ucx-tcp"), counts_nixl=True)
    assert judge(evidence, Requirement()).outcome == "PASS"
    assert judge(evidence, Requirement(require="tcp")).outcome == "INCONCLUSIVE"


def test_plain_engines_without_counters_prove_nothing() -> None:
    """An answer that comes fast may have been computed by decode itself."""
    evidence = plain(situation("ucx-tcp"), counts_nixl=False)
    assert judge(evidence, Requirement()).outcome == "INCONCLUSIVE"


def test_answers_without_moved_bytes_fail() -> None:
    """Decode computed the prompts itself, and no handoff took place."""
    evidence = situation("ucx-tcp")
    still = [one.model_copy(update={"moved": one.moved.model_copy(update={"bytes": 0.0})})
             for one in evidence.handoffs if one.moved is not None]  # fmt: skip
    verdict = judge(evidence.model_copy(update={"handoffs": tuple(still)}))
    assert "answers came, and no KV was moved" in failures(verdict)


def test_a_handoff_that_fell_back_fails_with_its_reason() -> None:
    """The caller had an answer; the handoff is broken all the same."""
    evidence = situation("ucx-shm")
    lost = evidence.handoffs[0].model_copy(
        update={
            "way": "local",
            "fallbacks": ("decode_error_event",),
            "attempts": ({"kind": "error_event"},),
        }
    )
    verdict = judge(evidence.model_copy(update={"handoffs": (lost,)}))
    assert verdict.outcome == "FAIL"
    assert "handoffs did not happen" in failures(verdict)[0]


def test_no_handoff_at_all_is_inconclusive() -> None:
    """Nothing was measured, so nothing is known."""
    verdict = judge(situation("ucx-shm").model_copy(update={"handoffs": ()}))
    assert verdict.outcome == "INCONCLUSIVE"


def test_a_backend_that_was_asked_for_and_is_not_there_fails() -> None:
    """A plugin that did not load leaves another one in its place."""
    evidence = of_decode(situation("libfabric-tcp"), observed_backends=("UCX",))
    assert any("was asked for LIBFABRIC" in fact for fact in failures(judge(evidence)))


def test_engines_of_different_builds_fail_before_their_first_user() -> None:
    """NIXL's compatibility hash would refuse every handshake."""
    evidence = of_decode(situation("ucx-shm"), compatibility_hash="other")
    assert any("do not match" in fact for fact in failures(judge(evidence)))


def test_efa_whose_counters_stand_still_fails() -> None:
    """A provider's name is not enough either, where the device can be asked."""
    evidence = situation("synthetic-libfabric-efa")
    facts = evidence.decode.facts_before
    assert facts is not None
    still = of_decode(evidence, rdma_counters=facts.workers[0].rdma_counters)
    verdict = judge(still, Requirement(require="efa"))
    assert "the RDMA devices did not carry the KV" in failures(verdict)


def test_other_answers_fail_and_name_the_prompt() -> None:
    """Wrong KV is worse than slow KV."""
    wrong = Check(name="lengthened", same=False, with_pd="a", without_pd="b", gap=2.0)
    verdict = judge(situation("ucx-shm").model_copy(update={"checks": (wrong,)}))
    assert verdict.outcome == "FAIL"
    assert "lengthened" in failures(verdict)[0]


def test_answers_that_part_at_a_tie_are_inconclusive() -> None:
    """Random weights have near ties: two right computations may differ there."""
    tie = Check(name="long", same=False, with_pd="a", without_pd="b", gap=0.001)
    verdict = judge(situation("ucx-shm").model_copy(update={"checks": (tie,)}))
    assert verdict.outcome == "INCONCLUSIVE"


def test_an_engine_with_peers_here_and_elsewhere_is_judged_by_this_pairs_kind() -> None:
    """UCX's tables hold both; one pair uses one of them."""
    evidence = situation("ucx-shm")
    facts = evidence.decode.facts
    assert facts is not None
    near = next(row for row in facts.workers[0].ucx if row.operation == "get")
    far = near.model_copy(update={"scope": "inter-node", "transport": "rc_mlx5/mlx5_0:1"})
    both = of_decode(evidence, ucx=(near, far))
    assert judge(both).observed_fabric == "shm"
    elsewhere = both.model_copy(
        update={"prefill": both.prefill.model_copy(update={"node": "another"})}
    )
    assert judge(elsewhere).observed_fabric == "rdma"


def test_simulated_engines_never_pass() -> None:
    """They move no KV, so there is nothing to prove."""
    evidence = situation("ucx-shm")
    facts = evidence.decode.facts
    assert facts is not None
    decode = evidence.decode.model_copy(
        update={"facts": facts.model_copy(update={"simulated": True})}
    )
    assert judge(evidence.model_copy(update={"decode": decode})).outcome == "INCONCLUSIVE"
