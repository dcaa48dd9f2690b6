"""Everything that is made, in the order of making, with the exact commands. Pure.

A part is the smallest thing that an interruption can leave made or not made. One command of eksctl
makes several at once; whatever of them is missing later is made by a command of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from baton.deploy.eks import cluster, kuberay, nodegroup
from baton.deploy.eks.live.commands import Command, command
from baton.deploy.eks.pods import key_file_name, secret_variables
from baton.deploy.eks.render import NAMESPACE_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.deploy.eks.layout import Layout

Step = Literal["cluster", "nodes", "kuberay", "app"]
STEPS: tuple[Step, ...] = ("cluster", "nodes", "kuberay", "app")
Kind = Literal[
    "cluster", "oidc", "addons", "account", "nodegroup", "placement_group", "chart", "namespace",
    "secret", "service",
]  # fmt: skip
CLUSTER_FILE = "eksctl/cluster.yaml"
NODES_FILE = "eksctl/nodegroups.yaml"
HELM_TIMEOUT_S = 600
MANAGED = "app.kubernetes.io/managed-by"


@dataclass(frozen=True)
class Part:
    """One thing that is made. `usual_min`: minutes that it usually takes, no promise."""

    name: str
    step: Step
    kind: Kind
    title: str
    create: tuple[Command, ...]
    delete: tuple[Command, ...] = ()
    usual_min: tuple[int, int] = (1, 1)
    limit_s: int = 900
    """When waiting for it is given up."""
    makes: tuple[str, ...] = ()
    """Parts that its command makes along with it when they are absent."""
    foreign: Literal["use", "stop"] = "stop"
    """What is done with one that does not carry our tag."""
    retry_failed: bool = False
    """Whether its command may be run over one that failed."""
    wants: dict[str, Any] = field(default_factory=dict)
    """What the observed one is held against."""
    changes: Mapping[str, tuple[Command, ...]] = field(default_factory=dict)
    """Commands by what a drift names."""
    missing: str = ""
    """Why it cannot be made now: what a person must give first."""


def parts_of(layout: Layout, env: Mapping[str, str]) -> list[Part]:
    """All parts of a layout.

    Args:
        layout: What is to be.
        env: Where callers' keys are read from, for the secret that holds them.
    """
    return [
        *_cluster(layout),
        *_nodes(layout),
        *[_chart(chart) for chart in kuberay.charts(layout)],
        *_app(layout, env),
    ]


def _cluster(layout: Layout) -> list[Part]:
    settings = layout.settings
    name, region = settings.cluster_name, settings.region
    config = cluster.cluster_config(settings)
    where = f"--cluster {name} --region {region}"
    addons = tuple(addon["name"] for addon in config["addons"])
    own = [
        Part(
            "oidc", "cluster", "oidc", "OIDC provider, for the add-ons' own permissions",
            (command(f"eksctl utils associate-iam-oidc-provider {where} --approve"),),
            foreign="use",
        ),
        Part(
            "addons", "cluster", "addons", f"add-ons: {', '.join(addons)}",
            (command(f"eksctl create addon -f {CLUSTER_FILE}"),),
            usual_min=(2, 5), foreign="use",
            wants={"names": addons},
        ),
    ]  # fmt: skip
    if settings.ingress != "none":
        own.append(
            Part(
                "controller-account", "cluster", "account", "service account of the ALB controller",
                (command(f"eksctl create iamserviceaccount -f {CLUSTER_FILE} --approve"),),
                foreign="use",
            )
        )  # fmt: skip
    own.append(
        Part(
            "system", "cluster", "nodegroup",
            f"{settings.system_node_count} x {settings.system_instance_type}: operator, Ray head",
            (command(f"eksctl create nodegroup -f {CLUSTER_FILE} --include=system"),),
            usual_min=(3, 6), limit_s=2400,
            wants={"type": settings.system_instance_type, "nodes": settings.system_node_count},
            changes=_scale(where, "system", settings.system_node_count, 1),
        )
    )  # fmt: skip
    whole = Part(
        "cluster", "cluster", "cluster",
        f"EKS cluster {name}, Kubernetes {settings.k8s_version}, VPC {settings.vpc_cidr} in"
        f" {', '.join(settings.zones)}",
        (command(f"eksctl create cluster -f {CLUSTER_FILE}"),),
        (command(f"eksctl delete cluster --name {name} --region {region}"
                 " --disable-nodegroup-eviction --wait"),),
        usual_min=(18, 25), limit_s=3600, foreign="use",
        makes=tuple(part.name for part in own), wants={"version": settings.k8s_version},
    )  # fmt: skip
    return [whole, *own]


def _scale(where: str, name: str, nodes: int, spare: int = 0) -> dict[str, tuple[Command, ...]]:
    line = f"eksctl scale nodegroup {where} --name {name} --nodes {nodes}"
    return {"scale": (command(f"{line} --nodes-min {nodes} --nodes-max {nodes + spare}"),)}


def _nodes(layout: Layout) -> list[Part]:
    settings = layout.settings
    region = settings.region
    where = f"--cluster {settings.cluster_name} --region {region}"
    found = []
    if layout.efa:
        name = settings.placement_group_name
        found.append(
            Part(
                "placement-group", "nodes", "placement_group",
                f"cluster placement group {name}: both phases close together",
                (Command(nodegroup.placement_group_argv(settings)),),
                (command(f"aws ec2 delete-placement-group --region {region}"
                         f" --group-name {name}"),),
                foreign="use", wants={"name": name},
            )
        )  # fmt: skip
    for group in layout.groups:
        # Both at once while both are missing: two CloudFormation stacks side by side.
        others = tuple(g.role for g in layout.groups if g.role != group.role)
        found.append(
            Part(
                group.role, "nodes", "nodegroup",
                f"{group.nodes} x {group.instance.name} for {group.role} in {settings.zone}"
                + (f", {group.instance.efa_interfaces} EFA each" if layout.efa else ""),
                (command(f"eksctl create nodegroup -f {NODES_FILE} --include={group.role}"
                         " --install-nvidia-plugin=false"),),
                (command(f"eksctl delete nodegroup {where} --name {group.role}"
                         " --disable-eviction --wait"),),
                usual_min=(4, 10), limit_s=2400, makes=others if group.role == "prefill" else (),
                wants={"type": group.instance.name, "nodes": group.nodes},
                changes=_scale(where, group.role, group.nodes),
            )
        )  # fmt: skip
    return found


def _chart(chart: kuberay.Chart) -> Part:
    space = f"--namespace {chart.namespace}"
    return Part(
        f"chart-{chart.release}", "kuberay", "chart",
        f"{chart.chart} {chart.version}, in {chart.namespace}",
        (Command(chart.argv),),
        (command(f"helm uninstall {chart.release} {space} --ignore-not-found --wait"
                 " --timeout 5m"),),
        usual_min=(1, 3), limit_s=HELM_TIMEOUT_S, foreign="use", retry_failed=True,
        wants={"release": chart.release, "namespace": chart.namespace, "chart": chart.chart,
               "version": chart.version},
        changes={
            "apply": (Command(chart.argv),),
            "recover": (command(f"helm rollback {chart.release} {space} --wait"),),
        },
    )  # fmt: skip


def _app(layout: Layout, env: Mapping[str, str]) -> list[Part]:
    settings = layout.settings
    space = settings.namespace
    found = [
        Part(
            "namespace", "app", "namespace", f"namespace {space}",
            (command(f"kubectl apply -f {NAMESPACE_FILE}"),),
            (command(f"kubectl delete namespace {space} --ignore-not-found --wait"
                     " --timeout=300s"),),
            limit_s=300,
        )
    ]  # fmt: skip
    names = secret_variables(layout)
    file = key_file_name(layout)
    if names or file is not None:
        found.append(_secret(layout, names, file, env))
    kind = "deployment" if layout.plain else "rayservice"
    name = f"{layout.name}-head" if layout.plain else layout.name
    engines = " and ".join(f"{g.workers} {g.role}" for g in layout.groups)
    found.append(
        Part(
            "service", "app", "service", f"{kind} {layout.name}: a head, {engines}",
            (command("kubectl apply -k k8s"),),
            _service_deletion(layout),
            usual_min=(8, 20), limit_s=3600,
            wants={"kind": kind, "name": name, "service": layout.name},
            changes={"apply": (command("kubectl apply -k k8s"),)},
        )
    )  # fmt: skip
    return found


def _service_deletion(layout: Layout) -> tuple[Command, ...]:
    """The service alone first: workers drain, and an ALB goes while its controller lives."""
    space = layout.settings.namespace
    tail = f"-n {space} --ignore-not-found --wait --timeout={layout.grace_s + 300}s"
    lines = []
    if layout.settings.ingress != "none":
        lines.append(command(f"kubectl delete ingress {layout.name} {tail}"))
    if layout.plain:
        owned = f"-l {MANAGED}=baton,app.kubernetes.io/name={layout.name}"
        lines.append(
            command(f"kubectl delete deployments,statefulsets,services,configmaps {owned} {tail}")
        )
    else:
        lines.append(command(f"kubectl delete rayservice {layout.name} {tail}"))
    # `kubectl delete -k k8s` would take the namespace along, with whatever else is in it.
    owned = f"-l {MANAGED}=baton,app.kubernetes.io/name={layout.name}"
    lines.append(
        command(f"kubectl delete networkpolicies,poddisruptionbudgets,services {owned} {tail}")
    )
    return tuple(lines)


def _secret(layout: Layout, names: list[str], file: str | None, env: Mapping[str, str]) -> Part:
    settings = layout.settings
    secret, space = settings.api_keys_secret, settings.namespace
    create = f"kubectl -n {space} create secret generic {secret}"
    missing = ""
    if file is not None:
        flags = " ".join(f"--from-literal={name}=…" for name in names)
        missing = f"{create} --from-file={file}=PATH {flags}".strip()
        made: tuple[Command, ...] = ()
    else:
        unset = [name for name in names if not env.get(name)]
        if unset:
            missing = f"export {' '.join(f'{name}=…' for name in unset)}"
        text = "".join(f"{name}={env.get(name, '')}\n" for name in names)
        shown = " ".join(f'"{name}=${name}"' for name in names)
        # By standard input: what stands in an argument is for every user of this machine to read.
        made = (
            Command(
                (*create.split(), "--from-env-file=/dev/stdin"), text, f"printf '%s\\n' {shown} | "
            ),
        )
    return Part(
        "api-keys", "app", "secret", f"secret {secret}: {', '.join(names) or file}", made,
        foreign="use", wants={"name": secret}, missing=missing,
    )  # fmt: skip


def created_together(part: Part, names: tuple[str, ...]) -> tuple[Command, ...]:
    """The commands that make a part, and those of `part.makes` that are absent too."""
    if part.kind != "nodegroup" or not names:
        return part.create
    include = f"--include={','.join((part.name, *names))}"
    return tuple(
        Command(tuple(include if w.startswith("--include=") else w for w in made.argv))
        for made in part.create
    )
