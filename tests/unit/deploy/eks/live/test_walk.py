"""Every interruption point of the way up and of the way down: run again, the same end."""

from __future__ import annotations

import pytest

from tests.unit.deploy.eks.live.cloud import Cloud, Killed
from tests.unit.deploy.eks.live.session import down, up


def made_once(cloud: Cloud) -> bool:
    return all(count == 1 for count in cloud.made.values())


def test_apply_makes_everything_once_and_then_nothing() -> None:
    """The first run makes all, in order; the second runs no command at all."""
    cloud = Cloud()
    up(cloud)
    assert set(cloud.state().values()) == {"ready"}
    assert made_once(cloud)
    first = list(cloud.ran)
    assert [line.split()[:3] for line in first[:3]] == [
        ["eksctl", "create", "cluster"],
        ["aws", "ec2", "create-placement-group"],
        ["eksctl", "create", "nodegroup"],
    ]
    assert "--include=prefill,decode" in first[2]
    up(cloud)
    assert cloud.ran == first


def test_apply_killed_at_any_moment_ends_where_an_unbroken_run_does() -> None:
    """Killed at every call, every command and within each: run again, nothing twice."""
    whole = Cloud()
    up(whole)
    for moment in range(1, whole.touches + 1):
        cloud = Cloud(kill_at=moment)
        with pytest.raises(Killed):
            up(cloud)
        up(cloud)
        assert cloud.state() == whole.state(), moment
        assert made_once(cloud), (moment, cloud.made)


def test_delete_killed_at_any_moment_leaves_nothing() -> None:
    """Killed at every call, every command and within each: run again, nothing orphaned."""
    whole = Cloud()
    up(whole)
    before = whole.touches
    assert down(whole) == []
    assert whole.state() == {}
    for moment in range(before + 1, whole.touches + 1):
        cloud = Cloud(kill_at=moment)
        up(cloud)
        with pytest.raises(Killed):
            down(cloud)
        assert down(cloud) == [], moment
        assert cloud.state() == {}, moment


def test_delete_after_an_apply_that_was_killed_leaves_nothing() -> None:
    """Whatever half of a deployment is there, it goes."""
    whole = Cloud()
    up(whole)
    for moment in range(1, whole.touches + 1, 3):
        cloud = Cloud(kill_at=moment)
        with pytest.raises(Killed):
            up(cloud)
        down(cloud)
        assert cloud.state() == {}, moment


def test_delete_goes_in_reverse_and_is_idempotent() -> None:
    """Service before operator before nodes before cluster; a second run does nothing."""
    cloud = Cloud()
    up(cloud)
    cloud.ran.clear()
    down(cloud)
    words = [" ".join(line.split()[:3]) for line in cloud.ran]
    order = [
        "kubectl delete rayservice",
        "kubectl delete namespace",
        "helm uninstall kuberay-operator",
        "eksctl delete nodegroup",
        "aws ec2 delete-placement-group",
        "eksctl delete cluster",
    ]
    places = [words.index(word) for word in order]
    assert places == sorted(places)
    cloud.ran.clear()
    down(cloud)
    assert cloud.ran == []
