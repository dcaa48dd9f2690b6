"""The RayService: KubeRay starts Ray from it and hands the user's YAML to Ray Serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.deploy.eks.pods import head_params, head_pod, worker_params, worker_pod
from baton.deploy.eks.yaml_text import yaml_text
from baton.spec import catalog

if TYPE_CHECKING:
    from baton.deploy.eks.layout import Group, Layout

_STRATEGIES = {"none": "None", "new-cluster": "NewCluster"}

HEAD = """\
The service. serveConfigV2 is your YAML: corrected, complete, and each phase bound to its workers.
A change of serveConfigV2 is rolled out in place, replica by replica. A change of anything else
{strategy}
If the head is lost: {lost_head}"""

_STRATEGY_SAYS = {
    "none": "waits until the service is deleted and applied again: there are no GPUs for a second"
    " Ray cluster.",
    "new-cluster": "starts a second Ray cluster on the spare nodes and moves requests to it.",
}
_LOST_HEAD = {
    "none": "Ray's workers end with it after about a minute, and so does every stream; KubeRay"
    " starts\nthe head and the engines load their models again. gcs_fault_tolerance: redis avoids"
    " that.",
    "redis": "workers, engines and their edges go on and answer through the workers; new replicas"
    " and\nupdates wait until the head is back and has read its state from Redis.",
}


def head(layout: Layout) -> str:
    """What the file says of itself."""
    settings = layout.settings
    return HEAD.format(
        strategy=_STRATEGY_SAYS[settings.upgrade_strategy],
        lost_head=_LOST_HEAD[settings.gcs_fault_tolerance],
    )


def ray_version() -> str:
    """The Ray that the rules and the pins are for."""
    version: str = catalog.ray()["version"]
    return version


def ray_service(layout: Layout) -> dict[str, Any]:
    """The RayService manifest."""
    settings = layout.settings
    cluster: dict[str, Any] = {
        "rayVersion": ray_version(),
        "headGroupSpec": {"rayStartParams": head_params(), "template": head_pod(layout)},
        "workerGroupSpecs": [_worker_group(group, layout) for group in layout.groups],
    }
    if settings.gcs_fault_tolerance == "redis":
        cluster["gcsFaultToleranceOptions"] = _redis(layout)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {
            "name": layout.name,
            "namespace": settings.namespace,
            "labels": dict(layout.labels),
        },
        "spec": {
            "upgradeStrategy": {"type": _STRATEGIES[settings.upgrade_strategy]},
            "rayClusterDeletionDelaySeconds": layout.deletion_delay_s,
            "serveConfigV2": yaml_text(layout.serve_config),
            "rayClusterConfig": cluster,
        },
    }


def _worker_group(group: Group, layout: Layout) -> dict[str, Any]:
    return {
        "groupName": group.role,
        "replicas": group.workers,
        "minReplicas": group.workers,
        "maxReplicas": group.workers,
        "rayStartParams": worker_params(group),
        "template": worker_pod(group, layout),
    }


def _redis(layout: Layout) -> dict[str, Any]:
    settings = layout.settings
    options: dict[str, Any] = {"redisAddress": settings.redis_address}
    if settings.redis_password_secret is not None:
        reference = {"name": settings.redis_password_secret, "key": "password"}
        options["redisPassword"] = {"valueFrom": {"secretKeyRef": reference}}
    return options
