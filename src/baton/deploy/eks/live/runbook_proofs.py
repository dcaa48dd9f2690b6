"""What a person asks before a runbook's steps, and how they see that each is done. Pure.

Each line is a command that changes nothing, and behind it what it should say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.deploy.eks.live.commands import KUBECONFIG
from baton.deploy.eks.live.runbook_signing import quota_note, versions_wanted
from baton.deploy.eks.live.status import EFA, GPU
from baton.deploy.eks.nodegroup import efa_plugin_by
from baton.deploy.eks.pods import PHASE_LABEL, SERVICE_LABEL

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Layout
    from baton.deploy.eks.live.parts import Step


def asks(layout: Layout) -> list[str]:
    """What the checks ask AWS by themselves, as a person would."""
    settings = layout.settings
    region = f"--region {settings.region}"
    types = " ".join(sorted({group.instance.name for group in layout.groups}))
    return [
        "aws sts get-caller-identity   # is it the right account?",
        (
            f"aws eks describe-cluster-versions {region} --query"
            " 'clusterVersions[].[clusterVersion,versionStatus]' --output text"
            f"   # {settings.k8s_version}, in standard support"
        ),
        (
            f"aws service-quotas list-service-quotas --service-code ec2 {region} --query"
            " \"Quotas[?contains(QuotaName,'Running On-Demand')].[QuotaCode,QuotaName,Value]\""
            f" --output text   # {quota_note(layout)}"
        ),
        (
            f"aws ec2 describe-instance-type-offerings --location-type availability-zone {region}"
            f" --filters Name=instance-type,Values={types.replace(' ', ',')} --query"
            " 'InstanceTypeOfferings[].[InstanceType,Location]' --output text"
            f"   # {settings.zone} for each"
        ),
        (
            f"aws ec2 describe-instance-types --instance-types {types} {region} --query"
            " 'InstanceTypes[].[InstanceType,NetworkInfo.EfaInfo.MaximumEfaInterfaces]'"
            f" --output text   # {_each(layout, 'efa_interfaces')}"
        ),
    ]


def proofs(step: Step, layout: Layout) -> list[str]:
    """How one sees that a step is done, as commands with what they should say."""
    settings = layout.settings
    where = f"--region {settings.region}"
    space = settings.namespace
    if step == "cluster":
        name = settings.cluster_name
        access = f"aws eks update-kubeconfig --name {name} {where} --kubeconfig {KUBECONFIG}"
        asked = f"aws eks describe-cluster --name {name} {where} --query cluster.status"
        return [
            f"{access}   # eksctl did so here; for another machine",
            f"{asked}   # ACTIVE",
            f"kubectl get nodes -l role=system   # {settings.system_node_count} x Ready",
        ]
    efa = [f"{_offers('EFA', EFA)}   # {_each(layout, 'efa_interfaces')}"] if layout.efa else []
    # A plugin that comes from a chart is not there before the charts are.
    by_chart = efa_plugin_by(settings) == "helm"
    if step == "nodes":
        nodes = sum(group.nodes for group in layout.groups)
        ready = f"kubectl get nodes -l role=gpu-worker -L baton.dev/phase   # {nodes} x Ready"
        return [ready, *([] if by_chart else efa)]
    if step == "kuberay":
        gpus = f"{_offers('GPU', GPU)}   # {_each(layout, 'gpus')}"
        return ["helm list -A   # each `deployed`", gpus, *(efa if by_chart else [])]
    workers = sum(group.workers for group in layout.groups)
    label = f"{SERVICE_LABEL}={layout.name},{PHASE_LABEL}=head"
    head = f"kubectl -n {space} exec $(kubectl -n {space} get pods -o name -l {label}) -c ray-head"
    serve = (
        f"{head} -- serve status -a http://127.0.0.1:8265"
        if layout.plain
        else f"kubectl -n {space} get rayservice/{layout.name} -o"
        f" jsonpath='{{.status.activeServiceStatus.applicationStatuses.{layout.app.name}.status}}'"
    )
    packages = "pip list 2>/dev/null | grep -iE '^(ray|vllm|nixl) '"
    return [
        f"kubectl -n {space} get pods -o wide   # a head and {workers} workers, Running",
        f'{head} -- bash -c "{packages}"   # {versions_wanted()}',
        f"{serve}   # RUNNING",
    ]


def _offers(name: str, resource: str) -> str:
    escaped = resource.replace(".", "\\.")
    return (
        "kubectl get nodes -l role=gpu-worker -o custom-columns="
        f"'NODE:.metadata.name,{name}:.status.allocatable.{escaped}'"
    )


def _each(layout: Layout, what: str) -> str:
    return " and ".join(f"{getattr(g.instance, what)} for {g.role}" for g in layout.groups)
