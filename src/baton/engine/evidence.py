"""What the worker's NIXL agent really created, asked of the worker itself.

vLLM mixes `worker_extension_cls` into its worker class (vLLM 0.29,
`v1/worker/worker_base.py`), so `baton_transfer_evidence` can be called on every worker with
`collective_rpc`. A log line says what was asked for; this says what is there.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from baton.engine import fabric
from baton.engine.amx import allow_amx
from baton.engine.lease_deadline import checks_lease
from baton.engine.startup import worker_notes
from baton.engine.ucx_notes import read_notes
from baton.spec.lease import TransferEvidence
from baton.spec.transfer import WorkerFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.spec.transfer import LibfabricRails

WORKER_EXTENSION = "baton.engine.evidence.WorkerEvidence"
VLLM_KV_LEASE_S = 30.0
"""VLLM 0.29's default (nixl/base_scheduler.py)."""


class WorkerEvidence:
    """Mixed into vLLM's worker. The prefix `baton_` keeps it from hiding a name of vLLM's."""

    def baton_start_notes(self) -> dict[str, float]:
        """When this worker came to which point of its start."""
        return worker_notes()

    def baton_transfer_evidence(self) -> dict[str, Any]:
        """Backends that this worker's NIXL agent holds, and the buffer device of its connector."""
        # The replica asks before its first request, so this also covers an environment in which
        # Baton is on the path but not installed, and vLLM finds no plugin.
        allow_amx()
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        if not has_kv_transfer_group():
            return {}
        connector = get_kv_transfer_group()
        worker = getattr(connector, "connector_worker", None)
        agent = getattr(worker, "nixl_wrapper", None)
        return {
            "connector": type(connector).__name__,
            "observed_backends": sorted(getattr(agent, "backends", {}) or {}),
            "kv_buffer_device": getattr(worker, "kv_buffer_device", None),
            "checks_lease": checks_lease(worker),
            "kv_bytes_per_token": _kv_bytes_per_token(worker),
            "compatibility": _compatibility(worker),
        }

    def baton_transfer_facts(self) -> dict[str, Any]:
        """Everything that this process can tell of its transfers now: `WorkerFacts` as data."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        rank = int(getattr(self, "rank", 0))
        if not has_kv_transfer_group():
            return WorkerFacts(rank=rank, net_counters=fabric.net_counters()).model_dump()
        connector = get_kv_transfer_group()
        return facts_of(
            getattr(connector, "connector_worker", None), type(connector).__name__, rank
        ).model_dump()


def facts_of(worker: Any, connector: str, rank: int) -> WorkerFacts:
    """What a NIXL worker of vLLM 0.29 (nixl/base_worker.py) shows, and the process around it."""
    agent = getattr(worker, "nixl_wrapper", None)
    notes = read_notes()
    return WorkerFacts(
        rank=rank,
        connector=connector,
        observed_backends=tuple(sorted(getattr(agent, "backends", {}) or {})),
        device=getattr(worker, "device_type", None),
        kv_buffer_device=getattr(worker, "kv_buffer_device", None),
        host_buffer=bool(getattr(worker, "use_host_buffer", False)),
        memory_type=getattr(worker, "nixl_memory_type", None),
        compatibility_hash=getattr(worker, "compat_hash", None),
        kv_bytes_per_token=_kv_bytes_per_token(worker),
        ucx=fabric.read_ucx_protocols(notes or ""),
        notes_ucx=notes is not None,
        libfabric=_rails(agent),
        rdma_devices_open=fabric.rdma_devices_open(),
        rdma_counters=fabric.rdma_counters(),
        net_counters=fabric.net_counters(),
    )


def _rails(agent: Any) -> LibfabricRails | None:
    if "LIBFABRIC" not in (getattr(agent, "backends", {}) or {}):
        return None
    metadata: bytes = agent.get_agent_metadata()
    return fabric.read_libfabric_rails(metadata)


def _kv_bytes_per_token(worker: Any) -> int:
    """Bytes of KV that this worker hands over for a token; 0 when it does not say.

    vLLM 0.29, nixl/base_worker.py `register_kv_caches`: bytes of a block in each registered region,
    and the tokens of such a block. Windows of hybrid models count in full, so it is the most.
    """
    lengths = getattr(worker, "block_len_per_layer", None)
    block_size = getattr(worker, "block_size", None)
    if not lengths or type(block_size) is not int or block_size < 1:
        return 0
    return int(sum(lengths) // block_size)


def kv_bytes_per_token(workers: Sequence[Mapping[str, Any]]) -> int:
    """Bytes of KV that a token has in all workers together; 0 unless each of them says."""
    each = [int(worker.get("kv_bytes_per_token") or 0) for worker in workers]
    return sum(each) if all(each) else 0


def gather_evidence(
    workers: Sequence[Mapping[str, Any]], kv_transfer_config: Mapping[str, Any] | None
) -> TransferEvidence:
    """Join what was asked for with what each worker found.

    `observed_backends` holds only backends that every worker has: one worker without the fast
    backend is enough to make a handoff slow.
    """
    config = kv_transfer_config or {}
    extra = config.get("kv_connector_extra_config") or {}
    # vLLM 0.29 (nixl/base_worker.py) takes UCX when no backend is named.
    requested = tuple(extra.get("backends") or ("UCX",)) if config else ()
    found = [set(worker.get("observed_backends", ())) for worker in workers if worker]
    observed = tuple(sorted(set.intersection(*found))) if found else ()
    devices = {worker.get("kv_buffer_device") for worker in workers if worker}
    return TransferEvidence(
        connector=config.get("kv_connector"),
        requested_backends=requested,
        observed_backends=observed,
        kv_buffer_device=devices.pop() if len(devices) == 1 else None,
        nixl_version=_nixl_version(),
        checks_lease=bool(workers) and all(worker.get("checks_lease") for worker in workers),
    )


def kv_lease_s(kv_transfer_config: Mapping[str, Any] | None) -> float:
    """How long this engine keeps an offer that nobody reads; 0 without a connector."""
    if kv_transfer_config is None:
        return 0.0
    extra = kv_transfer_config.get("kv_connector_extra_config") or {}
    return float(extra.get("kv_lease_duration") or VLLM_KV_LEASE_S)


def _compatibility(worker: Any) -> str:
    """VLLM's hash of what its peers must have alike; empty where the file says not to compare it.

    vLLM 0.29, nixl/base_worker.py: `enforce_handshake_compat` in the connector's extra config.
    """
    enforced = getattr(worker, "enforce_compat_hash", True)
    return str(getattr(worker, "compat_hash", None) or "") if enforced else ""


def compatibility(workers: Sequence[Mapping[str, Any]]) -> str:
    """The hash that all workers have; empty when one has none or another one."""
    each = {str(worker.get("compatibility") or "") for worker in workers}
    return each.pop() if len(each) == 1 else ""


def _nixl_version() -> str | None:
    try:
        return version("nixl")
    except PackageNotFoundError:
        return None
