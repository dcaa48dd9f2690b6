"""The checks over facts that a test makes up: what passes, what fails, and what is only unknown."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from baton.deploy.eks.findings import KINDS
from baton.deploy.eks.live.checks import Verdict, all_checks, judge, verdict_of
from baton.deploy.eks.live.checks_files import schema_errors
from baton.deploy.eks.live.facts import (
    G_VT,
    STANDARD,
    ClusterFacts,
    Facts,
    Known,
    P,
    ReservationFacts,
    TypeFigures,
    Unknown,
    quota_of,
)
from tests.unit.deploy.eks.rendered import G6, P5, changed, files, layout

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Layout

MINE = "222233334444.dkr.ecr.us-west-2.amazonaws.com/baton:0.1.0-ray2.60.0-gpu"
G6_FIGURES = TypeFigures(32, 1, 22888, 1)
GOOD = Facts(
    account=Known("222233334444 as arn:aws:iam::222233334444:role/platform"),
    tools={
        "aws": Known((2, 17, 0)), "kubectl": Known((1, 35, 2)), "eksctl": Known((0, 221, 0)),
        "helm": Known((4, 1, 4)),
    },
    versions=Known({"1.32": "EXTENDED_SUPPORT", "1.33": "STANDARD_SUPPORT",
                    "1.34": "STANDARD_SUPPORT", "1.27": "UNSUPPORTED"}),
    quotas={STANDARD: Known(64.0), G_VT: Known(64.0)},
    running_vcpus=Known({}),
    offered=Known({"g6.8xlarge": frozenset({"us-west-2a", "us-west-2b"}),
                   "m7i.xlarge": frozenset({"us-west-2a"})}),
    types=Known({"g6.8xlarge": G6_FIGURES, "m7i.xlarge": TypeFigures(4, 0, 0, 0)}),
    cluster=Known(None),
    group_zones=Known(frozenset()),
    reservation=Known(None),
    secret=Known(False),
    environment=frozenset({"BATON_API_KEYS"}),
)  # fmt: skip


@cache
def mine(**flags: Any) -> Layout:
    """The g6 example with an image of one's own."""
    return changed(None, G6, **{"image": MINE, **flags})


def one(rule_id: str, what: Layout, facts: Facts = GOOD, accepted: tuple[str, ...] = ()) -> Verdict:
    (rule,) = [rule for rule in all_checks() if rule.rule_id == rule_id]
    return verdict_of(rule, what, facts, accepted)


def verdict(rule_id: str, facts: Facts = GOOD, **flags: Any) -> Verdict:
    return one(rule_id, mine(**flags), facts)


def with_(**changes: Any) -> Facts:
    return replace(GOOD, **changes)


def test_all_pass_where_all_is_well() -> None:
    """Only the model's config is not at hand, which stops nothing."""
    verdicts = judge(mine(), GOOD)
    assert {v.rule_id: v.word for v in verdicts if v.word != "pass"} == {"EKS-109": "unknown"}
    assert not any(v.stops for v in verdicts)


def test_nothing_known_passes_nothing_that_must_be_asked() -> None:
    """Unknown is a verdict of its own, and stops where the rule must hold."""
    words = {v.rule_id: v for v in judge(layout(), Facts())}
    asked = ["EKS-101", "EKS-102", "EKS-103", "EKS-104", "EKS-105", "EKS-106", "EKS-107",
             "EKS-108", "EKS-112", "EKS-114"]  # fmt: skip
    assert {words[rule].word for rule in asked} == {"unknown"}
    assert all(words[rule].stops for rule in asked)


def test_an_unknown_can_be_accepted_by_its_id_and_a_failure_cannot() -> None:
    """Who accepts takes it upon themselves, one rule at a time."""
    facts = with_(quotas={STANDARD: Unknown("AccessDenied"), G_VT: Unknown("AccessDenied")})
    accepted = one("EKS-104", layout(), facts, ("EKS-104",))
    assert (accepted.word, accepted.stops) == ("unknown", False)
    short = with_(quotas={STANDARD: Known(64.0), G_VT: Known(0.0)})
    assert one("EKS-104", layout(), short, ("EKS-104",)).stops


CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("EKS-101", {"tools": {**GOOD.tools, "eksctl": Known(None)}}, "fail", "is not installed"),
    ("EKS-101", {"tools": {**GOOD.tools, "helm": Known((3, 12, 0))}}, "fail", "helm is 3.12.0"),
    ("EKS-101", {"tools": {**GOOD.tools, "kubectl": Known((1, 31, 0))}}, "fail", "kubectl is 1.31"),
    ("EKS-101", {"tools": {**GOOD.tools, "aws": Unknown("aws hung")}}, "unknown", "hung"),
    ("EKS-102", {"account": Unknown("ExpiredToken: no")}, "unknown", "ExpiredToken"),
    ("EKS-103", {"versions": Known({"1.35": "STANDARD_SUPPORT"})}, "fail", "does not offer 1.34"),
    ("EKS-103", {"versions": Known({"1.34": "EXTENDED_SUPPORT"})}, "warn", "extended"),
    ("EKS-103", {"versions": Known({"1.34": "UNSUPPORTED"})}, "fail", "does not offer"),
    ("EKS-104", {"quotas": {STANDARD: Known(64.0), G_VT: Known(32.0)}}, "fail",
     "64 vCPUs wanted, 0 run, 32 allowed"),
    ("EKS-104", {"running_vcpus": Known({G_VT: 8})}, "fail", "64 vCPUs wanted, 8 run, 64 allowed"),
    ("EKS-104", {"running_vcpus": Unknown("AccessDenied")}, "unknown", "what runs already"),
    ("EKS-105", {"offered": Known({"g6.8xlarge": frozenset({"us-west-2a"})})}, "fail",
     "us-west-2b does not offer g6.8xlarge; us-west-2a does"),
    ("EKS-105", {"offered": Known({"g6.8xlarge": frozenset({"us-west-2b"})})}, "fail",
     "offers m7i.xlarge"),
    ("EKS-106", {"cluster": Known(ClusterFacts("1.34", frozenset({"us-west-2a"}), True))}, "fail",
     "and not in us-west-2b"),
    ("EKS-107", {"types": Known({"g6.8xlarge": replace(G6_FIGURES, efa_interfaces=0)})}, "fail",
     "EFA interfaces: 1 here, 0 by EC2"),
    ("EKS-107", {"types": Known({})}, "unknown", "did not describe"),
    ("EKS-108", {"group_zones": Known(frozenset({"us-west-2a"}))}, "fail",
     "us-west-2a and us-west-2b"),
    ("EKS-112", {"environment": frozenset()}, "fail", "BATON_API_KEYS is not set"),
    ("EKS-112", {"environment": frozenset(), "secret": Unknown("Forbidden")}, "unknown",
     "Forbidden"),
    ("EKS-112", {"environment": frozenset(), "secret": Known(True)}, "pass", "is there"),
    ("EKS-114", {"cluster": Known(ClusterFacts("1.33", frozenset({"us-west-2b"}), True))}, "fail",
     "runs 1.33, and 1.34 is wanted"),
    ("EKS-114", {"cluster": Known(ClusterFacts("1.34", frozenset({"us-west-2b"}), False))}, "pass",
     "is not Baton's"),
]  # fmt: skip


@pytest.mark.parametrize(("rule_id", "changes", "word", "text"), CASES)
def test_each_rule_says_what_is_wrong(
    rule_id: str, changes: dict[str, Any], word: str, text: str
) -> None:
    """Fact, verdict and the words that name it; a failure has a cure."""
    found = verdict(rule_id, with_(**changes))
    assert (found.word, text in found.text) == (word, True), found
    assert found.cure or word in ("pass", "unknown")


def test_a_quota_says_how_to_raise_it() -> None:
    """To what is wanted and runs, with the code of the quota."""
    found = verdict("EKS-104", with_(running_vcpus=Known({G_VT: 8})))
    assert "--quota-code L-DB2E81BA --desired-value 72 --region us-west-2" in found.cure


@pytest.mark.parametrize(
    ("reservation", "text"),
    [
        (None, "there is no cr-1"),
        (ReservationFacts("expired", "g6.8xlarge", "us-west-2b", 2), "it is expired"),
        (ReservationFacts("active", "p5.48xlarge", "us-west-2b", 2), "it is for p5.48xlarge"),
        (ReservationFacts("active", "g6.8xlarge", "us-west-2a", 2), "it is in us-west-2a"),
        (ReservationFacts("active", "g6.8xlarge", "us-west-2b", 1), "1 instances are left"),
    ],
)
def test_a_reservation_is_held_against_the_nodes(
    reservation: ReservationFacts | None, text: str
) -> None:
    """State, type, zone, and how much is left."""
    facts = with_(reservation=Known(reservation))
    found = verdict("EKS-113", facts, capacity_reservation_id="cr-1")
    assert (found.word, text in found.text) == ("fail", True)
    fits = with_(reservation=Known(ReservationFacts("active", "g6.8xlarge", "us-west-2b", 2)))
    assert verdict("EKS-113", fits, capacity_reservation_id="cr-1").word == "pass"


@pytest.mark.parametrize(
    ("image", "word"),
    [
        ("111122223333.dkr.ecr.us-west-2.amazonaws.com/baton:ray2.60.0", "fail"),
        ("registry.example/baton:0.1.0-ray2.59.0", "fail"),
        ("registry.example:5000/baton:0.1.0-ray2.60.0", "pass"),
        ("registry.example/baton:ray2.60.0-vllm0.29.0-nixl1.3.2", "pass"),
        ("registry.example/baton:ray2.60.0-vllm0.28.0", "fail"),
        ("registry.example/baton:ray2.60.0-nixl1.3.1", "fail"),
        ("registry.example/baton:vllm0.29.0", "unknown"),
        ("registry.example/baton:latest", "unknown"),
        ("registry.example/baton", "unknown"),
    ],
)
def test_an_image_is_judged_by_its_tag(image: str, word: str) -> None:
    """Another Ray, vLLM or NIXL is refused; no Ray in the tag is unknown; so is an example's
    account refused."""
    assert verdict("EKS-110", image=image).word == word


@pytest.mark.parametrize("name", [G6, P5])
def test_rendered_files_keep_to_the_schemas(name: str) -> None:
    """The same schemas that the tests use, at run time."""
    wrong, without = schema_errors(files(name))
    assert (wrong, set(without)) == ([], {"Kustomization", "ServiceMonitor"})


def test_a_misspelt_field_is_found() -> None:
    """It would be dropped in silence, or refused half-way through."""
    text = files()["eksctl/nodegroups.yaml"].replace("efaEnabled", "efaEnable")
    wrong, _ = schema_errors({"eksctl/nodegroups.yaml": text})
    assert wrong
    assert "efaEnable" in wrong[0]


def test_every_check_can_be_explained() -> None:
    """Title and source stand with `baton explain`."""
    for rule in all_checks():
        assert len(KINDS[rule.rule_id].why) > len(rule.title)


@pytest.mark.parametrize(
    ("name", "code"),
    [("g6.8xlarge", G_VT), ("gr6.4xlarge", G_VT), ("p5.48xlarge", P), ("m7i.xlarge", STANDARD),
     ("trn2.48xlarge", "L-2C3B7624"), ("hpc7a.96xlarge", None), ("x2iezn.metal", None)],
)  # fmt: skip
def test_types_count_against_their_quota(name: str, code: str | None) -> None:
    """By family; one that is not known is not guessed."""
    assert quota_of(name) == code
