"""AWS' answers about clusters, stacks and node groups as states. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from baton.deploy.eks.cluster import TAG
from baton.deploy.eks.live.states import ABSENT, Drift, Seen, State, unknown

# Issues of a node group that no waiting heals; EKS goes on trying for up to half an hour
# (EKS API reference, Issue.code).
FATAL_ISSUES = frozenset(
    {
        "AccessDenied", "AmiIdNotFound", "AsgInstanceLaunchFailures", "ClusterUnreachable",
        "Ec2LaunchTemplateInvalidConfiguration", "Ec2LaunchTemplateMaxLimitExceeded",
        "Ec2SubnetInvalidConfiguration", "Ec2SubnetNotFound", "IamInstanceProfileNotFound",
        "IamLimitExceeded", "IamNodeRoleNotFound", "InstanceLimitExceeded",
        "InsufficientFreeAddresses", "PodEvictionFailure",
    }
)  # fmt: skip
_GROUP = {
    "CREATING": State.CREATING, "UPDATING": State.CREATING, "ACTIVE": State.READY,
    "DELETING": State.DELETING, "CREATE_FAILED": State.FAILED, "DELETE_FAILED": State.FAILED,
    "DEGRADED": State.FAILED,
}  # fmt: skip
_CLUSTER = {
    "CREATING": State.CREATING, "PENDING": State.CREATING, "ACTIVE": State.READY,
    "UPDATING": State.READY, "DELETING": State.DELETING, "FAILED": State.FAILED,
}  # fmt: skip


@dataclass(frozen=True)
class Stack:
    """A CloudFormation stack: its state, and the reason of its first failure."""

    state: State
    detail: str = ""
    ours: bool | None = None


NO_STACK = Stack(State.ABSENT)


def stack_of(answer: dict[str, Any], reason: str, cluster: str) -> Stack:
    """From DescribeStacks.

    Args:
        answer: DescribeStacks for one name.
        reason: The first failed event's, when there was one.
        cluster: Whose tag makes it ours.
    """
    stacks = answer.get("Stacks") or []
    if not stacks:
        return Stack(State.UNKNOWN, "CloudFormation answered without a stack")
    stack = stacks[0]
    status = str(stack.get("StackStatus", ""))
    tags = {tag["Key"]: tag["Value"] for tag in stack.get("Tags", ())}
    ours = tags.get(TAG) == cluster
    state = _stack_state(status)
    if state is State.ABSENT:
        return NO_STACK
    if state is State.FAILED:
        said = reason or str(stack.get("StackStatusReason", "")) or "no reason given"
        return Stack(state, f"{status}: {said}", ours)
    return Stack(state, status, ours)


def _stack_state(status: str) -> State:
    if status in ("DELETE_COMPLETE", "DELETE_IN_PROGRESS"):
        return State.ABSENT if status.endswith("COMPLETE") else State.DELETING
    if status.endswith("FAILED") or "ROLLBACK" in status:
        return State.FAILED
    if status.endswith("IN_PROGRESS"):
        return State.CREATING
    return State.READY if status.endswith("COMPLETE") else State.UNKNOWN


def first_failure(events: list[dict[str, Any]]) -> str:
    """The reason of what failed first; later failures say only that they were cancelled."""
    failed = [
        event
        for event in events
        if str(event.get("ResourceStatus", "")).endswith("_FAILED")
        and "cancelled" not in str(event.get("ResourceStatusReason", "")).lower()
    ]
    if not failed:
        return ""
    event = min(failed, key=lambda e: str(e.get("Timestamp", "")))
    return f"{event.get('LogicalResourceId')}: {event.get('ResourceStatusReason', '')}"


def cluster_seen(cluster: dict[str, Any] | None, stack: Stack, name: str, version: str) -> Seen:
    """A cluster and its stack. While the stack is being made, so is the cluster.

    Args:
        cluster: DescribeCluster's `cluster`, None when EKS says that there is none.
        stack: eksctl's stack.
        name: The cluster's name.
        version: The Kubernetes that is wanted.
    """
    if cluster is None:
        if stack.state is State.READY:
            return Seen(
                State.FAILED, "its stack is complete, and EKS has no such cluster", stack.ours
            )
        return Seen(stack.state, stack.detail, stack.ours)
    ours = (cluster.get("tags") or {}).get(TAG) == name
    status = str(cluster.get("status", ""))
    state = _CLUSTER.get(status)
    if state is None:
        return Seen(State.UNKNOWN, f"a status that is not known: {status}", ours)
    if state is State.READY and stack.state in (State.CREATING, State.DELETING, State.FAILED):
        return Seen(stack.state, stack.detail, ours)
    if state is State.READY and ours and stack.state is State.UNKNOWN:
        return Seen(State.UNKNOWN, stack.detail, ours)
    there = str(cluster.get("version", ""))
    drifts = () if there == version else (Drift(f"Kubernetes {there} is there, {version} wanted"),)
    issues = _issues(cluster)
    return Seen(state, "; ".join(issues.values()) or status, ours, drifts=drifts)


def _issues(thing: dict[str, Any]) -> dict[str, str]:
    listed = (thing.get("health") or {}).get("issues") or []
    return {str(i.get("code")): f"{i.get('code')}: {i.get('message', '')}" for i in listed}


def group_seen(
    group: dict[str, Any] | None, stack: Stack, cluster: str, wants: dict[str, Any]
) -> Seen:
    """A node group and its stack, with what differs from what is wanted."""
    if group is None:
        if stack.state is State.READY:
            return Seen(
                State.FAILED, "its stack is complete, and EKS has no such group", stack.ours
            )
        return Seen(stack.state, stack.detail, stack.ours)
    ours = (group.get("tags") or {}).get(TAG) == cluster
    status = str(group.get("status", ""))
    state = _GROUP.get(status)
    if state is None:
        return Seen(State.UNKNOWN, f"a status that is not known: {status}", ours)
    issues = _issues(group)
    fatal = "; ".join(text for code, text in issues.items() if code in FATAL_ISSUES)
    if state is State.READY and stack.state in (State.DELETING, State.FAILED):
        return Seen(stack.state, stack.detail, ours)
    detail = "; ".join(issues.values()) or status
    if state is State.FAILED and stack.detail and not issues:
        detail = stack.detail
    drifts = tuple(_group_drifts(group, wants)) if state is State.READY else ()
    return Seen(state, detail, ours, fatal if state is State.CREATING else "", drifts)


def _group_drifts(group: dict[str, Any], wants: dict[str, Any]) -> list[Drift]:
    found = []
    types = list(group.get("instanceTypes") or ())
    # A group with a launch template that names the type has no `instanceTypes`.
    if types and types != [wants["type"]]:
        found.append(Drift(f"{', '.join(types)} is there, {wants['type']} wanted"))
    size = (group.get("scalingConfig") or {}).get("desiredSize")
    if size != wants["nodes"]:
        found.append(Drift(f"{size} nodes are there, {wants['nodes']} wanted", "scale"))
    return found


def addons_seen(statuses: dict[str, str | None]) -> Seen:
    """Add-ons by name, None for one that is not there.

    One that is being made counts as there: coredns is not active before there are nodes.
    """
    missing = [name for name, status in statuses.items() if status is None]
    if missing:
        return Seen(State.ABSENT, f"missing: {', '.join(missing)}")
    failed = [name for name, status in statuses.items() if status == "CREATE_FAILED"]
    if failed:
        return Seen(State.FAILED, f"failed: {', '.join(failed)}")
    rest = [f"{name} {status}" for name, status in statuses.items() if status != "ACTIVE"]
    return Seen(State.READY, ", ".join(rest))


def placement_group_seen(answer: dict[str, Any], cluster: str) -> Seen:
    """From DescribePlacementGroups for one name."""
    groups = answer.get("PlacementGroups") or []
    if not groups:
        return ABSENT
    group = groups[0]
    tags = {tag["Key"]: tag["Value"] for tag in group.get("Tags", ())}
    ours = tags.get(TAG) == cluster
    states = {
        "pending": State.CREATING, "available": State.READY, "deleting": State.DELETING,
        "deleted": State.ABSENT,
    }  # fmt: skip
    state = states.get(str(group.get("State")))
    if state is None:
        return unknown(f"a state that is not known: {group.get('State')}")
    drifts: tuple[Drift, ...] = ()
    if group.get("Strategy") != "cluster":
        drifts = (Drift(f"its strategy is {group.get('Strategy')}, and `cluster` is wanted"),)
    return Seen(state, str(group.get("State")), ours, drifts=drifts)
