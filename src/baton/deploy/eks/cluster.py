"""The cluster without its GPU nodes, as eksctl takes it: VPC, OIDC, add-ons, CPU nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baton.deploy.eks.config import EksSettings

SYSTEM_LABELS = {"role": "system"}
"""Of the CPU nodes; the operator and the Ray head go there."""
TAG = "baton.dev/cluster"
"""On everything that is made. What does not carry it is never deleted."""


def tags(settings: EksSettings) -> dict[str, str]:
    """The tags of everything that is made in AWS."""
    return {TAG: settings.cluster_name, "baton.dev/managed-by": "baton"}


def metadata(settings: EksSettings) -> dict[str, Any]:
    """The head of every ClusterConfig."""
    return {
        "name": settings.cluster_name,
        "region": settings.region,
        "version": settings.k8s_version,
        "tags": tags(settings),
    }


def cluster_config(settings: EksSettings) -> dict[str, Any]:
    """`eksctl create cluster -f cluster.yaml`.

    - The VPC CNI enforces NetworkPolicies only when it is told to; otherwise they are accepted and
      have no effect (EKS user guide, "Limit Pod traffic with Kubernetes network policies").
    - Subnets are made in the GPU nodes' zone and one more: EKS wants two.
    """
    config: dict[str, Any] = {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": metadata(settings),
        "availabilityZones": list(settings.zones),
        "vpc": {
            "cidr": settings.vpc_cidr,
            "nat": {"gateway": "Single" if settings.nat_gateway == "single" else "HighlyAvailable"},
            "clusterEndpoints": {"publicAccess": True, "privateAccess": True},
        },
        "iam": {"withOIDC": True},
        "addons": [
            {
                "name": "vpc-cni",
                "configurationValues": json.dumps({"enableNetworkPolicy": "true"}),
            },
            {"name": "coredns"},
            {"name": "kube-proxy"},
            {"name": "metrics-server"},
            {"name": "aws-ebs-csi-driver", "wellKnownPolicies": {"ebsCSIController": True}},
        ],
        "managedNodeGroups": [
            {
                "name": "system",
                "instanceType": settings.system_instance_type,
                "amiFamily": "AmazonLinux2023",
                "desiredCapacity": settings.system_node_count,
                "minSize": settings.system_node_count,
                "maxSize": settings.system_node_count + 1,
                "privateNetworking": True,
                "volumeSize": 80,
                "volumeType": "gp3",
                "labels": dict(SYSTEM_LABELS),
                "tags": tags(settings),
            }
        ],
    }
    if settings.ingress != "none":
        config["iam"]["serviceAccounts"] = [
            {
                "metadata": {"name": "aws-load-balancer-controller", "namespace": "kube-system"},
                "wellKnownPolicies": {"awsLoadBalancerController": True},
            }
        ]
    return config
