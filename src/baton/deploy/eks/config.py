"""The settings of a cluster: one typed value for each thing that somebody may want otherwise.

What the model is, how many replicas there are and how they talk stands in the user's YAML and is
not asked again here. Where a value comes from is `origins.py`'s business.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field

from baton.spec.schema import Frozen

AWS_RAY_LLM_IMAGE = "public.ecr.aws/deep-learning-containers/ray:serve-llm-cuda"
"""AWS' public Ray Serve LLM container; it knows Ray's builder, not Baton's."""
OLDEST_K8S = (1, 28)
# Names that people export already for the shell scripts which this replaces. Every other setting
# is read from `BATON_EKS_…`, so that no stray variable changes a cluster.
PLAIN_NAMES = frozenset(
    {
        "cluster_name", "region", "k8s_version", "namespace", "system_instance_type",
        "gpu_instance_type", "gpu_node_count", "gpu_az", "kuberay_version", "image", "model_id",
        "model_source",
    }
)  # fmt: skip


def _matching(pattern: str, wanted: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(wanted)
        return value

    return AfterValidator(check)


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _quoted_number(value: Any) -> Any:
    # `k8s_version: 1.34` in a file is a number to YAML; 1.30 would have lost its nought.
    if isinstance(value, float):
        raise ValueError(f'the version in quotes, such as "1.34": YAML reads {value} as a number')  # noqa: TRY004 - pydantic's way
    return value


def _version(value: str) -> str:
    major, minor = (int(part) for part in value.split("."))
    if (major, minor) < OLDEST_K8S:
        raise ValueError(f"{OLDEST_K8S[0]}.{OLDEST_K8S[1]} or newer, which EKS and KubeRay support")
    return value


def _cidr(value: str) -> str:
    network = ipaddress.ip_network(value)
    if network.version != 4 or not 16 <= network.prefixlen <= 24:  # noqa: PLR2004 - EC2's limits
        raise ValueError("an IPv4 network of /16 to /24, such as 10.42.0.0/16")
    return value


DnsName = Annotated[
    str,
    _matching(
        r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
        "a DNS label: lower-case letters, digits and `-`, 63 at most",
    ),
]
InstanceType = Annotated[
    str, _matching(r"[a-z0-9-]+\.[a-z0-9-]+", "an instance type, such as g6.8xlarge")
]
Zone = Annotated[
    str, _matching(r"[a-z]{2}(-[a-z]+)+-\d[a-z]", "an availability zone, such as us-west-2b")
]
Chart = Annotated[str, _matching(r"v?\d+\.\d+\.\d+[\w.+-]*", "a version, such as 1.7.0")]
Few = Annotated[int, Field(ge=1, le=1000)]


class EksSettings(Frozen, use_attribute_docstrings=True):
    """Everything that can be set. The docstring of a field is its help text."""

    cluster_name: Annotated[
        str,
        _matching(
            r"[A-Za-z][A-Za-z0-9-]{0,99}",
            "a letter, then letters, digits and `-`, 100 at most (CloudFormation's names)",
        ),
    ] = "baton"
    """Name of the EKS cluster."""
    region: Annotated[str, _matching(r"[a-z]{2}(-[a-z]+)+-\d", "a region, such as us-west-2")] = (
        "us-west-2"
    )
    """AWS region."""
    k8s_version: Annotated[
        str,
        BeforeValidator(_quoted_number),
        _matching(r"1\.\d{2}", 'a version, such as "1.34"'),
        AfterValidator(_version),
    ] = "1.34"
    """Kubernetes version of the cluster."""
    namespace: DnsName = "baton"
    """Kubernetes namespace of the service."""
    service_name: (
        Annotated[
            str,
            _matching(
                r"[a-z]([a-z0-9-]{0,39}[a-z0-9])?",
                "a DNS label of 41 characters at most (KubeRay adds to it)",
            ),
        ]
        | None
    ) = None
    """Name of the RayService; the application's name when left out."""
    flavor: Literal["kuberay", "plain"] = "kuberay"
    """Who runs Ray: the KubeRay operator, or plain Deployment and StatefulSets."""

    system_instance_type: InstanceType = "m7i.xlarge"
    """Instance type of the CPU nodes: operator, Ray head, cluster services."""
    system_node_count: Few = 2
    """How many CPU nodes."""
    gpu_instance_type: InstanceType = "g6.8xlarge"
    """Instance type of the GPU nodes."""
    prefill_instance_type: InstanceType | None = None
    """Of the prefill nodes, when they differ."""
    decode_instance_type: InstanceType | None = None
    """Of the decode nodes, when they differ."""
    gpu_node_count: Few = 2
    """GPU nodes in all. What is more than the replicas need goes to decode."""
    gpu_az: Zone | None = None
    """The one availability zone of all GPU nodes: EFA does not leave it. Zone a when left out."""
    availability_zones: Annotated[tuple[Zone, ...], BeforeValidator(_split)] = ()
    """Zones of the cluster's subnets, two at least; the GPU zone and a neighbour when left out."""
    gpu_taint: Literal["none", "nvidia.com/gpu", "aws.amazon.com/efa"] = "none"
    """Taint of the GPU nodes. It also decides whose EFA plugin runs: decision 0019."""
    placement_group: (
        Annotated[
            str, _matching(r"[A-Za-z0-9._-]{1,255}", "a name of letters, digits, `-`, `_` and `.`")
        ]
        | None
    ) = None
    """The cluster placement group of all GPU nodes; CLUSTER_NAME-gpu when left out."""
    capacity_reservation_id: (
        Annotated[str, _matching(r"cr-[0-9a-f]+", "the id of a capacity reservation, cr-…")] | None
    ) = None
    """A capacity reservation that the GPU nodes start in."""
    capacity_block: bool = False
    """Whether that reservation is a Capacity Block for ML."""
    vpc_cidr: Annotated[str, AfterValidator(_cidr)] = "10.42.0.0/16"
    """Address range of the VPC."""
    nat_gateway: Literal["single", "highly-available"] = "single"
    """One NAT gateway, or one in each zone."""
    node_volume_gib: Annotated[int, Field(ge=50, le=16_384)] = 300
    """Root volume of a GPU node: the image, and the model cache when it is on the host."""

    image: str | None = None
    """Container image of head and workers. AWS' Ray LLM container when left out (Ray's builder)."""
    model_id: str | None = None
    """What `${MODEL_ID}` in the YAML stands for."""
    model_source: str | None = None
    """What `${MODEL_SOURCE}` in the YAML stands for."""
    checkpoint_gib: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """Size of the checkpoint: the memory limit of a worker is held against it."""
    security: Literal["privileged", "ipc-lock"] = "privileged"
    """How workers may pin memory for EFA: privileged, or the one capability IPC_LOCK."""
    hugepages_mib: Annotated[int, Field(ge=0, le=1_048_576, multiple_of=2)] = 5120
    """Huge pages of each worker for libfabric; EFA nodes have 10,256 MiB. 0 for none."""
    model_cache: Literal["host", "claim", "none"] = "host"
    """Where downloaded models stay: the node's disk, a PersistentVolumeClaim, or nowhere."""
    model_cache_claim: DnsName | None = None
    """The claim, which every worker can mount (ReadWriteMany)."""
    hf_token_secret: DnsName | None = "hf-token"  # noqa: S105 - the secret's name
    """Secret whose key `token` is the Hugging Face token; used when it is there."""
    api_keys_secret: DnsName = "baton-api-keys"  # noqa: S105 - the secret's name
    """Secret with the callers' keys that `baton.auth` names, and the overflow provider's."""

    upgrade_strategy: Literal["none", "new-cluster"] = "none"
    """What KubeRay does when the Ray cluster itself changes. `new-cluster` needs twice the GPUs."""
    gcs_fault_tolerance: Literal["none", "redis"] = "none"
    """Whether workers outlive a lost head: Ray's state in a Redis."""
    redis_address: (
        Annotated[str, _matching(r"(rediss?://)?[\w.-]+:\d+", "host:port, or redis://host:port")]
        | None
    ) = None
    """That Redis."""
    redis_password_secret: DnsName | None = None
    """Secret whose key `password` is its password."""
    ingress: Literal["none", "internal", "internet-facing"] = "none"
    """Whether an ALB stands before the endpoint, and who can reach it."""
    ingress_host: str | None = None
    """Host name of the ALB's rule."""
    ingress_certificate_arn: (
        Annotated[str, _matching(r"arn:[\w-]+:acm:.+", "an ACM certificate's ARN")] | None
    ) = None
    """Certificate of the ALB; without it the ALB speaks plain HTTP."""
    monitoring_namespace: DnsName = "monitoring"
    """Where Prometheus runs."""

    kuberay_version: Annotated[Chart, AfterValidator(lambda text: text.removeprefix("v"))] = "1.7.0"
    """Version of the KubeRay operator and its chart."""
    nvidia_plugin_version: Chart = "0.19.0"
    """Version of the chart nvidia-device-plugin."""
    efa_plugin_version: Chart = "v0.5.30"
    """Version of the chart aws-efa-k8s-device-plugin."""
    alb_controller_version: Chart = "1.13.0"
    """Version of the chart aws-load-balancer-controller."""

    @property
    def zone(self) -> str:
        """The zone of the GPU nodes."""
        return self.gpu_az or f"{self.region}a"

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones of the subnets: EKS wants two at least."""
        if self.availability_zones:
            return self.availability_zones
        neighbour = "b" if self.zone.endswith("a") else "a"
        return tuple(sorted({self.zone, self.region + neighbour}))

    @property
    def placement_group_name(self) -> str:
        """One for both phases: KV goes from the one to the other."""
        return self.placement_group or f"{self.cluster_name}-gpu"

    def instance_type(self, role: str) -> str:
        """The instance type of one phase's nodes."""
        own = self.prefill_instance_type if role == "prefill" else self.decode_instance_type
        return own or self.gpu_instance_type


@dataclass(frozen=True)
class Contradiction:
    """Settings that are each right and do not go together; `names` begins with the one to blame."""

    names: tuple[str, ...]
    message: str
    allowed: str
    cure: str


def contradictions(settings: EksSettings) -> list[Contradiction]:
    """What does not go together, whatever the YAML says."""
    found: list[Contradiction] = []

    def add(names: tuple[str, ...], message: str, allowed: str, cure: str) -> None:
        found.append(Contradiction(names, message, allowed, cure))

    outside = [zone for zone in (settings.zone, *settings.zones) if zone[:-1] != settings.region]
    if outside:
        name = "gpu_az" if settings.zone in outside else "availability_zones"
        add(
            (name, "region"),
            f"{outside[0]} is no zone of {settings.region}",
            f"a zone of {settings.region}",
            f"set {name} to a zone such as {settings.region}a",
        )
    elif settings.zone not in settings.zones:
        add(
            ("availability_zones", "gpu_az"),
            f"the GPU nodes are to run in {settings.zone}, where the cluster has no subnet",
            f"zones with {settings.zone} among them",
            f"add {settings.zone} to availability_zones",
        )
    if len(set(settings.zones)) < 2:  # noqa: PLR2004 - EKS wants subnets in two zones
        add(
            ("availability_zones",),
            "EKS wants subnets in two zones at least",
            "two zones or more",
            "name a second zone, or leave availability_zones out",
        )
    if settings.model_cache == "claim" and settings.model_cache_claim is None:
        add(
            ("model_cache",),
            "model_cache is `claim`, and no claim is named",
            "model_cache_claim, a ReadWriteMany claim",
            "set model_cache_claim, or model_cache: host",
        )
    if settings.gcs_fault_tolerance == "redis" and settings.redis_address is None:
        add(
            ("gcs_fault_tolerance",),
            "gcs_fault_tolerance is `redis`, and no Redis is named",
            "redis_address, host:port",
            "set redis_address, or gcs_fault_tolerance: none",
        )
    if settings.gcs_fault_tolerance == "redis" and settings.flavor == "plain":
        add(
            ("gcs_fault_tolerance", "flavor"),
            "the plain flavour has no GCS fault tolerance",
            "flavor: kuberay",
            "set flavor: kuberay, or gcs_fault_tolerance: none",
        )
    if settings.capacity_block and settings.capacity_reservation_id is None:
        add(
            ("capacity_block",),
            "capacity_block is set, and no reservation is named",
            "capacity_reservation_id, cr-…",
            "set capacity_reservation_id",
        )
    return found


def env_name(name: str) -> str:
    """The environment variable of a setting."""
    return name.upper() if name in PLAIN_NAMES else f"BATON_EKS_{name.upper()}"


def flag_name(name: str) -> str:
    """The command line flag of a setting."""
    return "--" + name.replace("_", "-")


def choices(name: str) -> tuple[str, ...]:
    """The values that a setting may have, when they are a few words."""
    kind = EksSettings.model_fields[name].annotation
    return tuple(map(str, get_args(kind))) if get_origin(kind) is Literal else ()
