"""What an engine says of its KV transfer when it is asked: facts of its workers, no judgement.

An engine's workers fill this in (`baton.engine.evidence`), gateways hand it on, `baton.verify`
judges it. Whatever could not be found out is None or empty, and never a guess.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from baton.spec.schema import Role

Operation = Literal["get", "put", "other"]
Fabric = Literal["efa", "rdma", "cuda_ipc", "shm", "tcp"]
"""What the bytes of KV travel on. `rdma`: InfiniBand or RoCE verbs. `shm`: memory of one machine,
mapped or copied by the kernel."""


class _Fact(BaseModel):
    # Newer engines may say more than an older reader knows: extra keys are ignored here.
    model_config = ConfigDict(frozen=True, extra="ignore")


class UcxProtocol(_Fact):
    """How UCX does one operation for sizes of one range: a line of its `UCX_PROTO_INFO` table."""

    operation: Operation
    """`get` is a read of the peer's memory, `put` a write to it."""
    scope: str = ""
    """`intra-node`, `inter-node` or `self`, in UCX's own words."""
    local: str = ""
    """Memory here, such as `host` or `cuda/GPU0`."""
    remote: str = ""
    sizes: str = ""
    how: str = ""
    """`zero-copy`, `software emulation`, …"""
    transport: str = ""
    """Such as `tcp/lo`, `cma/memory`, `cuda_ipc/cuda`, `rc_mlx5/mlx5_0:1`."""


class LibfabricRails(_Fact):
    """The endpoints that the worker's LIBFABRIC backend published for its peers."""

    rails: int = 0
    provider: str | None = None
    """`tcp` or `efa`, read from the form of the endpoints' own addresses."""


class WorkerFacts(_Fact):
    """One worker process of an engine."""

    rank: int = 0
    connector: str | None = None
    observed_backends: tuple[str, ...] = ()
    """What its NIXL agent holds."""
    device: str | None = None
    """What the model computes on: `cpu`, `cuda`, …"""
    kv_buffer_device: str | None = None
    host_buffer: bool = False
    """Whether KV is copied to the host's memory and handed over from there."""
    memory_type: str | None = None
    """NIXL's name for the memory that is registered: `DRAM` or `VRAM`."""
    compatibility_hash: str | None = None
    kv_bytes_per_token: int = 0
    ucx: tuple[UcxProtocol, ...] = ()
    """What UCX has chosen so far; empty before the first handoff, and where nothing was noted."""
    notes_ucx: bool = False
    """Whether UCX was told to note what it chooses."""
    libfabric: LibfabricRails | None = None
    rdma_devices_open: tuple[str, ...] = ()
    """Device files of `/dev/infiniband` that the process has open."""
    rdma_counters: dict[str, dict[str, int]] = {}
    """Byte and packet counters of `/sys/class/infiniband`, by `device/port`."""
    net_counters: dict[str, dict[str, int]] = {}
    """`rx_bytes` and `tx_bytes` of the network interfaces that the process sees."""


class EngineFacts(_Fact):
    """One engine, by its workers."""

    role: Role | None = None
    engine_id: str = ""
    node: str = ""
    simulated: bool = False
    connector: str | None = None
    requested_backends: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    workers: tuple[WorkerFacts, ...] = ()
