"""What is not ours: used or refused on the way up, left on the way down."""

from __future__ import annotations

from tests.unit.deploy.eks.live.cloud import Cloud
from tests.unit.deploy.eks.live.session import down, refused, up


def test_a_namespace_of_others_is_neither_used_nor_deleted() -> None:
    """It would be deleted one day with all that is in it."""
    cloud = Cloud()
    up(cloud)
    cloud.things["namespace"]["tags"] = {}
    assert "kubectl label namespace baton" in refused(up, cloud)
    left = down(cloud)
    assert [(each.what, each.why) for each in left] == [
        ("namespace baton", "it does not carry Baton's tag")
    ]
    assert "namespace" in cloud.things


def test_a_namespace_with_other_things_in_it_is_left() -> None:
    """Ours, and somebody put a database into it."""
    cloud = Cloud()
    up(cloud)
    database = {"kind": "StatefulSet", "metadata": {"name": "postgres", "labels": {}}}
    ours = {"kind": "Service", "metadata": {"name": "a", "labels": {
        "app.kubernetes.io/managed-by": "baton"}}}  # fmt: skip
    certificate = {"kind": "ConfigMap", "metadata": {"name": "kube-root-ca.crt"}}
    cloud.things["others"] = {"state": "kept", "items": [database, ours, certificate], "tags": {}}
    (left,) = down(cloud)
    assert left.why == "other things are in it: StatefulSet/postgres"


def test_somebody_elses_cluster_is_used_and_left() -> None:
    """No add-on, no node of its own is touched; our node groups come and go."""
    cloud = Cloud()
    cloud.begin("cluster")
    cloud.things["cluster"] |= {"state": "ready", "tags": {}, "no_stack": True}
    up(cloud)
    touched = ("addon", "oidc", "--include=system")
    assert not any(word in line for line in cloud.ran for word in touched)
    assert {"prefill", "decode", "service"} <= set(cloud.things)
    (left,) = down(cloud)
    assert left.why == "the cluster does not carry Baton's tag"
    assert set(cloud.things) == {"cluster"}


def test_a_chart_of_others_is_used_and_left() -> None:
    """The GPU operator's device plugin, say."""
    cloud = Cloud()
    up(cloud)
    cloud.things["chart nvidia-device-plugin"]["tags"] = {}
    cloud.ran.clear()
    up(cloud)
    assert cloud.ran == []
    assert ["nvidia" in each.what for each in down(cloud)] == [True]


def test_nodes_are_not_taken_from_under_other_services() -> None:
    """Another RayService uses the operator and the nodes."""
    cloud = Cloud()
    up(cloud)
    cloud.things["other"] = {
        "state": "kept", "tags": {},
        "object": {"metadata": {"name": "llama", "namespace": "team-b"}},
    }  # fmt: skip
    assert "team-b/llama" in refused(down, cloud)
    assert "chart kuberay-operator" in cloud.things
    assert "service" not in cloud.things


def test_nodes_are_not_taken_from_under_our_own_service() -> None:
    """`--step nodes` alone wants the service gone first."""
    cloud = Cloud()
    up(cloud)
    assert "`--step app` first" in refused(down, cloud, "nodes")
    down(cloud, "app")
    down(cloud, "nodes")
    assert "cluster" in cloud.things
    assert "prefill" not in cloud.things


def test_a_cluster_with_node_groups_of_others_is_not_deleted() -> None:
    """eksctl would take them along."""
    cloud = Cloud()
    up(cloud)
    cloud.things["spark"] = {
        "state": "ready", "tags": {}, "type": "m7i.large", "nodes": 3, "no_stack": True
    }  # fmt: skip
    assert "spark" in refused(down, cloud)
    assert "cluster" in cloud.things
