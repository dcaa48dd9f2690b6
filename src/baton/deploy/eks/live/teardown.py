"""The way down, in reverse order.

What is gone is fine, what cannot be seen ends the run, what does not carry our tag is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.decide import Action, down
from baton.deploy.eks.live.eyes_kube import Unseen
from baton.deploy.eks.live.states import State
from baton.deploy.eks.live.walk import Pace, Watch, settle
from baton.errors import DeployFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from baton.deploy.eks.live.commands import Runner
    from baton.deploy.eks.live.observe import Eyes
    from baton.deploy.eks.live.parts import Part, Step
    from baton.deploy.eks.live.states import Seen


@dataclass(frozen=True)
class Left:
    """What was not deleted, and why."""

    what: str
    why: str


def delete(parts: Iterable[Part], eyes: Eyes, runner: Runner, pace: Pace) -> list[Left]:
    """Brings all parts to absent, the last first.

    Returns:
        What was left because it is not ours.

    Raises:
        DeployFailed: at what cannot be seen, cannot be deleted, or is used by somebody else.
    """
    left: list[Left] = []
    listed = list(reversed(list(parts)))
    if _foreign_cluster(listed, eyes, left):
        listed = [part for part in listed if part.step != "cluster"]
    asked: set[Step] = set()
    for part in listed:
        if part.step not in asked:
            asked.add(part.step)
            _guard(part.step, eyes, {each.step for each in listed})
        why = _remove(part, eyes, runner, pace)
        if why:
            pace.say(f"{part.name}: left, {why}")
            left.append(Left(part.title, why))
    return left


def _foreign_cluster(listed: list[Part], eyes: Eyes, left: list[Left]) -> bool:
    for part in listed:
        if part.kind != "cluster":
            continue
        seen = eyes.see(part)
        if seen.state is State.UNKNOWN:
            raise _stop(part.name, f"it cannot be seen: {seen.detail}")
        if seen.state is not State.ABSENT and seen.ours is not True:
            left.append(Left(part.title, "the cluster does not carry Baton's tag"))
            return True
    return False


def _guard(step: Step, eyes: Eyes, steps: set[Step]) -> None:
    """Nobody else's engines may stand on what goes away, and our own go first."""
    if step == "app":
        return
    try:
        others = eyes.other_services()
        ours = [] if "app" in steps else [pod.name for pod in eyes.running_pods()]
        groups = eyes.foreign_groups() if step == "cluster" else []
    except (Unseen, AwsFailed) as exc:
        raise _stop(step, f"who uses it cannot be seen: {exc}") from exc
    if others:
        raise _stop(step, f"other services use it: {', '.join(others)}", "delete those first")
    if ours:
        raise _stop(step, f"the service still runs on it ({len(ours)} pods)", "`--step app` first")
    if groups:
        raise _stop(
            step, f"node groups that do not carry Baton's tag: {', '.join(groups)}",
            "delete those yourself first",
        )  # fmt: skip


def _remove(part: Part, eyes: Eyes, runner: Runner, pace: Pace) -> str:
    """Deletes one part; returns why it was left, or nothing."""
    if not part.delete:
        return ""
    watch = Watch(part, eyes, pace)

    def decide(part: Part, seen: Seen) -> Action:
        action = down(part, seen)
        kept = _of_others(part, eyes) if action.kind == "delete" else []
        return Action("leave", f"other things are in it: {', '.join(kept[:5])}") if kept else action

    def act(action: Action) -> None:
        for each in action.commands:
            pace.say(f"{part.name}: {each.text}")
            done = runner.change(each, watch.look)
            if done.code != 0:
                # What it was about may be gone all the same: the next look decides.
                pace.say(f"{part.name}: {done.reason}")
                return

    ended, acted = settle(watch, decide, act)
    if ended.kind == "stop":
        raise _stop(part.name, ended.reason, ended.cure)
    if ended.kind == "leave":
        return ended.reason
    pace.say(f"{part.name}: {'gone' if acted else 'not there'}")
    return ""


def _of_others(part: Part, eyes: Eyes) -> list[str]:
    if part.kind != "namespace":
        return []
    try:
        return eyes.foreign_in_namespace()
    except Unseen as exc:
        raise _stop(part.name, f"what is in it cannot be seen: {exc}") from exc


def _stop(name: str, reason: str, cure: str | None = None) -> DeployFailed:
    return DeployFailed(
        f"{name}: {reason}", cure=cure or "nothing was deleted that could not be seen; run it again"
    )


def leftovers(eyes: Eyes) -> list[str]:
    """What may still cost money, as far as it can be seen; what cannot be is said as well."""
    name, region = eyes.cluster_name, eyes.layout.settings.region
    found: list[str] = []
    owned = [{"Name": f"tag:kubernetes.io/cluster/{name}", "Values": ["owned"]}]
    by_eksctl = [{"Name": "tag:alpha.eksctl.io/cluster-name", "Values": [name]}]
    looks: tuple[tuple[str, str, dict[str, Any], str, str, Callable[[Any], str]], ...] = (
        ("ec2", "describe_volumes", {"Filters": owned}, "Volumes", "EBS volumes",
         lambda v: f"{v['VolumeId']} ({v.get('Size')} GiB)"),
        ("ec2", "describe_instances", {"Filters": owned}, "Reservations", "instances", _instances),
        ("ec2", "describe_nat_gateways", {"Filters": by_eksctl}, "NatGateways", "NAT gateways",
         lambda g: g["NatGatewayId"] if g.get("State") != "deleted" else ""),
        ("ec2", "describe_addresses", {"Filters": by_eksctl}, "Addresses", "elastic IPs",
         lambda a: str(a.get("PublicIp"))),
    )  # fmt: skip
    for service, operation, arguments, key, label, text in looks:
        try:
            things = [text(t) for t in eyes.aws.call(service, operation, **arguments)[key]]
        except AwsFailed as exc:
            found.append(f"{label}: could not be seen ({exc.code})")
            continue
        named = [t for t in things if t]
        if named:
            found.append(f"{label}: {', '.join(named)}")
    reservation = eyes.layout.settings.capacity_reservation_id
    if reservation is not None:
        found.append(f"capacity reservation {reservation}: costs until it is cancelled or ends")
    found.append(
        "not looked at: load balancers made by hand, container images in ECR, CloudWatch logs, S3,"
        f" snapshots. All that carries the tag: aws resourcegroupstaggingapi get-resources --region"
        f" {region} --tag-filters Key=baton.dev/cluster,Values={name}"
    )
    return found


def _instances(reservation: dict[str, Any]) -> str:
    gone = ("terminated", "shutting-down")
    return ", ".join(
        f"{i['InstanceId']} ({i.get('InstanceType')})"
        for i in reservation.get("Instances") or ()
        if (i.get("State") or {}).get("Name") not in gone
    )
