"""Whether the nodes can be had: quotas, zones, subnets, EFA, reservations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.deploy.eks.instances import find_instance, table_source
from baton.deploy.eks.live.checks import Verdict, check, need
from baton.deploy.eks.live.facts import QUOTA_NAMES, Unknown, quota_of

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.facts import Facts


def wanted_vcpus(layout: Layout, facts: Facts) -> dict[str, int] | None:
    """What the layout takes of each quota, in vCPUs; None when a type's are not known."""
    settings = layout.settings
    nodes = [(settings.system_instance_type, settings.system_node_count)]
    if not settings.capacity_block:
        nodes += [(group.instance.name, group.nodes) for group in layout.groups]
    found: dict[str, int] = {}
    for name, count in nodes:
        code, instance = quota_of(name), find_instance(name)
        vcpus = instance.vcpus if instance is not None else None
        if not isinstance(facts.types, Unknown) and name in facts.types.value:
            vcpus = facts.types.value[name].vcpus
        if code is None or vcpus is None:
            return None
        found[code] = found.get(code, 0) + vcpus * count
    return found


@check("EKS-104", "a quota that the nodes do not fit into")
def quotas(layout: Layout, facts: Facts) -> Verdict:
    """The vCPUs of all nodes, and those that run already, fit into the account's quotas.

    New accounts often have 0 for G and P instances; raising a quota takes hours to days. Two
    g6.8xlarge are 64 vCPUs. What runs on this cluster already is not counted twice. Capacity
    Blocks have quotas of their own.

    Source: Service Quotas of `ec2`; EC2 `DescribeInstances`.
    """
    wanted = wanted_vcpus(layout, facts)
    if wanted is None:
        return Verdict("unknown", "the vCPUs or the quota of an instance type are not known")
    short, said, unknown = [], [], []
    for code, vcpus in wanted.items():
        fact = facts.quotas.get(code, Unknown("not asked"))
        if isinstance(fact, Unknown):
            unknown.append(f"{code}: {fact.why}")
            continue
        limit = fact.value
        running = 0
        if isinstance(facts.running_vcpus, Unknown):
            unknown.append(f"what runs already: {facts.running_vcpus.why}")
        else:
            running = facts.running_vcpus.value.get(code, 0)
        text = f"{vcpus} vCPUs wanted, {running} run, {limit:g} allowed ({code})"
        if vcpus + running > limit:
            short.append((f"{QUOTA_NAMES.get(code, code)}: {text}", code, vcpus + running))
        else:
            said.append(text)
    if short:
        region = layout.settings.region
        cures = [
            f"aws service-quotas request-service-quota-increase --service-code ec2"
            f" --quota-code {code} --desired-value {value} --region {region}"
            for _, code, value in short
        ]
        return Verdict("fail", "; ".join(s[0] for s in short), "; ".join(cures))
    if unknown:
        return Verdict("unknown", "; ".join(dict.fromkeys(unknown)))
    return Verdict("pass", "; ".join(said))


@check("EKS-105", "an instance type that the zone does not offer")
def offered(layout: Layout, facts: Facts) -> Verdict:
    """The GPU types are offered in the GPU zone, the CPU type in one of the cluster's zones.

    Source: EC2 `DescribeInstanceTypeOfferings` by availability zone.
    """
    zones = need(facts.offered)
    settings = layout.settings
    for group in layout.groups:
        there = zones.get(group.instance.name, frozenset())
        if settings.zone not in there:
            listed = ", ".join(sorted(there)) or f"no zone of {settings.region}"
            return Verdict(
                "fail", f"{settings.zone} does not offer {group.instance.name}; {listed} does",
                f"set gpu_az to one of {listed}" if there else "take another region or type",
            )  # fmt: skip
    system = settings.system_instance_type
    there = zones.get(system, frozenset())
    if not there.intersection(settings.zones):
        return Verdict(
            "fail", f"none of {', '.join(settings.zones)} offers {system}",
            "set system_instance_type to another type",
        )  # fmt: skip
    names = sorted({group.instance.name for group in layout.groups})
    return Verdict("pass", f"{settings.zone} offers {', '.join(names)}")


@check("EKS-106", "a cluster without a subnet in the GPU zone")
def subnets(layout: Layout, facts: Facts) -> Verdict:
    """The cluster has, or will have, a subnet in the zone of the GPU nodes.

    EKS takes new subnets only in the zones that a cluster was made with.

    Source: EKS `DescribeCluster`, EC2 `DescribeSubnets`.
    """
    there = need(facts.cluster)
    zone = layout.settings.zone
    if there is None:
        return Verdict("pass", f"subnets will be made in {', '.join(layout.settings.zones)}")
    if zone not in there.zones:
        listed = ", ".join(sorted(there.zones)) or "none that could be seen"
        return Verdict(
            "fail", f"{layout.settings.cluster_name} has subnets in {listed}, and not in {zone}",
            "set gpu_az to one of them, or take another cluster",
        )  # fmt: skip
    return Verdict("pass", f"the cluster has a subnet in {zone}")


@check("EKS-107", "figures of an instance type that EC2 does not confirm")
def figures(layout: Layout, facts: Facts) -> Verdict:
    """GPUs, their memory and EFA interfaces are what the table says that the files were made from.

    Source: EC2 `DescribeInstanceTypes`: `GpuInfo`, `NetworkInfo.EfaInfo.MaximumEfaInterfaces`.
    """
    types = need(facts.types)
    wrong = []
    for group in layout.groups:
        ours, theirs = group.instance, types.get(group.instance.name)
        if theirs is None:
            return Verdict("unknown", f"EC2 did not describe {ours.name}")
        pairs = {
            "GPUs": (ours.gpus, theirs.gpus),
            "MiB of a GPU": (ours.gpu_memory_mib, theirs.gpu_memory_mib),
            "EFA interfaces": (ours.efa_interfaces, theirs.efa_interfaces),
        }
        wrong += [f"{ours.name} {w}: {a} here, {b} by EC2" for w, (a, b) in pairs.items() if a != b]
    if wrong:
        cure = f"the table is {table_source()}: make it anew with tools/generate_instance_table.py"
        return Verdict("fail", "; ".join(dict.fromkeys(wrong)), cure)
    names = sorted({f"{g.instance.name}: EFA {g.instance.efa_interfaces}" for g in layout.groups})
    return Verdict("pass", ", ".join(names))


@check("EKS-108", "GPU nodes in two zones")
def one_zone(layout: Layout, facts: Facts) -> Verdict:
    """With EFA all GPU nodes, those that are there and those to come, stand in one zone.

    EFA's traffic does not leave a subnet, and a cluster placement group is in one zone.

    Source: EC2 user guide, "Elastic Fabric Adapter limitations".
    """
    there = need(facts.group_zones)
    zones = sorted({*there, layout.settings.zone})
    if layout.efa and len(zones) > 1:
        return Verdict(
            "fail", f"GPU nodes would stand in {' and '.join(zones)}, and EFA does not cross",
            f"set gpu_az: {min(there)}, or delete the node groups first",
        )  # fmt: skip
    return Verdict("pass", f"all in {zones[0]}" if len(zones) == 1 else "no EFA between them")


@check("EKS-113", "a capacity reservation that does not fit")
def reservation(layout: Layout, facts: Facts) -> Verdict:
    """A reservation that is named is active, of the type and in the zone, with enough left.

    Source: EC2 `DescribeCapacityReservations`.
    """
    name = layout.settings.capacity_reservation_id
    if name is None:
        return Verdict("pass", "none is used")
    found = need(facts.reservation)
    if found is None:
        return Verdict("fail", f"there is no {name} in {layout.settings.region}", "look at its id")
    wanted = sum(group.nodes for group in layout.groups)
    types = {group.instance.name for group in layout.groups}
    wrong = []
    if found.state != "active":
        wrong.append(f"it is {found.state}")
    if types != {found.instance_type}:
        wrong.append(f"it is for {found.instance_type}, and {', '.join(sorted(types))} is wanted")
    if found.zone != layout.settings.zone:
        wrong.append(f"it is in {found.zone}, and the nodes in {layout.settings.zone}")
    if found.free < wanted:
        wrong.append(f"{found.free} instances are left in it, and {wanted} wanted")
    if wrong:
        return Verdict("fail", f"{name}: {'; '.join(wrong)}", "name another, or change the nodes")
    return Verdict("pass", f"{name}: {found.free} of {found.instance_type} left")
