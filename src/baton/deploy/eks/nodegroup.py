"""The GPU nodes, one managed node group for each phase, as eksctl takes them.

- One zone: EFA does not leave its subnet, and two zones could not be in one placement group.
- One placement group for both phases, made before the node groups: left to itself, eksctl makes one
  for each node group, and prefill's nodes may end up far from decode's.
- Managed node groups: their interfaces are in the cluster's own security group, which lets EFA
  traffic in and out of itself (EKS user guide, "View Amazon EKS security group requirements"). With
  self-managed groups eksctl makes a security group for each, and EFA from one to the other is
  dropped in silence.
- The EFA device plugin exactly once: see `efa_plugin_by`.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Literal

from baton.deploy.eks.cluster import TAG, metadata, tags

if TYPE_CHECKING:
    from baton.deploy.eks.config import EksSettings
    from baton.deploy.eks.layout import Group, Layout

# Labels that the kubelet and AWS set themselves; a node group cannot be given them.
_SET_BY_OTHERS = ("kubernetes.io", "k8s.io", "eks.amazonaws.com", "amazonaws.com")
# Where the plugin that eksctl installs is known to run: the node affinity of its manifest
# (eksctl pkg/addons/assets/efa-device-plugin.yaml). Newer eksctl may name more.
EKSCTL_EFA_TYPES = frozenset(
    {
        "g4dn.8xlarge", "g4dn.12xlarge", "g5.48xlarge", "g6.8xlarge", "g6.12xlarge",
        "g6.16xlarge", "g6.24xlarge", "g6.48xlarge", "p3dn.24xlarge", "p4d.24xlarge",
        "p4de.24xlarge",
    }
)  # fmt: skip
GPU_TAINT = "nvidia.com/gpu"


def efa_plugin_by(settings: EksSettings) -> Literal["eksctl", "helm"]:
    """Who runs the EFA device plugin on the GPU nodes; the other one must not.

    eksctl installs a plugin whenever a node group has `efaEnabled`, and has no flag against it.
    That plugin tolerates the taint `aws.amazon.com/efa` and no other. So on nodes with the taint
    `nvidia.com/gpu` it cannot run, and the chart, which is given that toleration, is the one
    plugin; on all other nodes eksctl's is, and no chart is installed.
    """
    return "helm" if settings.gpu_taint == GPU_TAINT else "eksctl"


def node_groups(layout: Layout) -> dict[str, Any]:
    """`eksctl create nodegroup -f nodegroups.yaml --install-nvidia-plugin=false`."""
    return {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": metadata(layout.settings),
        "managedNodeGroups": [_group(group, layout) for group in layout.groups],
    }


def node_labels(group: Group) -> dict[str, str]:
    """What the nodes of a phase are given: its selector, as far as others do not set it."""
    own = {
        key: value
        for key, value in group.selector.items()
        if not key.rpartition("/")[0].endswith(_SET_BY_OTHERS)
    }
    return {"role": "gpu-worker", "baton.dev/phase": group.role, **own}


def _group(group: Group, layout: Layout) -> dict[str, Any]:
    settings = layout.settings
    config: dict[str, Any] = {
        "name": group.role,
        "instanceType": group.instance.name,
        "amiFamily": "AmazonLinux2023",
        "desiredCapacity": group.nodes,
        "minSize": group.nodes,
        "maxSize": group.nodes,
        "availabilityZones": [settings.zone],
        "privateNetworking": True,
        "volumeSize": settings.node_volume_gib,
        "volumeType": "gp3",
        "labels": node_labels(group),
        "tags": tags(settings),
    }
    if layout.efa:
        config["efaEnabled"] = True
        config["placement"] = {"groupName": settings.placement_group_name}
    if settings.gpu_taint != "none":
        config["taints"] = [{"key": settings.gpu_taint, "value": "present", "effect": "NoSchedule"}]
    if settings.capacity_reservation_id is not None:
        config["capacityReservation"] = {
            "capacityReservationTarget": {"capacityReservationID": settings.capacity_reservation_id}
        }
        if settings.capacity_block:
            config["instanceMarketOptions"] = {"marketType": "capacity-block"}
    return config


HEAD = """\
The GPU nodes. Made with
  {placement_group}
  eksctl create nodegroup -f nodegroups.yaml --install-nvidia-plugin=false
(the NVIDIA device plugin comes from its chart, once; the EFA device plugin from {efa_plugin})."""


def head(layout: Layout) -> str:
    """What the file says of itself."""
    settings = layout.settings
    whose = efa_plugin_by(settings) if layout.efa else "nowhere: KV does not go over EFA"
    first = placement_group_command(settings) if layout.efa else "(no placement group)"
    return HEAD.format(placement_group=first, efa_plugin=whose)


def placement_group_argv(settings: EksSettings) -> tuple[str, ...]:
    """How the placement group of both phases is made, with the tag by which it is known."""
    tag = f"{{Key={TAG},Value={settings.cluster_name}}}"
    line = f"aws ec2 create-placement-group --strategy cluster --region {settings.region}"
    return (
        *line.split(),
        "--group-name",
        settings.placement_group_name,
        "--tag-specifications",
        f"ResourceType=placement-group,Tags=[{tag}]",
    )


def placement_group_command(settings: EksSettings) -> str:
    """The same as a line."""
    return shlex.join(placement_group_argv(settings))
