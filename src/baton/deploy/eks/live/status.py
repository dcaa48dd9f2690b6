"""What runs where: nodes with their GPUs and EFA interfaces, pods, Serve. Reading only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.deploy.eks.live.aws import AwsFailed
from baton.deploy.eks.live.eyes_kube import Unseen
from baton.deploy.eks.live.states import State
from baton.deploy.eks.live.waits import ServeView

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.deploy.eks.live.observe import Eyes
    from baton.deploy.eks.live.parts import Part
    from baton.deploy.eks.live.states import Seen
    from baton.deploy.eks.live.waits import PodView

GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"


@dataclass(frozen=True)
class NodeView:
    """One node, with what it offers and what its pods have taken."""

    name: str
    type: str
    zone: str
    phase: str
    """`prefill`, `decode`, or `system`."""
    ready: bool
    gpus: int
    gpus_taken: int
    efa: int
    efa_taken: int


@dataclass(frozen=True)
class Status:
    """The whole deployment as it was seen; `unseen` says what could not be."""

    parts: tuple[tuple[Part, Seen], ...]
    nodes: tuple[NodeView, ...] = ()
    pods: tuple[PodView, ...] = ()
    serve: ServeView = field(default_factory=ServeView)
    unseen: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether all is there, ready, and seen."""
        return not self.unseen and all(seen.state is State.READY for _, seen in self.parts)


def node_views(nodes: Iterable[dict[str, Any]], pods: Iterable[dict[str, Any]]) -> list[NodeView]:
    """Nodes, and what pods of any namespace have taken of them."""
    taken: dict[tuple[str, str], int] = {}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            continue
        spec = pod.get("spec") or {}
        for container in spec.get("containers") or ():
            limits = (container.get("resources") or {}).get("limits") or {}
            for resource in (GPU, EFA):
                key = (str(spec.get("nodeName") or ""), resource)
                taken[key] = taken.get(key, 0) + int(limits.get(resource, 0))
    return [_node_view(node, taken) for node in nodes]


def _node_view(node: dict[str, Any], taken: dict[tuple[str, str], int]) -> NodeView:
    meta, status = node.get("metadata") or {}, node.get("status") or {}
    labels = meta.get("labels") or {}
    offers = status.get("allocatable") or {}
    conditions = {c.get("type"): c.get("status") for c in status.get("conditions") or ()}
    name = str(meta.get("name"))
    return NodeView(
        name,
        str(labels.get("node.kubernetes.io/instance-type", "?")),
        str(labels.get("topology.kubernetes.io/zone", "?")),
        str(labels.get("baton.dev/phase") or labels.get("role") or "-"),
        conditions.get("Ready") == "True",
        int(offers.get(GPU, 0)),
        taken.get((name, GPU), 0),
        int(offers.get(EFA, 0)),
        taken.get((name, EFA), 0),
    )


def look(eyes: Eyes, parts: list[Part]) -> Status:
    """Looks at everything."""
    seen = tuple((part, eyes.see(part)) for part in parts)
    unseen = [f"{p.name}: {s.detail}" for p, s in seen if s.state is State.UNKNOWN]
    nodes: list[NodeView] = []
    pods: list[PodView] = []
    serve = ServeView()
    cluster = next((s for p, s in seen if p.kind == "cluster"), None)
    if cluster is None or cluster.state is State.READY:
        try:
            nodes = see_nodes(eyes)
            pods = eyes.running_pods()
            service = next(p for p in parts if p.kind == "service")
            space = eyes.layout.settings.namespace
            thing = eyes.get(service.wants["kind"], service.wants["name"], "-n", space)
            serve = ServeView() if thing is None else eyes.serve(thing)
        except (Unseen, AwsFailed) as exc:
            unseen.append(str(exc))
    return Status(seen, tuple(nodes), tuple(pods), serve, tuple(dict.fromkeys(unseen)))


def see_nodes(eyes: Eyes) -> list[NodeView]:
    """The cluster's nodes.

    Raises:
        Unseen: when they cannot be listed.
    """
    listed = eyes.get("nodes") or {}
    pods = eyes.get("pods", "--all-namespaces") or {}
    return node_views(listed.get("items") or (), pods.get("items") or ())


def efa_faults(nodes: Iterable[NodeView], wanted: dict[str, int]) -> list[str]:
    """GPU nodes that offer fewer EFA interfaces than their type has.

    Args:
        nodes: What was seen.
        wanted: Interfaces of a node, by phase.
    """
    return [
        f"{node.name} ({node.type}) offers {node.efa} EFA interfaces of {wanted[node.phase]}"
        for node in nodes
        if node.phase in wanted and node.efa < wanted[node.phase]
    ]
