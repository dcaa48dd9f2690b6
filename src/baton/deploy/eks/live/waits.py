"""Whether pods and Serve are getting there, and the real reason when they never will. Pure.

What heals by itself (a device plugin that registers a minute after its node) is waited for; what
does not (an image that is not there) ends the waiting at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from baton.deploy.eks.live.states import Drift
from baton.deploy.eks.pods import PHASE_LABEL

UNSCHEDULABLE_PATIENCE_S = 300.0
"""Node groups are ready by then; device plugins register within a minute or two."""
CRASHES = 3
_NO_IMAGE = frozenset({"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_NO_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
HINTS = {
    "vpc.amazonaws.com/efa": "is the EFA device plugin running on these nodes?"
    " kubectl -n kube-system get pods -o wide | grep efa",
    "nvidia.com/gpu": "is the NVIDIA device plugin running on these nodes?"
    " kubectl -n kube-system get pods -o wide | grep nvidia",
    "hugepages-2Mi": "these nodes set fewer huge pages aside: lower hugepages_mib",
    "Insufficient memory": "these nodes offer less memory than was estimated: take a larger type",
    "node affinity/selector": "no node has the labels that the pod wants: kubectl get nodes"
    " --show-labels",
    "untolerated taint": "the nodes have a taint that the settings do not name: gpu_taint",
}


@dataclass(frozen=True)
class PodView:
    """One pod as far as it matters here."""

    name: str
    phase: str
    """`head`, `prefill` or `decode`."""
    node: str
    status: str
    """What `kubectl get pods` would say."""
    ready: bool
    fatal: str = ""
    image: str = ""
    """Of its first container, as the pod was made with."""


@dataclass(frozen=True)
class ServeView:
    """Ray Serve's applications by name: status and message."""

    applications: dict[str, tuple[str, str]] = field(default_factory=dict)
    behind: bool = False
    """Whether KubeRay has not yet looked at the newest manifest."""
    upgrading: bool = False
    trouble: str = ""


def pod_view(pod: dict[str, Any], now: float) -> PodView:
    """A pod of `kubectl get pods -o json`."""
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    said = str(status.get("phase", "Unknown"))
    if meta.get("deletionTimestamp"):
        said = "Terminating"
    fatal = ""
    scheduled = conditions.get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        message = str(scheduled.get("message") or scheduled.get("reason") or "not scheduled")
        said = "Unschedulable"
        since = _seconds(str(scheduled.get("lastTransitionTime", "")))
        if since is not None and now - since > UNSCHEDULABLE_PATIENCE_S:
            fatal = message + _hint(message)
    listed = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    for container in listed:
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason:
            said = reason
        if reason in _NO_IMAGE or reason in _NO_CONFIG:
            fatal = f"{reason}: {waiting.get('message') or container.get('image', '')}"
        elif reason == "CrashLoopBackOff" and int(container.get("restartCount") or 0) >= CRASHES:
            last = ((container.get("lastState") or {}).get("terminated")) or {}
            fatal = (
                f"{container.get('name')} ended {container.get('restartCount')} times:"
                f" {last.get('reason', '?')}, exit status {last.get('exitCode', '?')}"
            )
    ready = (conditions.get("Ready") or {}).get("status") == "True" and said == "Running"
    return PodView(
        str(meta.get("name")),
        str((meta.get("labels") or {}).get(PHASE_LABEL, "?")),
        str((pod.get("spec") or {}).get("nodeName") or ""),
        said,
        ready,
        fatal,
        str((((pod.get("spec") or {}).get("containers") or [{}])[0]).get("image") or ""),
    )


def image_drifts(pods: list[PodView], wanted: str) -> tuple[Drift, ...]:
    """Pods that run another image than the files name, once nothing is being rolled out.

    With `upgrade_strategy: none` KubeRay takes a new image into the manifest and starts nothing.
    """
    others = sorted({pod.image for pod in pods if pod.image not in ("", wanted)})
    if not others:
        return ()
    return (Drift(f"pods run {', '.join(others)}, and {wanted} is wanted"),)


def _hint(message: str) -> str:
    return next((f" ({text})" for word, text in HINTS.items() if word in message), "")


def _seconds(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None


def serve_view(service: dict[str, Any]) -> ServeView:
    """Serve as a RayService's status tells it; the pending cluster's when there is no other."""
    status = service.get("status") or {}
    generation = (service.get("metadata") or {}).get("generation")
    seen = status.get("observedGeneration")
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    upgrading = (conditions.get("UpgradeInProgress") or {}).get("status") == "True"
    active = status.get("activeServiceStatus") or {}
    pending = status.get("pendingServiceStatus") or {}
    listed = active.get("applicationStatuses") or pending.get("applicationStatuses") or {}
    trouble = ""
    for side in (active, pending):
        for condition in (side.get("rayClusterStatus") or {}).get("conditions") or ():
            # Pods that the API server refused: quotas, Pod Security.
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
                trouble = f"{condition.get('reason')}: {condition.get('message')}"
    return ServeView(
        {name: _application(entry) for name, entry in listed.items()},
        behind=generation is not None and seen is not None and seen < generation,
        upgrading=upgrading,
        trouble=trouble,
    )


def _application(entry: dict[str, Any]) -> tuple[str, str]:
    message = str(entry.get("message") or "")
    for name, deployment in (entry.get("serveDeploymentStatuses") or {}).items():
        if deployment.get("status") in ("UNHEALTHY", "DEPLOY_FAILED") and deployment.get("message"):
            message = f"{name}: {deployment['message']}"
    return str(entry.get("status") or "?"), message


def progress(
    pods: list[PodView], serve: ServeView, application: str, workers: dict[str, int]
) -> tuple[bool, str, str]:
    """Whether all of it runs, what is waited for, and why it never will.

    Args:
        pods: The service's pods.
        serve: What Serve says.
        application: The application's name.
        workers: How many workers each phase is to have.
    """
    fatal = next((f"{pod.name}: {pod.fatal}" for pod in pods if pod.fatal), "") or serve.trouble
    status, message = serve.applications.get(application, ("", ""))
    if status == "DEPLOY_FAILED":
        fatal = f"Serve says DEPLOY_FAILED: {message}"
    wanted = {"head": 1, **workers}
    counts = {
        phase: sum(p.ready for p in pods if p.phase == phase and p.status != "Terminating")
        for phase in wanted
    }
    odd = sorted({f"{p.name} {p.status}" for p in pods if not p.ready})
    text = ", ".join(f"{phase} {counts[phase]}/{count}" for phase, count in wanted.items())
    text += f", Serve {status or 'not there yet'}"
    if status in ("UNHEALTHY", "DEPLOYING") and message:
        text += f" ({message[:120]})"
    if odd:
        text += "; " + ", ".join(odd[:4])
    there = all(counts[phase] >= count for phase, count in wanted.items())
    runs = there and status == "RUNNING" and not serve.behind and not serve.upgrading
    return runs, text, "" if runs else fatal
