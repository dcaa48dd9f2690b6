"""What is asked before anything is changed. Each fact is known, or unknown with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Known(Generic[T]):
    """It was asked, and answered."""

    value: T


@dataclass(frozen=True)
class Unknown:
    """It could not be asked, or not answered."""

    why: str


Fact = Known[T] | Unknown
NOT_ASKED = Unknown("not asked")


@dataclass(frozen=True)
class TypeFigures:
    """What EC2 itself says of an instance type."""

    vcpus: int
    gpus: int
    gpu_memory_mib: int
    efa_interfaces: int


@dataclass(frozen=True)
class ClusterFacts:
    """A cluster that is there."""

    version: str
    zones: frozenset[str]
    """Of its subnets."""
    ours: bool


@dataclass(frozen=True)
class ReservationFacts:
    """A capacity reservation."""

    state: str
    instance_type: str
    zone: str
    free: int


@dataclass(frozen=True)
class Facts:
    """Everything that the checks judge."""

    account: Fact[str] = NOT_ASKED
    tools: dict[str, Fact[tuple[int, ...] | None]] = field(default_factory=dict)
    """Version of each tool; None for one that is not installed."""
    versions: Fact[dict[str, str]] = NOT_ASKED
    """Kubernetes versions that EKS offers, and how each is supported."""
    quotas: dict[str, Fact[float]] = field(default_factory=dict)
    """vCPUs by quota code."""
    running_vcpus: Fact[dict[str, int]] = NOT_ASKED
    """Of instances that are not this cluster's, by quota code."""
    offered: Fact[dict[str, frozenset[str]]] = NOT_ASKED
    """Zones that offer a type."""
    types: Fact[dict[str, TypeFigures]] = NOT_ASKED
    cluster: Fact[ClusterFacts | None] = NOT_ASKED
    group_zones: Fact[frozenset[str]] = NOT_ASKED
    """Zones of the GPU node groups that are there."""
    reservation: Fact[ReservationFacts | None] = NOT_ASKED
    secret: Fact[bool] = NOT_ASKED
    """Whether the secret with the callers' keys is there."""
    environment: frozenset[str] = frozenset()
    """Names of the variables that are set here."""


# "Running On-Demand … instances", vCPUs (Service Quotas, service `ec2`).
STANDARD, G_VT, P = "L-1216C47A", "L-DB2E81BA", "L-417A185B"
QUOTA_NAMES = {
    STANDARD: "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
    G_VT: "Running On-Demand G and VT instances",
    P: "Running On-Demand P instances",
    "L-1945791B": "Running On-Demand Inf instances",
    "L-2C3B7624": "Running On-Demand Trn instances",
}


def quota_of(instance_type: str) -> str | None:
    """The code of the quota that a type counts against, None when it is none of these."""
    family = instance_type.partition(".")[0]
    if family.startswith("trn"):
        return "L-2C3B7624"
    if family.startswith("inf"):
        return "L-1945791B"
    if family.startswith(("g", "vt")):
        return G_VT
    if family.startswith("p"):
        return P
    return STANDARD if family[:1] in set("acdhimrtz") and not family.startswith("hpc") else None
