"""Every port of a pod, in one place: `ray start` is told of it, and the NetworkPolicy names it.

Ray picks most of its ports at random unless it is told; a policy could then only allow all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.schema import Engines


@dataclass(frozen=True)
class PortRange:
    """Ports from `low` to `high`, both included."""

    name: str
    low: int
    high: int

    def meets(self, other: PortRange) -> bool:
        """Whether a port is in both."""
        return self.low <= other.high and other.low <= self.high


GCS = 6379
DASHBOARD = 8265
CLIENT = 10_001
SERVE = 8000
METRICS = 8080
AGENT_HTTP = 52_365
"""Ray's agent on each node: `/api/healthz`. Ray's own default; the probes and KubeRay look here."""
OBJECT_MANAGER = 8076
NODE_MANAGER = 8077
AGENT_GRPC = 8078
RUNTIME_ENV_AGENT = 8079
# Ray's default for workers is 10002 to 19999, which holds the engines' range.
WORKERS = PortRange("ray workers", 10_002, 17_999)
# HAProxy on one node talks to a gateway's replica on another (ray 2.60 serve/_private/constants.py,
# RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT and MAX).
DIRECT_INGRESS = PortRange("serve direct ingress", 30_000, 31_000)

HEAD_PARAMS = {"port": str(GCS), "dashboard-host": "0.0.0.0", "dashboard-port": str(DASHBOARD)}  # noqa: S104
NODE_PARAMS = {
    "object-manager-port": str(OBJECT_MANAGER),
    "node-manager-port": str(NODE_MANAGER),
    "dashboard-agent-grpc-port": str(AGENT_GRPC),
    "dashboard-agent-listen-port": str(AGENT_HTTP),
    "runtime-env-agent-port": str(RUNTIME_ENV_AGENT),
    "metrics-export-port": str(METRICS),
    "min-worker-port": str(WORKERS.low),
    "max-worker-port": str(WORKERS.high),
}
"""For `ray start` on every node, as text: KubeRay takes no numbers."""


def engine_ranges(engines: Engines) -> tuple[PortRange, PortRange]:
    """The engines' HTTP ports, and NIXL's side channel."""
    return (
        PortRange("engines", engines.port_min, engines.port_max),
        PortRange(
            "nixl side channel", engines.side_channel_port_min, engines.side_channel_port_max
        ),
    )


def between_pods(engines: Engines) -> list[PortRange]:
    """What pods of one deployment open to each other."""
    single = {
        "gcs": GCS,
        "serve": SERVE,
        "object manager": OBJECT_MANAGER,
        "node manager": NODE_MANAGER,
        "agent grpc": AGENT_GRPC,
        "runtime env agent": RUNTIME_ENV_AGENT,
        "dashboard": DASHBOARD,
        "agent http": AGENT_HTTP,
    }
    fixed = [PortRange(name, port, port) for name, port in single.items()]
    return [*fixed, WORKERS, DIRECT_INGRESS, *engine_ranges(engines)]


def colliding(engines: Engines) -> Iterator[tuple[str, str]]:
    """What is wrong with the engines' ranges in such a pod: message and key below `engines`."""
    http, side = engine_ranges(engines)
    others = [
        WORKERS,
        DIRECT_INGRESS,
        *(PortRange("Ray", p, p) for p in (GCS, DASHBOARD, CLIENT, SERVE, METRICS, AGENT_HTTP)),
    ]
    for mine, key in ((http, "port_min"), (side, "side_channel_port_min")):
        for other in others:
            if mine.meets(other):
                theirs = f"{other.name}'s {other.low} to {other.high}"
                yield f"ports {mine.low} to {mine.high} meet {theirs}", key
    if http.meets(side):
        yield "the engines' ports and the side channel's have some in common", "port_min"
