"""What the `baton eks` verbs refuse, each kind with an id that `baton explain` knows."""

from __future__ import annotations

import inspect
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One kind of finding."""

    rule_id: str
    title: str
    why: str


KINDS: dict[str, Kind] = {}


def kind(rule_id: str, title: str, why: str) -> None:
    """Registers a kind of finding."""
    if rule_id in KINDS:
        raise ValueError(f"two kinds of findings are called {rule_id}")
    KINDS[rule_id] = Kind(rule_id, title, inspect.cleandoc(why))


kind(
    "EKS-001",
    "a setting that does not exist",
    "A misspelt setting would have no effect at all, and the cluster would come up with defaults.",
)
kind(
    "EKS-002",
    "a value that a setting cannot have",
    """
    Names, versions, zones and networks are held against what EKS, EC2 and Kubernetes take, before
    CloudFormation finds out ten minutes later.
    """,
)
kind(
    "EKS-003",
    "settings that do not go together",
    "Each is right by itself; together they name something that cannot be made.",
)
kind("EKS-004", "a settings file that cannot be read", "It holds `name: value` lines of YAML.")
kind(
    "EKS-010",
    "a file that is not one P/D application for GPUs",
    """
    A RayService has one worker group for each phase, sized for that phase's engines. So there must
    be exactly one application with prefill_config and decode_config, and its engines must ask for
    GPUs.
    """,
)
kind(
    "EKS-011",
    "an instance type that the engines do not fit on",
    """
    A worker is one pod with all GPUs of one replica (TP x PP), so that Ray cannot spread a replica
    over machines; the instance must have that many, of the kind that `accelerator_type` names.

    Source: figures of EC2's DescribeInstanceTypes, as moto carries them (the table has its date).
    """,
)
kind(
    "EKS-012",
    "EFA that the instance does not have, or cannot share out",
    """
    `transport.require: efa` needs an EFA interface in every worker. EFA interfaces are whole
    devices: four workers cannot share one.

    Source: EC2 `EfaInfo.MaximumEfaInterfaces`; the EFA device plugin's `vpc.amazonaws.com/efa`.
    """,
)
kind(
    "EKS-013",
    "too few nodes",
    """
    A replica without a node waits without end, and Serve never says RUNNING. `new-cluster` starts
    a second Ray cluster beside the first, which needs as many GPUs again.

    Source: KubeRay RayService `upgradeStrategy`.
    """,
)
kind(
    "EKS-014",
    "a memory limit below what a worker needs",
    """
    The page cache of a pod counts against its limit: with less than the checkpoint, loading reads
    everything twice, and host buffers for KV come on top.
    """,
)
kind(
    "EKS-015",
    "no image that can run the file",
    """
    AWS' public Ray LLM container knows `ray.serve.llm:build_pd_openai_app`. `baton:…` needs an
    image with Baton in it (deploy/image).
    """,
)
kind(
    "EKS-016",
    "a model setting that the file contradicts",
    "MODEL_ID and MODEL_SOURCE fill `${MODEL_ID}` and `${MODEL_SOURCE}`; a file that names another"
    " model would be deployed as it is, and not as the environment says.",
)
kind(
    "EKS-017",
    "an endpoint for everybody",
    "An ALB makes the endpoint reachable from outside the cluster. Without keys whoever finds it"
    " can use it.",
)
kind(
    "EKS-018",
    "port ranges that collide",
    """
    Pods listen on the engines' ports, the side channel's and Ray's own; the NetworkPolicy names
    each range.
    """,
)
