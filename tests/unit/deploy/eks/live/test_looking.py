"""Nodes, pods, proof and prices as values: readers without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from baton.deploy.eks.live.commands import Done
from baton.deploy.eks.live.inside import (
    Witness,
    judge_verify,
    judge_witnesses,
    moved,
    read_counters,
    read_log,
    verify_script,
)
from baton.deploy.eks.live.prices import Price, cost_of
from baton.deploy.eks.live.runbook import cost_lines
from baton.deploy.eks.live.status import efa_faults, node_views
from baton.deploy.eks.live.waits import pod_view, progress, serve_view
from tests.unit.deploy.eks.live.cloud import running
from tests.unit.deploy.eks.rendered import G6, changed, layout

EFA = frozenset({"efa"})


def node(name: str, gpus: int, efa: int) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {
            "node.kubernetes.io/instance-type": "g6.8xlarge", "baton.dev/phase": "decode",
            "topology.kubernetes.io/zone": "us-west-2b"}},
        "status": {"allocatable": {"nvidia.com/gpu": str(gpus), "vpc.amazonaws.com/efa": str(efa)},
                   "conditions": [{"type": "Ready", "status": "True"}]},
    }  # fmt: skip


def test_nodes_show_what_is_free() -> None:
    """Pods of any namespace take GPUs; those that ended do not."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1", "vpc.amazonaws.com/efa": "1"}}}
    pods = [
        {"spec": {"nodeName": "a", "containers": [limits]}, "status": {"phase": "Running"}},
        {"spec": {"nodeName": "a", "containers": [limits]}, "status": {"phase": "Succeeded"}},
    ]
    first, second = node_views([node("a", 1, 1), node("b", 1, 0)], pods)
    assert (first.gpus, first.gpus_taken, first.efa_taken) == (1, 1, 1)
    assert (second.gpus_taken, second.ready) == (0, True)
    assert efa_faults([first, second], {"decode": 1}) == [
        "b (g6.8xlarge) offers 0 EFA interfaces of 1"
    ]


def test_serve_is_read_from_the_rayservice() -> None:
    """The pending cluster's when there is no active one; KubeRay may lag behind."""
    service = {
        "metadata": {"generation": 3},
        "status": {
            "observedGeneration": 2,
            "pendingServiceStatus": {
                "applicationStatuses": {"qwen": {"status": "DEPLOYING", "serveDeploymentStatuses": {
                    "decode": {"status": "UNHEALTHY", "message": "no GPU"}}}},
                "rayClusterStatus": {"conditions": [
                    {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
                     "message": "exceeded quota"}]},
            },
        },
    }  # fmt: skip
    view = serve_view(service)
    assert view.applications == {"qwen": ("DEPLOYING", "decode: no GPU")}
    assert view.behind
    runs, text, fatal = progress([], view, "qwen", {"prefill": 1, "decode": 1})
    assert not runs
    assert "prefill 0/1" in text
    assert fatal == "FailedCreate: exceeded quota"


def test_everything_runs_only_when_all_of_it_does() -> None:
    """A worker that is missing, a rollout under way: not yet."""
    pods = [pod_view(running(phase), 0.0) for phase in ("head", "prefill", "decode")]
    running_ = {"activeServiceStatus": {"applicationStatuses": {"qwen": {"status": "RUNNING"}}}}
    workers = {"prefill": 1, "decode": 1}
    assert progress(pods, serve_view({"status": running_}), "qwen", workers)[0]
    assert not progress(pods[:2], serve_view({"status": running_}), "qwen", workers)[0]
    busy = {**running_, "conditions": [{"type": "UpgradeInProgress", "status": "True"}]}
    assert not progress(pods, serve_view({"status": busy}), "qwen", workers)[0]


@pytest.mark.parametrize(
    ("witnesses", "word"),
    [
        ([Witness("a", "prefill", providers=EFA, moved_bytes=9)], "pass"),
        ([Witness("a", "prefill", providers=frozenset({"tcp"}), moved_bytes=9)], "fail"),
        ([Witness("a", "prefill", providers=EFA | {"tcp"}, moved_bytes=9)], "fail"),
        ([Witness("a", "prefill", providers=EFA, moved_bytes=0)], "fail"),
        ([Witness("a", "prefill", providers=EFA)], "unknown"),
        ([Witness("a", "prefill", moved_bytes=9)], "unknown"),
        ([], "unknown"),
    ],
)
def test_witnesses_must_all_say_efa(witnesses: list[Witness], word: str) -> None:
    """TCP beside EFA fails; silence is unknown."""
    assert judge_witnesses(witnesses, efa=True).word == word


def test_verify_without_baton_in_the_image_is_unknown() -> None:
    """AWS' container has none: nothing was measured, which is no pass."""
    assert judge_verify(Done(127, err="bash: baton: command not found")).word == "unknown"
    assert [judge_verify(Done(code)).word for code in (0, 1, 2, 3)] == [
        "pass", "fail", "unknown", "unknown",
    ]  # fmt: skip


def test_logs_and_counters_are_read() -> None:
    """NIXL's own lines; counters that began anew count nothing."""
    text = "Backend LIBFABRIC was instantiated\nCreated 4 rails using provider=efa\n"
    assert read_log(Done(0, text)) == (frozenset({"LIBFABRIC"}), EFA, "")
    assert read_log(Done(1, err="error: container not found"))[2] == "error: container not found"
    assert read_counters(Done(0, "")) is None
    before = read_counters(Done(0, "/x/rx_bytes 5\n/x/tx_bytes 7\nodd line\n"))
    assert before == {"/x/rx_bytes": 5, "/x/tx_bytes": 7}
    assert moved(before, {"/x/rx_bytes": 6, "/x/tx_bytes": 9}) == 3
    assert moved(before, {"/x/rx_bytes": 0, "/x/tx_bytes": 9}) is None
    assert moved(before, None) is None


def test_the_key_stays_in_the_pod() -> None:
    """One of `name:key,name:key`, by a variable of the pod's."""
    script = verify_script(layout())
    assert "${BATON_API_KEYS%%,*}" in script
    assert script.endswith("--require efa --api-key-env BATON_VERIFY_KEY")


def test_unknown_prices_stay_unknown() -> None:
    """The sum is then a lower bound, and says what is missing."""
    cost = cost_of(layout(), {})
    assert cost.known_usd_per_hour == pytest.approx(0.10 + 0.045 + 2 * 0.2016)
    assert cost.unknown[0] == "2 x g6.8xlarge"
    assert "Not known, and on top: 2 x g6.8xlarge" in "\n".join(cost_lines(cost))
    priced = cost_of(layout(), {"g6.8xlarge": Price(2.0, "a page", "2026-01-01")})
    assert priced.known_usd_per_hour - cost.known_usd_per_hour == pytest.approx(4.0)


def test_every_zone_has_its_gateway_where_that_was_asked_for() -> None:
    """And a capacity block is not priced by the hour."""
    flags = {"nat_gateway": "highly-available", "capacity_reservation_id": "cr-1"}
    cost = cost_of(changed(None, G6, **flags, capacity_block="true"), {})
    assert [line.count for line in cost.lines if "NAT" in line.what] == [2]
    assert [line.price for line in cost.lines if "Capacity Block" in line.what] == [None]
