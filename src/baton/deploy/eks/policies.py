"""Who may talk to the pods, how many may be away at once, who sees them from outside, who measures.

The NetworkPolicy is about IP. EFA's own traffic is not IP and passes by it: the security group of
the nodes is what bounds that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.deploy.eks import ports
from baton.deploy.eks.kuberay import OPERATOR_NAMESPACE
from baton.deploy.eks.plain import serve_service_name
from baton.deploy.eks.pods import PHASE_LABEL, SERVICE_LABEL

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Layout

_NAMESPACE_LABEL = "kubernetes.io/metadata.name"
# libfabric's TCP and UCX open connections on ports that the kernel picks.
EPHEMERAL = ports.PortRange("kernel's choice", 32_768, 60_999)


def _meta(layout: Layout, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": layout.settings.namespace,
        "labels": dict(layout.labels),
    }


def _ours(layout: Layout) -> dict[str, str]:
    return {SERVICE_LABEL: layout.name}


def namespace(layout: Layout) -> dict[str, Any]:
    """The namespace; its pods pin memory, which the baseline level of Pod Security refuses."""
    labels = {
        "app.kubernetes.io/managed-by": "baton",
        "pod-security.kubernetes.io/enforce": "privileged",
    }
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": layout.settings.namespace, "labels": labels},
    }


NETWORK_HEAD = """\
Who may reach the pods, by port. Ranges between the pods:
{ranges}
The VPC CNI enforces this because cluster.yaml sets enableNetworkPolicy."""


def network_head(layout: Layout) -> str:
    """What the file says of itself: the ranges by name."""
    rows = [
        f"  {r.name}: {r.low}" + (f" to {r.high}" if r.high != r.low else "")
        for r in _between(layout)
    ]
    return NETWORK_HEAD.format(ranges="\n".join(rows))


def _between(layout: Layout) -> list[ports.PortRange]:
    extra = [] if layout.efa else [EPHEMERAL]
    return [*ports.between_pods(layout.app.baton.engines), *extra]


def network_policy(layout: Layout) -> dict[str, Any]:
    """Ingress rules; what the pods themselves call is not limited (models, keys, providers)."""
    settings = layout.settings
    from_us = [{"podSelector": {"matchLabels": _ours(layout)}}]
    callers: list[dict[str, Any]] = [{"namespaceSelector": {}}]
    if settings.ingress != "none":
        # The ALB's own addresses are in the VPC; it sends straight to the pods.
        callers.append({"ipBlock": {"cidr": settings.vpc_cidr}})
    rules = [
        {"from": from_us, "ports": [_tcp(item) for item in _between(layout)]},
        {"from": callers, "ports": [_tcp(ports.PortRange("serve", ports.SERVE, ports.SERVE))]},
        {
            "from": [_namespace(settings.monitoring_namespace)],
            "ports": [_tcp(ports.PortRange("metrics", ports.METRICS, ports.METRICS))],
        },
    ]
    if not layout.plain:
        numbers = (ports.DASHBOARD, ports.AGENT_HTTP, ports.GCS)
        rules.append(
            {
                "from": [_namespace(OPERATOR_NAMESPACE)],
                "ports": [_tcp(ports.PortRange("operator", n, n)) for n in numbers],
            }
        )
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _meta(layout, layout.name),
        "spec": {
            "podSelector": {"matchLabels": _ours(layout)},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }


def _namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {_NAMESPACE_LABEL: name}}}


def _tcp(item: ports.PortRange) -> dict[str, Any]:
    entry: dict[str, Any] = {"protocol": "TCP", "port": item.low}
    if item.high != item.low:
        entry["endPort"] = item.high
    return entry


def disruption_budgets(layout: Layout) -> list[dict[str, Any]]:
    """A node that is drained takes one engine of a phase at a time, and never the only head.

    A head whose state is nowhere else is not evicted at all: whoever drains its node decides it.
    """
    kept = layout.settings.gcs_fault_tolerance == "none"
    away = {"head": 0 if kept else 1, "prefill": 1, "decode": 1}
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _meta(layout, f"{layout.name}-{part}"),
            "spec": {
                "maxUnavailable": count,
                "selector": {"matchLabels": {**_ours(layout), PHASE_LABEL: part}},
            },
        }
        for part, count in away.items()
    ]


def ingress(layout: Layout) -> dict[str, Any]:
    """An ALB that sends straight to the pods which have an edge.

    - Its idle timeout is above the longest silence: an answer that is not streamed says nothing
      until it is done.
    - Its own health check asks each pod's edge, so that a worker without one gets no request.
    """
    settings = layout.settings
    tls = settings.ingress_certificate_arn is not None
    prefix = "alb.ingress.kubernetes.io"
    annotations = {
        f"{prefix}/scheme": settings.ingress,
        f"{prefix}/target-type": "ip",
        f"{prefix}/listen-ports": '[{"HTTPS": 443}]' if tls else '[{"HTTP": 80}]',
        f"{prefix}/load-balancer-attributes": "idle_timeout.timeout_seconds="
        f"{layout.idle_timeout_s}",
        f"{prefix}/target-group-attributes": "load_balancing.algorithm.type="
        "least_outstanding_requests,deregistration_delay.timeout_seconds="
        f"{min(layout.grace_s, 3600)}",
        f"{prefix}/healthcheck-path": "/-/healthz",
        f"{prefix}/healthcheck-interval-seconds": "10",
        f"{prefix}/tags": f"baton.dev/cluster={settings.cluster_name}",
    }
    if settings.ingress_certificate_arn is not None:
        annotations[f"{prefix}/certificate-arn"] = settings.ingress_certificate_arn
    backend = {"service": {"name": serve_service_name(layout), "port": {"number": ports.SERVE}}}
    rule: dict[str, Any] = {
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}
    }
    if settings.ingress_host is not None:
        rule = {"host": settings.ingress_host, **rule}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {**_meta(layout, layout.name), "annotations": annotations},
        "spec": {"ingressClassName": "alb", "rules": [rule]},
    }


def metrics_service(layout: Layout) -> dict[str, Any]:
    """All pods' metrics ports under one name, for the monitor to find."""
    labels = {**layout.labels, "app.kubernetes.io/component": "metrics"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {**_meta(layout, f"{layout.name}-metrics"), "labels": labels},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _ours(layout),
            "ports": [
                {"name": "metrics", "port": ports.METRICS, "targetPort": ports.METRICS},
                {"name": "serve", "port": ports.SERVE, "targetPort": ports.SERVE},
            ],
        },
    }


def service_monitor(layout: Layout) -> dict[str, Any]:
    """For the Prometheus operator: Ray's metrics of every pod, and the gateway's.

    The gateway's `/metrics` lies behind the edges: with one gateway every edge leads to it, and the
    head's is asked; with several a scrape would meet any of them, so it is left out.
    """
    endpoints: list[dict[str, Any]] = [{"port": "metrics", "path": "/metrics", "interval": "15s"}]
    by_baton = not layout.app.import_path.startswith("ray.")
    if by_baton and layout.app.baton.gateway.num_replicas == 1:
        only_head = {
            "sourceLabels": ["__meta_kubernetes_pod_label_baton_dev_phase"],
            "regex": "head",
            "action": "keep",
        }
        endpoints.append(
            {
                "port": "serve",
                "path": "/metrics",
                "interval": "15s",
                "relabelings": [only_head],
            }
        )
    labels = {**layout.labels, "app.kubernetes.io/component": "metrics"}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _meta(layout, layout.name),
        "spec": {
            "selector": {"matchLabels": labels},
            "namespaceSelector": {"matchNames": [layout.settings.namespace]},
            "endpoints": endpoints,
        },
    }
