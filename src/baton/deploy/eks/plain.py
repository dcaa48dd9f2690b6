"""The same service without an operator: a Deployment for the head, a StatefulSet for each phase.

For clusters where no custom resources may be installed. What KubeRay does is done here by the pods
themselves: workers wait for the head and join it, and a second container beside the head hands the
YAML to Ray Serve, again whenever the head came up without it. There is no second Ray cluster for an
upgrade, and no GCS fault tolerance.
"""

from __future__ import annotations

import copy
import shlex
from typing import TYPE_CHECKING, Any

from baton.deploy.eks import ports
from baton.deploy.eks.pods import (
    PHASE_LABEL,
    SERVICE_LABEL,
    head_params,
    head_pod,
    pod_labels,
    worker_params,
    worker_pod,
)
from baton.deploy.eks.yaml_text import yaml_text

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Group, Layout

CONFIG = "/etc/baton/app"


def head_service_name(layout: Layout) -> str:
    """Where workers find the head; KubeRay's name for it."""
    return f"{layout.name}-head-svc"


def serve_service_name(layout: Layout) -> str:
    """Where requests go; KubeRay's name for it."""
    return f"{layout.name}-serve-svc"


def plain_objects(layout: Layout) -> list[dict[str, Any]]:
    """Everything that the RayService would have been."""
    return [
        _config(layout),
        _head_service(layout),
        _serve_service(layout),
        _workers_service(layout),
        _head(layout),
        *(_workers(group, layout) for group in layout.groups),
    ]


def _meta(layout: Layout, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": layout.settings.namespace,
        "labels": dict(layout.labels),
    }


def _config(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _meta(layout, f"{layout.name}-app"),
        "data": {"app.yaml": yaml_text(layout.serve_config)},
    }


def _service(
    layout: Layout, name: str, selector: dict[str, str], numbers: dict[str, int], **more: Any
) -> dict[str, Any]:
    listed = [{"name": n, "port": number, "targetPort": number} for n, number in numbers.items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(layout, name),
        "spec": {**more, "selector": selector, "ports": listed},
    }


def _head_service(layout: Layout) -> dict[str, Any]:
    numbers = {
        "gcs": ports.GCS,
        "dashboard": ports.DASHBOARD,
        "client": ports.CLIENT,
        "serve": ports.SERVE,
        "metrics": ports.METRICS,
    }
    # Workers must find a head that is not ready yet: it is not ready before they have joined.
    return _service(
        layout,
        head_service_name(layout),
        pod_labels(layout, "head"),
        numbers,
        clusterIP="None",
        publishNotReadyAddresses=True,
    )


def _serve_service(layout: Layout) -> dict[str, Any]:
    return _service(
        layout,
        serve_service_name(layout),
        {SERVICE_LABEL: layout.name},
        {"serve": ports.SERVE},
        type="ClusterIP",
    )


def _workers_service(layout: Layout) -> dict[str, Any]:
    return _service(
        layout,
        f"{layout.name}-workers",
        {SERVICE_LABEL: layout.name},
        {"metrics": ports.METRICS},
        clusterIP="None",
    )


def _command(params: dict[str, str], *first: str) -> list[str]:
    # `resources` is quoted for KubeRay's shell already.
    words = [f"--{k}={v if k == 'resources' else shlex.quote(v)}" for k, v in params.items()]
    line = " ".join(["exec ray start --block", *first, *words])
    return ["/bin/bash", "-c", f"ulimit -n 65536; {line}"]


def _head(layout: Layout) -> dict[str, Any]:
    template = copy.deepcopy(head_pod(layout))
    spec = template["spec"]
    container = spec["containers"][0]
    container["command"] = _command(head_params(), "--head")
    spec["containers"].append(_submitter(layout))
    spec["volumes"].append({"name": "app", "configMap": {"name": f"{layout.name}-app"}})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(layout, f"{layout.name}-head"),
        "spec": {
            "replicas": 1,
            # Two heads at once would each have half of the workers.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": pod_labels(layout, "head")},
            "template": template,
        },
    }


def _submitter(layout: Layout) -> dict[str, Any]:
    """Hands the YAML to Serve when it changed, and when a new head has no application."""
    address = f"http://127.0.0.1:{ports.DASHBOARD}"
    # The mounted file changes when the ConfigMap does; a head that was started again has nothing.
    script = (
        "last=; while true; do"
        f" now=$(sha256sum {CONFIG}/app.yaml);"
        f' if [ "$now" != "$last" ] || ! serve status -a {address} | grep -q {layout.app.name};'
        f' then serve deploy {CONFIG}/app.yaml -a {address} && last="$now"; fi;'
        " sleep 15; done"
    )
    return {
        "name": "serve-deploy",
        "image": layout.image,
        "command": ["/bin/bash", "-c", script],
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi"},
            "limits": {"cpu": "500m", "memory": "512Mi"},
        },
        "volumeMounts": [{"name": "app", "mountPath": CONFIG, "readOnly": True}],
    }


def _workers(group: Group, layout: Layout) -> dict[str, Any]:
    template = copy.deepcopy(worker_pod(group, layout))
    spec = template["spec"]
    address = f"{head_service_name(layout)}:{ports.GCS}"
    container = spec["containers"][0]
    container["command"] = _command(worker_params(group), f"--address={address}")
    wait = {
        "name": "wait-for-head",
        "image": layout.image,
        "command": [
            "/bin/bash",
            "-c",
            f"until ray health-check --address {address} 2>/dev/null; do sleep 3; done",
        ],
        "resources": {
            "requests": {"cpu": "200m", "memory": "256Mi"},
            "limits": {"cpu": "200m", "memory": "256Mi"},
        },
    }
    spec["initContainers"] = [*spec.get("initContainers", []), wait]
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": _meta(layout, f"{layout.name}-{group.role}"),
        "spec": {
            "replicas": group.workers,
            "serviceName": f"{layout.name}-workers",
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {SERVICE_LABEL: layout.name, PHASE_LABEL: group.role}},
            "template": template,
        },
    }
