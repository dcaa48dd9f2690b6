"""Whether what the file asks for can come up on what the settings name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from baton.deploy.eks.instances import find_instance, gpu_types, table_source
from baton.deploy.eks.nodegroup import EKSCTL_EFA_TYPES, efa_plugin_by
from baton.deploy.eks.ports import colliding
from baton.spec.faults import Fault, Path, shown
from baton.spec.suggest import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.deploy.eks.instances import Instance
    from baton.deploy.eks.layout import Group
    from baton.deploy.eks.origins import Resolved
    from baton.spec.checked import CheckedFile
    from baton.spec.view import AppView, RoleView

# Of a worker beside the checkpoint: Ray's object store, and for each GPU the engine's own processes
# with their CUDA contexts and pinned buffers. Estimates.
OBJECT_STORE_MIB = 4096
EACH_GPU_MIB = 6144
LONGEST_NAME = 41


def _of_file(checked: CheckedFile, rule_id: str, path: Path, message: str, **more: str) -> Fault:
    place = checked.source.place(path)
    key = ".".join(str(part) for part in path[2:]) or "applications"
    return Fault(
        rule_id, "error", message, place.file, place.line, place.column, key,
        more.get("found"), more.get("allowed"), more.get("cure"),
    )  # fmt: skip


def _type_setting(role: RoleView, found: Resolved) -> str:
    own = f"{role.role}_instance_type"
    return own if getattr(found.settings, own) else "gpu_instance_type"


def group_faults(
    role: RoleView, app: AppView, found: Resolved, checked: CheckedFile
) -> Iterator[Fault]:
    """What is wrong with one phase on its instance type."""
    setting = _type_setting(role, found)
    name = found.settings.instance_type(role.role)
    instance = find_instance(name)
    if role.on_cpu or not role.gpus:
        yield _of_file(
            checked,
            "EKS-010",
            role.at("placement_group_config"),
            f"{role.role} asks for no GPU",
            allowed="bundles with GPU, or no placement_group_config",
            cure="remove placement_group_config; `baton up --on cpu` is for this machine",
        )
        return
    if instance is None or not instance.gpus:
        near = nearest(name, gpu_types())
        state = "is not in the table of instance types" if instance is None else "has no GPU"
        yield found.fault(
            "EKS-011",
            (setting,),
            f"{name} {state} ({table_source()})",
            allowed="a type with NVIDIA GPUs, x86-64",
            cure=f"did you mean {near}?" if near else "take g6.8xlarge, or p5.48xlarge",
        )
        return
    yield from _gpu_faults(role, instance, setting, found, checked)
    yield from _selector_faults(role, app, instance, found, checked)
    if instance.gpus >= role.gpus:
        yield from _efa_faults(role, app, instance, setting, found)


def _gpu_faults(
    role: RoleView, instance: Instance, setting: str, found: Resolved, checked: CheckedFile
) -> Iterator[Fault]:
    if math.ceil(role.gpus) > instance.gpus:
        yield found.fault(
            "EKS-011",
            (setting,),
            f"a {role.role} replica takes {math.ceil(role.gpus)} GPUs in one worker, and"
            f" {instance.name} has {instance.gpus}",
            allowed=f"a type with {math.ceil(role.gpus)} GPUs or more",
            cure="take a larger type, or lower tensor_parallel_size",
        )
    kind = role.config.get("accelerator_type")
    if isinstance(kind, str) and not _same_gpu(kind, instance):
        yield _of_file(
            checked,
            "EKS-011",
            role.at("accelerator_type"),
            f"{role.role} wants the GPU {kind}, and {instance.name} has {instance.gpu}",
            found=kind,
            allowed=instance.accelerator_type or instance.gpu,
            cure=f"set accelerator_type: {instance.accelerator_type}, or change {setting}"
            if instance.accelerator_type
            else f"remove accelerator_type, or change {setting}",
        )
    strategy = (role.config.get("placement_group_config") or {}).get("strategy")
    if strategy in ("SPREAD", "STRICT_SPREAD") and role.gpus > 1:
        yield _of_file(
            checked,
            "EKS-011",
            role.at("placement_group_config", "strategy"),
            f"{strategy} would spread a {role.role} replica over machines",
            found=str(strategy),
            allowed="STRICT_PACK: a worker pod has the GPUs of a whole replica",
            cure="remove strategy",
        )


def _selector_faults(
    role: RoleView, app: AppView, instance: Instance, found: Resolved, checked: CheckedFile
) -> Iterator[Fault]:
    """Labels that the nodes have by themselves, with values that they will not have."""
    real = {
        "node.kubernetes.io/instance-type": instance.name,
        "topology.kubernetes.io/zone": found.settings.zone,
        "topology.kubernetes.io/region": found.settings.region,
    }
    name = f"{role.role}_node_selector"
    for key, value in app.baton.placement.of(role.role).items():
        if real.get(key, value) != value:
            yield _of_file(
                checked,
                "EKS-011",
                (*app.baton_path, "placement", name, key),
                f"{role.role}'s nodes will have {key}={real[key]}, and the selector wants {value}",
                found=value,
                allowed=real[key],
                cure=f"write {real[key]}, or change the settings",
            )


def _same_gpu(kind: str, instance: Instance) -> bool:
    # Ray's A100-40G is A100 to EC2.
    return kind.partition("-")[0] == (instance.accelerator_type or instance.gpu)


def _efa_faults(
    role: RoleView, app: AppView, instance: Instance, setting: str, found: Resolved
) -> Iterator[Fault]:
    if "LIBFABRIC" not in role.backends or not role.uses_nixl:
        return  # BTN-191 says so where EFA is required
    workers = instance.gpus // math.ceil(role.gpus)
    if instance.efa_interfaces >= workers:
        if efa_plugin_by(found.settings) == "eksctl" and instance.name not in EKSCTL_EFA_TYPES:
            yield found.fault(
                "EKS-012",
                ("gpu_taint", setting),
                f"eksctl's own EFA device plugin is not known to run on {instance.name}",
                allowed="nvidia.com/gpu: then the plugin comes from its chart, once",
                cure="set gpu_taint: nvidia.com/gpu",
            )
        return
    if app.baton.transport.require != "efa" and not instance.efa_interfaces:
        return  # libfabric goes over TCP, which nothing forbids
    shared = f"{instance.efa_interfaces} for {workers} workers" if workers > 1 else "none"
    yield found.fault(
        "EKS-012",
        (setting,),
        f"{role.role} is to hand KV over by EFA, and {instance.name} has {shared}",
        allowed="an EFA interface for each worker",
        cure="take a type with EFA, such as g6.8xlarge, and one worker on each node",
    )


def overall_faults(
    app: AppView, groups: Sequence[Group], found: Resolved, checked: CheckedFile
) -> Iterator[Fault]:
    """What is wrong with both phases together."""
    settings = found.settings
    needed = sum(group.nodes_needed for group in groups)
    if len(groups) == len(app.roles):
        double = settings.upgrade_strategy == "new-cluster"
        wanted = needed * 2 if double else needed
        if wanted > settings.gpu_node_count:
            parts = ", ".join(f"{g.role} {g.nodes_needed} x {g.instance.name}" for g in groups)
            twice = ", and as many again for upgrade_strategy new-cluster" if double else ""
            yield found.fault(
                "EKS-013",
                ("gpu_node_count",),
                f"the replicas need {needed} GPU nodes ({parts}){twice}",
                allowed=f"{wanted} or more",
                cure=f"set gpu_node_count: {wanted}"
                + (", or upgrade_strategy: none" if double else ""),
            )
    for group in groups:
        yield from _memory_faults(app, group, found)
    for role in app.roles:
        if role.deployment.get("max_surge_percent"):
            yield _of_file(
                checked,
                "EKS-013",
                role.at("deployment_config", "max_surge_percent"),
                f"an update would start the new {role.role} engine before the old one ends, and no"
                " worker is free for it",
                found=str(role.deployment["max_surge_percent"]),
                allowed="0: there are as many workers as replicas",
                cure="remove max_surge_percent",
            )
    if not app.is_rays and settings.image is None:
        yield _of_file(
            checked,
            "EKS-015",
            (*app.path, "import_path"),
            "no public image has Baton in it, and `image` is not set",
            found=app.import_path,
            allowed="image: an image made from deploy/image",
            cure="build deploy/image/Containerfile.gpu and set IMAGE, or take"
            " import_path: ray.serve.llm:build_pd_openai_app",
        )
    yield from _model_faults(app, found, checked)
    if settings.ingress != "none" and (app.is_rays or app.baton.auth.is_unsaid):
        yield found.fault(
            "EKS-017",
            ("ingress",),
            "an ALB before an endpoint that asks nobody for a key",
            allowed="baton.auth with api_keys_env or api_keys_file",
            cure="set baton.auth.api_keys_env (Baton's builder), or ingress: none",
        )
    for message, key in colliding(app.baton.engines):
        yield _of_file(
            checked,
            "EKS-018",
            (*app.baton_path, "engines", key),
            message,
            allowed="ports that nothing else in the pod uses",
            cure="leave baton.engines' ports as they are by default",
        )
    name = checked.applications[app.path[1]].name
    if settings.service_name is None and len(name) > LONGEST_NAME:
        yield _of_file(
            checked,
            "EKS-010",
            (*app.path, "name"),
            f"the application's name is too long for a RayService ({len(name)} characters)",
            found=name,
            allowed=f"{LONGEST_NAME} characters",
            cure="set service_name",
        )


def needed_mib(role: RoleView, group: Group, checkpoint_gib: float) -> int:
    """Memory that a worker needs: page cache for the checkpoint, host buffers, processes."""
    host_kv = 0
    if role.kv.get("kv_buffer_device") == "cpu":
        # vLLM mirrors the KV cache in host memory; at most what the GPUs have.
        host_kv = group.gpus * group.instance.gpu_memory_mib
    offloaded = role.engine.get("cpu_offload_gb")
    if isinstance(offloaded, (int, float)):
        host_kv += int(offloaded * 1024) * group.gpus
    return int(checkpoint_gib * 1024) + host_kv + OBJECT_STORE_MIB + EACH_GPU_MIB * group.gpus


def _memory_faults(app: AppView, group: Group, found: Resolved) -> Iterator[Fault]:
    role = app.prefill if group.role == "prefill" else app.decode
    checkpoint = found.settings.checkpoint_gib
    if checkpoint is None:
        return
    wanted = needed_mib(role, group, checkpoint)
    if wanted <= group.memory_mib:
        return
    yield found.fault(
        "EKS-014",
        (_type_setting(role, found), "checkpoint_gib"),
        f"a {group.role} worker on {group.instance.name} can have {group.memory_mib // 1024} GiB,"
        f" and needs {math.ceil(wanted / 1024)} GiB (checkpoint {checkpoint:g}, host buffers,"
        " processes)",
        allowed=f"{math.ceil(wanted / 1024)} GiB or more for each worker",
        cure="take a type with more memory, or remove kv_buffer_device: cpu",
    )


def _model_faults(app: AppView, found: Resolved, checked: CheckedFile) -> Iterator[Fault]:
    for name in ("model_id", "model_source"):
        wanted = getattr(found.settings, name)
        written = getattr(app.prefill, name)
        if wanted is None or wanted == written:
            continue
        place = checked.source.place(app.prefill.at("model_loading_config", name))
        yield found.fault(
            "EKS-016",
            (name,),
            f"`{name}` is set to {shown(wanted)}, and the file names {shown(written)} ({place})",
            allowed=f"{shown(written)}, or ${{{name.upper()}}} in the file",
            cure=f"unset it, or write {name}: ${{{name.upper()}}} in both roles",
        )
