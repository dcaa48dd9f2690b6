"""Helm values: the KubeRay operator, and the plugins that make GPUs, EFA and ALBs usable.

Only values that differ from the charts' own. Which chart, which version and which release name
belong to each file is in `CHARTS`, for whoever installs them.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from baton.deploy.eks.cluster import SYSTEM_LABELS
from baton.deploy.eks.nodegroup import efa_plugin_by

if TYPE_CHECKING:
    from baton.deploy.eks.config import EksSettings
    from baton.deploy.eks.layout import Layout

OPERATOR_NAMESPACE = "kuberay-system"
RELEASE_LABEL = "baton.dev/managed-by=baton"
"""Of a Helm release that is ours."""


@dataclass(frozen=True)
class Chart:
    """One chart and how it is installed."""

    release: str
    chart: str
    repository: str
    version: str
    namespace: str
    values: dict[str, Any]

    @property
    def file(self) -> str:
        """The values' file in the rendered folder."""
        return f"helm/{self.chart}.values.yaml"

    @property
    def argv(self) -> tuple[str, ...]:
        """How it is installed: waits until it runs, and says whose it is (Helm 3.13 and later)."""
        line = (
            f"helm upgrade --install {self.release} {self.chart} --repo {self.repository}"
            f" --version {self.version} --namespace {self.namespace} --create-namespace"
            f" --values {self.file} --labels {RELEASE_LABEL} --wait --timeout 10m"
        )
        return tuple(line.split())

    @property
    def command(self) -> str:
        """The same as a line."""
        return shlex.join(self.argv)


def charts(layout: Layout) -> list[Chart]:
    """Every chart that this layout wants, in the order of installing."""
    settings = layout.settings
    found = []
    if not layout.plain:
        found.append(_operator(settings))
    found.append(_nvidia(settings))
    if layout.efa and efa_plugin_by(settings) == "helm":
        found.append(_efa(settings))
    if settings.ingress != "none":
        found.append(_alb(settings))
    return found


def _operator(settings: EksSettings) -> Chart:
    return Chart(
        "kuberay-operator",
        "kuberay-operator",
        "https://ray-project.github.io/kuberay-helm",
        settings.kuberay_version,
        OPERATOR_NAMESPACE,
        {
            "image": {"tag": f"v{settings.kuberay_version}"},
            # On the CPU nodes: an operator on a GPU node goes away with the node group.
            "nodeSelector": dict(SYSTEM_LABELS),
            # The chart's 100m throttles it while a RayService comes up.
            "resources": {
                "requests": {"cpu": "100m", "memory": "512Mi"},
                "limits": {"cpu": "500m", "memory": "512Mi"},
            },
        },
    )


def tolerations(settings: EksSettings) -> list[dict[str, str]]:
    """What a pod on the GPU nodes must tolerate."""
    if settings.gpu_taint == "none":
        return []
    return [{"key": settings.gpu_taint, "operator": "Exists", "effect": "NoSchedule"}]


def _nvidia(settings: EksSettings) -> Chart:
    """Needed on AL2023, whose AMIs have the driver and not the plugin (EKS user guide)."""
    return Chart(
        "nvidia-device-plugin",
        "nvidia-device-plugin",
        "https://nvidia.github.io/k8s-device-plugin",
        settings.nvidia_plugin_version,
        "kube-system",
        {
            "nodeSelector": {"role": "gpu-worker"},
            # By default the chart wants labels of node feature discovery, which nothing here sets:
            # its DaemonSet would run nowhere.
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "role", "operator": "In", "values": ["gpu-worker"]}
                                ]
                            }
                        ]
                    }
                }
            },
            "tolerations": tolerations(settings),
        },
    )


def _efa(settings: EksSettings) -> Chart:
    return Chart(
        "aws-efa-k8s-device-plugin",
        "aws-efa-k8s-device-plugin",
        "https://aws.github.io/eks-charts",
        settings.efa_plugin_version,
        "kube-system",
        {"nodeSelector": {"role": "gpu-worker"}, "tolerations": tolerations(settings)},
    )


def _alb(settings: EksSettings) -> Chart:
    return Chart(
        "aws-load-balancer-controller",
        "aws-load-balancer-controller",
        "https://aws.github.io/eks-charts",
        settings.alb_controller_version,
        "kube-system",
        {
            "clusterName": settings.cluster_name,
            "region": settings.region,
            # Made by eksctl with the policy that it needs (cluster.yaml).
            "serviceAccount": {"create": False, "name": "aws-load-balancer-controller"},
            "nodeSelector": dict(SYSTEM_LABELS),
        },
    )
