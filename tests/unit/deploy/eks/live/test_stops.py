"""When a run must not go on: what cannot be seen, is not ours, or will never be ready."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from baton.deploy.eks.live.apply import apply
from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.commands import Done
from baton.deploy.eks.live.states import State
from baton.deploy.eks.live.teardown import leftovers
from baton.errors import DeployFailed
from tests.unit.deploy.eks.live.cloud import KEYS, NAME, Cloud, running
from tests.unit.deploy.eks.live.session import Session, down, refused, throttled, up
from tests.unit.deploy.eks.rendered import G6, changed

AWS_CALLS = [
    "describe_cluster", "describe_stacks", "list_open_id_connect_providers", "describe_addon",
    "describe_nodegroup", "describe_placement_groups",
]  # fmt: skip


def stamp(seconds: float, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


@pytest.mark.parametrize("operation", AWS_CALLS)
def test_what_cannot_be_seen_is_not_made(operation: str) -> None:
    """A throttled or forbidden call is no proof of absence."""
    cloud = Cloud()
    cloud.answers[operation] = throttled
    assert "ThrottlingException" in refused(up, cloud)
    before = dict(cloud.made)
    cloud.answers.clear()
    up(cloud)
    assert all(cloud.made[name] == 1 for name in before)


@pytest.mark.parametrize(
    "start", ["helm list", "kubectl get namespace", "kubectl get rayservice", "kubectl get pods"]
)
def test_what_the_cluster_does_not_say_is_neither_made_nor_deleted(start: str) -> None:
    """An API server that refuses is not an empty one: on the way up and on the way down."""
    cloud = Cloud()
    up(cloud)
    cloud.ran.clear()
    cloud.answers[start] = lambda: Done(1, err="Error from server (Forbidden): no")
    assert "Forbidden" in refused(up, cloud)
    assert "Forbidden" in refused(down, cloud)
    assert "cluster" in cloud.things
    assert not any(line.startswith("eksctl delete") for line in cloud.ran)


@pytest.mark.parametrize("operation", ["describe_cluster", "list_nodegroups"])
def test_delete_stops_on_what_it_cannot_see(operation: str) -> None:
    """Nothing is deleted while AWS does not say what is there."""
    cloud = Cloud()
    up(cloud)
    cloud.answers[operation] = throttled
    assert "ThrottlingException" in refused(down, cloud)
    assert "cluster" in cloud.things


def test_one_call_that_fails_does_not_end_a_run() -> None:
    """Throttled once, asked again."""
    cloud = Cloud()
    up(cloud)
    calls = iter(range(100))

    def once() -> Any:
        if next(calls) == 0:
            throttled()
        return cloud._describe_cluster(NAME)

    cloud.answers["describe_cluster"] = once
    cloud.ran.clear()
    up(cloud)
    assert cloud.ran == []


def test_a_quota_ends_the_making_of_nodes_with_its_own_words() -> None:
    """The node group's health says it long before eksctl gives up."""
    cloud = Cloud()
    cloud.never_ready["prefill"] = "timed out waiting for the stack"
    text = "You have requested more vCPU capacity than your current vCPU limit of 0 allows"
    change = cloud._group

    def group(name: str, kind: str, nodes: int) -> Done:
        done = change(name, kind, nodes)
        if name == "prefill":
            cloud.things[name]["issues"] = [{"code": "AsgInstanceLaunchFailures", "message": text}]
        return done

    cloud._group = group  # type: ignore[method-assign]
    assert text in refused(up, cloud)
    # Once more, while the group is still there and still fails: the same reason, nothing made.
    made = dict(cloud.made)
    assert text in refused(up, cloud)
    assert dict(cloud.made) == made


def test_a_stack_that_failed_says_what_failed_first() -> None:
    """Later events only say that they were cancelled."""
    cloud = Cloud()
    cloud.begin("cluster")
    del cloud.things["cluster"]
    cloud.things["cluster"] = {"state": "failed", "tags": {}, "events": [
        {"ResourceStatus": "CREATE_FAILED", "LogicalResourceId": "Subnet", "Timestamp": "2",
         "ResourceStatusReason": "Resource creation cancelled"},
        {"ResourceStatus": "CREATE_FAILED", "LogicalResourceId": "VPC", "Timestamp": "1",
         "ResourceStatusReason": "The maximum number of VPCs has been reached."},
    ]}  # fmt: skip
    cloud.answers["describe_cluster"] = _absent
    said = refused(up, cloud)
    assert "VPC: The maximum number of VPCs has been reached." in said
    assert "baton eks delete --step cluster" in said


def _absent() -> Any:
    raise AwsFailed("ResourceNotFoundException", "no such cluster")


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"containerStatuses": [{"name": "ray-worker", "state": {"waiting": {
            "reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}}}]},
         "ImagePullBackOff: Back-off pulling image"),
        ({"conditions": [{"type": "PodScheduled", "status": "False",
                          "lastTransitionTime": "2026-01-01T00:00:00Z",
                          "message": "0/4 nodes: 2 Insufficient vpc.amazonaws.com/efa."}]},
         "EFA device plugin"),
        ({"containerStatuses": [{"name": "ray-worker", "restartCount": 5, "state": {"waiting": {
            "reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {
                "reason": "OOMKilled", "exitCode": 137}}}]},
         "OOMKilled, exit status 137"),
    ],
)  # fmt: skip
def test_pods_that_will_never_run_end_the_waiting(pod: Any, words: str) -> None:
    """Image, EFA, memory: the reason itself, at once."""
    cloud = Cloud()
    cloud.never_ready["service"] = "pods"
    broken = running("decode")
    broken["status"] = {"phase": "Pending", **pod}
    session = Session(cloud)
    cloud.begin("service", pods=[running("head"), broken])
    cloud.things["service"]["no_stack"] = True
    cloud.begin("cluster")
    cloud.things["cluster"]["state"] = "ready"
    service = [part for part in session.parts if part.kind == "service"]
    with pytest.raises(DeployFailed, match=re.escape(words)):
        apply(service, session.eyes, cloud, session.pace)


def test_serves_deploy_failed_is_told_in_its_own_words() -> None:
    """DEPLOY_FAILED and its message, not a deadline."""
    cloud = Cloud()
    up(cloud)
    cloud.things["service"] |= {
        "state": "broken", "serve": "DEPLOY_FAILED", "message": "KeyError: 'engine_id'"
    }  # fmt: skip
    assert "Serve says DEPLOY_FAILED: KeyError: 'engine_id'" in refused(up, cloud)


def test_a_repaired_file_is_applied_over_a_failed_service() -> None:
    """What fails is not what the files say now."""
    cloud = Cloud()
    up(cloud)
    cloud.things["service"] |= {"state": "creating", "serve": "DEPLOY_FAILED"}
    cloud.diff = Done(1, "+++ /tmp/LIVE/ray.io.v1.RayService.baton.qwen\n")
    up(cloud)
    assert cloud.ran[-1] == "kubectl apply -k k8s"
    assert cloud.state()["service"] == "ready"


def test_pending_pods_are_given_time_and_then_a_reason() -> None:
    """A plugin may need a minute: before that it is waited for."""
    cloud = Cloud()
    up(cloud)
    late = running("decode")
    late["status"] = {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "Insufficient nvidia.com/gpu",
         "lastTransitionTime": stamp(cloud.clock)}]}  # fmt: skip
    cloud.things["service"] |= {"state": "broken", "pods": [running("head"), late]}
    session = Session(cloud)
    said = refused(apply, session.parts, session.eyes, cloud, session.pace)
    assert "NVIDIA device plugin" in said
    assert any("Unschedulable" in line for line in session.said)


def test_another_size_is_scaled_and_another_type_is_not() -> None:
    """What can be changed in place is; the rest says how."""
    cloud = Cloud()
    up(cloud)
    cloud.things["decode"]["nodes"] = 5
    up(cloud)
    assert cloud.ran[-1].startswith("eksctl scale nodegroup")
    assert cloud.things["decode"]["nodes"] == 1
    cloud.things["decode"]["type"] = "g5.8xlarge"
    said = refused(up, cloud)
    assert "g5.8xlarge is there, g6.8xlarge wanted" in said
    assert "baton eks delete --step nodes" in said


def test_an_older_cluster_is_not_upgraded() -> None:
    """The upgrade has an order of its own."""
    cloud = Cloud()
    up(cloud)
    cloud.things["cluster"]["version"] = "1.33"
    assert "docs/guides/upgrade.md" in refused(up, cloud)


def test_a_new_image_that_nobody_rolls_out_is_told() -> None:
    """KubeRay takes it into the manifest and starts nothing: ready would be a lie."""
    cloud = Cloud()
    up(cloud)
    old = running("decode")
    old["spec"]["containers"] = [{"image": "baton:old"}]
    cloud.things["service"]["pods"] = [running("head"), running("prefill"), old]
    said = refused(up, cloud)
    assert "pods run baton:old" in said
    assert "baton eks delete --step app" in said


def test_another_chart_version_is_upgraded() -> None:
    """The same command as for installing."""
    cloud = Cloud()
    up(cloud)
    cloud.things["chart kuberay-operator"]["chart"] = "kuberay-operator-1.6.0"
    up(cloud)
    assert cloud.ran[-1].startswith("helm upgrade --install kuberay-operator")


def test_a_helm_that_was_interrupted_is_not_waited_for_for_ever() -> None:
    """`pending-install` past helm's own time is removed and installed again."""
    cloud = Cloud()
    up(cloud)
    cloud.things["chart kuberay-operator"] |= {
        "status": "pending-install", "updated": "2026-01-01 08:00:00.1 +0000 UTC"
    }  # fmt: skip
    cloud.ran.clear()
    up(cloud)
    assert [line.split()[1] for line in cloud.ran] == ["uninstall", "upgrade"]


def test_a_helm_at_work_is_waited_for() -> None:
    """Somebody else's `helm upgrade` may be running."""
    cloud = Cloud()
    up(cloud)
    chart = cloud.things["chart kuberay-operator"]
    chart |= {
        "status": "pending-upgrade",
        "updated": stamp(cloud.clock, "%Y-%m-%d %H:%M:%S.1 +0000 UTC"),
    }
    session = Session(cloud)
    part = next(p for p in session.parts if p.name == "chart-kuberay-operator")
    assert session.eyes.see(part).state is State.CREATING


def test_keys_that_are_not_set_stop_before_the_service() -> None:
    """The secret needs them; what to export is said."""
    cloud = Cloud()
    session = Session(cloud)
    from baton.deploy.eks.live.parts import parts_of

    parts = parts_of(session.layout, {})
    assert "export BATON_API_KEYS=" in refused(apply, parts, session.eyes, cloud, session.pace)
    assert "service" not in cloud.things


def test_keys_are_fed_and_never_shown() -> None:
    """By standard input: neither an argument nor a line of output has them."""
    cloud = Cloud()
    session = up(cloud)
    assert not any(KEYS["BATON_API_KEYS"] in line for line in (*cloud.ran, *session.said))
    secret = next(part for part in session.parts if part.kind == "secret")
    assert secret.create[0].secret == "BATON_API_KEYS=k1\n"
    assert "k1" not in secret.create[0].text


def test_what_may_still_cost_is_listed_or_said_to_be_unseen() -> None:
    """Volumes that are there, a call that is refused, a reservation that goes on."""
    cloud = Cloud()
    cloud.answers |= {
        "describe_volumes": lambda: {"Volumes": [{"VolumeId": "vol-1", "Size": 80}]},
        "describe_instances": lambda: {"Reservations": []},
        "describe_nat_gateways": throttled,
        "describe_addresses": lambda: {"Addresses": []},
    }
    layout = changed(None, G6, capacity_reservation_id="cr-1")
    found = leftovers(Session(cloud, layout).eyes)
    assert found[0] == "EBS volumes: vol-1 (80 GiB)"
    assert found[1] == "NAT gateways: could not be seen (ThrottlingException)"
    assert found[2].startswith("capacity reservation cr-1")


def test_progress_comes_from_cloudformation_once_an_event() -> None:
    """In the order in which they happened, also those of a run that was interrupted."""
    cloud = Cloud()
    cloud.begin("cluster", events=[
        {"EventId": "2", "ResourceStatus": "CREATE_COMPLETE", "LogicalResourceId": "VPC"},
        {"EventId": "1", "ResourceStatus": "CREATE_IN_PROGRESS", "LogicalResourceId": "VPC"},
    ])  # fmt: skip
    said = up(cloud).said
    told = [line.strip() for line in said if "VPC" in line and "CREATE" in line]
    assert told == ["CREATE_IN_PROGRESS VPC", "CREATE_COMPLETE VPC"]


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ({"vllm": "0.28.0"}, "vllm 0.28.0, and the plan is for 0.29.0"),
        ({"nixl": "1.3.1"}, "nixl 1.3.1, and the plan is for 1.3.2"),
        ({"ray": "2.59.0"}, "ray 2.59.0, and the plan is for 2.60.0"),
    ],
)
def test_an_image_that_is_not_the_plans_is_refused_though_all_of_it_runs(
    inside: dict[str, str], said: str
) -> None:
    """The head's own word counts, whatever the tag says; and it can be deleted again."""
    cloud = Cloud()
    cloud.in_image = inside
    assert said in refused(up, cloud)
    down(cloud)
    assert "service" not in cloud.things


def test_an_image_whose_versions_cannot_be_read_is_waited_for_and_not_called_ready() -> None:
    """Unknown is no match. It does not stand in the way of a deletion."""
    cloud = Cloud()
    cloud.answers["kubectl exec"] = lambda: Done(1, err="error: unable to upgrade connection")
    assert "the image's versions are not known yet" in refused(up, cloud)
    down(cloud)
    assert "service" not in cloud.things
