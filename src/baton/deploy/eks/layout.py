"""The file and the settings put together: which nodes, which workers, how much of each.

A worker is one pod with all GPUs of one replica, so that Ray cannot spread a replica over machines.
Each phase has a node group and a worker group of its own. Whatever cannot come up is refused here,
with every fault in one run; nothing is asked of AWS or of this machine.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from baton.deploy.eks.config import AWS_RAY_LLM_IMAGE
from baton.deploy.eks.fits import group_faults, overall_faults
from baton.deploy.eks.instances import find_instance
from baton.deploy.eks.placement import adjustments, phase_resource, serve_config
from baton.serve.deployment_options import DRAIN_MARGIN_S
from baton.spec.check import refusal
from baton.spec.faults import Fault, Path
from baton.spec.view import AppView

if TYPE_CHECKING:
    from baton.deploy.eks.config import EksSettings
    from baton.deploy.eks.instances import Instance
    from baton.deploy.eks.origins import Resolved
    from baton.spec.checked import CheckedApp, CheckedFile
    from baton.spec.schema import Role
    from baton.spec.view import RoleView

# What a node keeps for itself. Memory: 7 % that the hypervisor and the kernel take of the type's
# figure, and 4 GiB for the kubelet, its eviction threshold and the daemons. Estimates on the safe
# side; a node that offers less leaves the pod Pending with the reason.
NODE_KEEPS_SHARE = 0.07
NODE_KEEPS_MIB = 4096
NODE_KEEPS_CPUS = 2
# The EFA driver sets 5,128 pages of 2 MiB aside, whether anybody asks for them or not
# (EKS user guide, "Run machine learning training on Amazon EKS with EFA").
NODE_HUGEPAGES_MIB = 5128 * 2
LARGEST_SHM_MIB = 64 * 1024
# Beyond a worker's drain: Serve's own shutdown, and the kubelet.
GRACE_MARGIN_S = 30


@dataclass(frozen=True)
class Group:
    """The nodes and the workers of one phase. Memory in MiB."""

    role: Role
    instance: Instance
    nodes: int
    nodes_needed: int
    workers: int
    """Worker pods, one for each replica."""
    gpus: int
    """Of one worker."""
    efa: int
    """EFA interfaces of one worker."""
    cpus: int
    memory_mib: int
    shm_mib: int
    hugepages_mib: int
    selector: dict[str, str]
    """Labels of the nodes."""

    @property
    def resource(self) -> str:
        """The custom Ray resource that these workers offer."""
        return phase_resource(self.role)


@dataclass(frozen=True)
class Layout:
    """Everything that the files are made of."""

    settings: EksSettings
    name: str
    app: CheckedApp
    groups: tuple[Group, Group]
    serve_config: dict[str, Any]
    image: str
    efa: bool
    """Whether KV goes over EFA: FI_PROVIDER, devices and huge pages."""
    grace_s: int
    """Seconds between a pod's order to stop and its end."""
    deletion_delay_s: int
    idle_timeout_s: int
    notes: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    """On every object, and on the pods: how policies find them."""

    def group(self, role: Role) -> Group:
        """The group of one phase."""
        return self.groups[0] if role == "prefill" else self.groups[1]

    @property
    def plain(self) -> bool:
        """Whether no operator runs Ray."""
        return self.settings.flavor == "plain"


def layout_of(checked: CheckedFile, found: Resolved) -> Layout:
    """The layout of a file.

    Raises:
        ConfigRefused: with everything that cannot come up.
    """
    settings = found.settings
    index = _the_application(checked)
    app = checked.applications[index]
    path: Path = ("applications", index)
    view = AppView({"import_path": app.import_path}, path, app.args, (*path, "args"))
    efa_wanted = all(role.uses_nixl and "LIBFABRIC" in role.backends for role in view.roles)
    sized = [_group(role, view, settings, efa=efa_wanted) for role in view.roles]
    efa = efa_wanted and all(group is None or group.efa > 0 for group in sized)
    faults = [fault for role in view.roles for fault in group_faults(role, view, found, checked)]
    groups = [group for group in sized if group is not None]
    faults += overall_faults(view, groups, found, checked)
    if faults or len(groups) != len(view.roles):
        raise refusal(tuple(faults))
    prefill, decode = groups
    spare = settings.gpu_node_count - prefill.nodes - decode.nodes
    decode = replace(decode, nodes=decode.nodes + spare)
    name = settings.service_name or service_name(app.name)
    grace_s = _grace_s(view)
    return Layout(
        settings=settings,
        name=name,
        app=app,
        groups=(prefill, decode),
        serve_config=serve_config(checked, index),
        image=settings.image or AWS_RAY_LLM_IMAGE,
        efa=efa,
        grace_s=grace_s,
        # An old Ray cluster goes on with its streams for so long after requests go to the new one.
        deletion_delay_s=max(grace_s, math.ceil(app.baton.recovery.request_timeout_s)),
        # An answer that is not streamed is silent until it is done. 4,000 is the ALB's limit.
        idle_timeout_s=min(math.ceil(app.baton.recovery.request_timeout_s) + 30, 4000),
        notes=tuple(_notes(checked, settings, found, view, efa=efa, groups=groups)),
        labels={"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "baton"},
    )


def service_name(app_name: str) -> str:
    """An application's name as a Kubernetes name."""
    return re.sub(r"[^a-z0-9-]+", "-", app_name.lower()).strip("-") or "baton"


def _the_application(checked: CheckedFile) -> int:
    """Which application has the phases; there must be exactly one."""
    known = [index for index, app in enumerate(checked.applications) if app.has_rules]
    if len(known) == 1:
        return known[0]
    place = checked.source.place(("applications",) if not known else ("applications", known[1]))
    raise refusal(
        (
            Fault(
                "EKS-010",
                "error",
                f"the file has {len(known)} applications with prefill and decode",
                place.file,
                place.line,
                place.column,
                "applications",
                allowed="one: a RayService has one worker group for each phase",
                cure="put each into a file, a namespace and a RayService of its own",
            ),
        )
    )


def _group(role: RoleView, app: AppView, settings: EksSettings, *, efa: bool) -> Group | None:
    """The group of a role; None when its instance cannot hold one worker."""
    instance = find_instance(settings.instance_type(role.role))
    gpus = math.ceil(role.gpus)
    if instance is None or not gpus or instance.gpus < gpus:
        return None
    a_node = instance.gpus // gpus
    needed = math.ceil(role.num_replicas / a_node)
    interfaces = instance.efa_interfaces // a_node if efa else 0
    free_mib = instance.memory_mib * (1 - NODE_KEEPS_SHARE) - NODE_KEEPS_MIB
    if instance.efa_interfaces and efa:
        free_mib -= NODE_HUGEPAGES_MIB
    memory_mib = int(free_mib / a_node / 1024) * 1024
    own = app.baton.placement.of(role.role)
    return Group(
        role=role.role,
        instance=instance,
        nodes=needed,
        nodes_needed=needed,
        workers=role.num_replicas,
        gpus=gpus,
        efa=interfaces,
        cpus=max((instance.vcpus - NODE_KEEPS_CPUS) // a_node, 1),
        memory_mib=memory_mib,
        shm_mib=min(LARGEST_SHM_MIB, memory_mib // 4 // 1024 * 1024),
        hugepages_mib=_hugepages(settings, a_node) if interfaces else 0,
        selector=dict(own) or {"role": "gpu-worker", "baton.dev/phase": role.role},
    )


def _hugepages(settings: EksSettings, workers: int) -> int:
    return min(settings.hugepages_mib, NODE_HUGEPAGES_MIB // workers // 2 * 2)


def _grace_s(app: AppView) -> int:
    """A worker's time to stop: Baton's drain, or the user's own if that is longer."""
    drain_s = app.baton.engines.drain_timeout_s + DRAIN_MARGIN_S
    asked = [role.deployment.get("graceful_shutdown_timeout_s") for role in app.roles]
    asked_s = max((float(s) for s in asked if isinstance(s, (int, float))), default=0.0)
    return math.ceil(max(drain_s, asked_s)) + GRACE_MARGIN_S


def _notes(
    checked: CheckedFile,
    settings: EksSettings,
    found: Resolved,
    app: AppView,
    *,
    efa: bool,
    groups: list[Group],
) -> list[str]:
    """What is worth knowing and stops nothing."""
    notes = adjustments(checked)
    if found.origins["gpu_az"].kind == "default":
        notes.append(
            f"gpu_az is not set: {settings.zone} is a guess. Which zones have the type:"
            f" aws ec2 describe-instance-type-offerings --location-type availability-zone"
            f" --region {settings.region}"
            f" --filters Name=instance-type,Values={settings.gpu_instance_type}"
        )
    if settings.checkpoint_gib is None:
        notes.append(
            "checkpoint_gib is not set: whether the workers' memory limit is above the checkpoint"
            " is unknown"
        )
    if not efa and any(group.instance.efa_interfaces for group in groups):
        notes.append(
            "the nodes have EFA and the file does not use it: it wants backends: [LIBFABRIC]"
            " in both roles"
        )
    if settings.ingress != "none" and settings.ingress_certificate_arn is None:
        notes.append("the ALB has no certificate: keys and prompts cross the network unencrypted")
    spare = settings.gpu_node_count - sum(group.nodes_needed for group in groups)
    if spare:
        notes.append(f"{spare} GPU nodes more than the replicas need: they stand by, and cost")
    for role in app.roles:
        if "autoscaling_config" in role.deployment:
            notes.append(
                f"{role.role} has nodes for its {role.num_replicas} replicas at most: nodes are not"
                " scaled, replicas are"
            )
    if app.is_rays:
        notes.append("Ray's own builder runs the file: Baton's gateway is not part of it")
    return notes
