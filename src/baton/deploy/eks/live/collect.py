"""Gathers the facts: boto3 for AWS, versions of the tools. Nothing is changed, nothing judged."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from baton.deploy.eks.cluster import TAG
from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.commands import MISSING
from baton.deploy.eks.live.eyes_kube import Unseen
from baton.deploy.eks.live.facts import (
    ClusterFacts,
    Fact,
    Facts,
    Known,
    ReservationFacts,
    TypeFigures,
    Unknown,
    quota_of,
)
from baton.deploy.eks.live.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.aws import Aws
    from baton.deploy.eks.live.commands import Runner
    from baton.deploy.eks.live.observe import Eyes
    from baton.deploy.eks.live.parts import Part

T = TypeVar("T")
TOOLS: dict[str, tuple[str, ...]] = {
    "aws": ("aws", "--version"),
    "kubectl": ("kubectl", "version", "--client"),
    "eksctl": ("eksctl", "version"),
    "helm": ("helm", "version", "--template", "{{.Version}}"),
}
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_RUNNING = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]


def collect(eyes: Eyes, parts: Iterable[Part], env: Mapping[str, str]) -> Facts:
    """All facts of one layout."""
    layout, aws = eyes.layout, eyes.aws
    types = types_of(layout)
    codes = {code for name in types if (code := quota_of(name)) is not None}
    return Facts(
        account=_asked(lambda: _account(aws)),
        tools={name: tool_version(eyes.runner, argv) for name, argv in TOOLS.items()},
        versions=_asked(lambda: _versions(aws)),
        quotas={code: _asked(lambda code=code: _quota(aws, code)) for code in sorted(codes)},  # type: ignore[misc]
        running_vcpus=_asked(lambda: _running(aws, layout.settings.cluster_name)),
        offered=_asked(lambda: _offered(aws, types)),
        types=_asked(lambda: _types(aws, types)),
        cluster=_asked(lambda: _cluster(eyes)),
        group_zones=_asked(lambda: _group_zones(eyes)),
        reservation=_asked(lambda: _reservation(aws, layout)),
        secret=_secret(eyes, parts),
        environment=frozenset(name for name, value in env.items() if value),
    )


def types_of(layout: Layout) -> list[str]:
    """Instance types of a layout."""
    gpus = {group.instance.name for group in layout.groups}
    return sorted({layout.settings.system_instance_type, *gpus})


def _asked(question: Callable[[], T]) -> Fact[T]:
    try:
        return Known(question())
    except (AwsFailed, Unseen) as exc:
        return Unknown(str(exc))
    except (KeyError, TypeError, ValueError) as exc:
        return Unknown(f"an answer in a form that is not known: {exc!r}")


def tool_version(runner: Runner, argv: tuple[str, ...]) -> Fact[tuple[int, ...] | None]:
    """The version that a tool says it has; None when it is not installed."""
    done = runner.read(argv)
    if done.code == MISSING:
        return Known(None)
    found = _VERSION.search(done.out) if done.code == 0 else None
    if found is None:
        return Unknown(f"{' '.join(argv)}: {done.reason}")
    return Known(tuple(int(part or 0) for part in found.groups()))


def _account(aws: Aws) -> str:
    answer = aws.call("sts", "get_caller_identity")
    return f"{answer['Account']} as {answer['Arn']}"


def _versions(aws: Aws) -> dict[str, str]:
    listed = aws.call("eks", "describe_cluster_versions", includeAll=True)["clusterVersions"]
    return {
        v["clusterVersion"]: str(v.get("versionStatus") or v.get("status") or "?").upper()
        for v in listed
    }


def _quota(aws: Aws, code: str) -> float:
    arguments = {"ServiceCode": "ec2", "QuotaCode": code}
    try:
        answer = aws.call("service-quotas", "get_service_quota", **arguments)
    except AwsFailed as exc:
        if not exc.absent:
            raise
        # No value of its own: AWS' default holds.
        answer = aws.call("service-quotas", "get_aws_default_service_quota", **arguments)
    return float(answer["Quota"]["Value"])


def _running(aws: Aws, cluster: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for reservation in aws.call("ec2", "describe_instances", Filters=_RUNNING)["Reservations"]:
        for instance in reservation["Instances"]:
            tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
            code = quota_of(instance["InstanceType"])
            on_demand = not instance.get("InstanceLifecycle")
            if code is None or tags.get("eks:cluster-name") == cluster or not on_demand:
                continue
            options = instance["CpuOptions"]
            vcpus = int(options["CoreCount"]) * int(options["ThreadsPerCore"])
            found[code] = found.get(code, 0) + vcpus
    return found


def _offered(aws: Aws, types: list[str]) -> dict[str, frozenset[str]]:
    answer = aws.call(
        "ec2", "describe_instance_type_offerings", LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": types}],
    )  # fmt: skip
    zones: dict[str, set[str]] = {name: set() for name in types}
    for offering in answer["InstanceTypeOfferings"]:
        zones.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return {name: frozenset(found) for name, found in zones.items()}


def _types(aws: Aws, types: list[str]) -> dict[str, TypeFigures]:
    answer = aws.call("ec2", "describe_instance_types", InstanceTypes=types)
    found = {}
    for entry in answer["InstanceTypes"]:
        gpus = (entry.get("GpuInfo") or {}).get("Gpus") or []
        efa = (entry.get("NetworkInfo") or {}).get("EfaInfo") or {}
        found[entry["InstanceType"]] = TypeFigures(
            vcpus=int(entry["VCpuInfo"]["DefaultVCpus"]),
            gpus=sum(int(gpu["Count"]) for gpu in gpus),
            gpu_memory_mib=int(gpus[0]["MemoryInfo"]["SizeInMiB"]) if gpus else 0,
            efa_interfaces=int(efa.get("MaximumEfaInterfaces") or 0),
        )
    return found


def _zones(aws: Aws, subnets: list[str]) -> frozenset[str]:
    if not subnets:
        return frozenset()
    answer = aws.call("ec2", "describe_subnets", SubnetIds=subnets)
    return frozenset(subnet["AvailabilityZone"] for subnet in answer["Subnets"])


def _cluster(eyes: Eyes) -> ClusterFacts | None:
    cluster = eyes.cluster()
    if cluster is None:
        return None
    subnets = list((cluster.get("resourcesVpcConfig") or {}).get("subnetIds") or ())
    ours = (cluster.get("tags") or {}).get(TAG) == eyes.cluster_name
    return ClusterFacts(str(cluster["version"]), _zones(eyes.aws, subnets), ours)


def _group_zones(eyes: Eyes) -> frozenset[str]:
    found: set[str] = set()
    for group in eyes.layout.groups:
        there = eyes.node_group(group.role)
        if there is not None:
            found |= _zones(eyes.aws, list(there.get("subnets") or ()))
    return frozenset(found)


def _reservation(aws: Aws, layout: Layout) -> ReservationFacts | None:
    wanted = layout.settings.capacity_reservation_id
    if wanted is None:
        return None
    try:
        answer = aws.call("ec2", "describe_capacity_reservations", CapacityReservationIds=[wanted])
    except AwsFailed as exc:
        if exc.absent:
            return None
        raise
    found = answer["CapacityReservations"][0]
    return ReservationFacts(
        found["State"], found["InstanceType"], found["AvailabilityZone"],
        int(found["AvailableInstanceCount"]),
    )  # fmt: skip


def _secret(eyes: Eyes, parts: Iterable[Part]) -> Fact[bool]:
    for part in parts:
        if part.kind == "secret":
            seen = eyes.see(part)
            if seen.state is State.UNKNOWN:
                return Unknown(seen.detail)
            return Known(seen.state is State.READY)
    return Known(False)
