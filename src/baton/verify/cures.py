"""What to do about a fabric that is not the right one, or too slow. Pure text, by what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from baton.spec.transfer import Fabric
    from baton.verify.evidence import Numbers, PairEvidence, Require


def of_fabric(evidence: PairEvidence, seen: Fabric, required: Require) -> tuple[str, str]:
    """Fact and cure for KV that travels on another fabric than is required."""
    backend = _backend(evidence)
    fact = f"{backend} runs on {seen}, and {required} is required"
    if required == "efa":
        return fact, _efa(evidence, backend)
    if required == "cuda_ipc":
        return fact, _cuda_ipc(evidence)
    if required == "rdma":
        return fact, (
            "give the engines an RDMA device (a resource such as rdma/hca, /dev/infiniband in the"
            " container, IPC_LOCK) and leave UCX_TLS and UCX_NET_DEVICES unset"
        )
    if required == "shm":
        return fact, (
            "run both engines on one machine in the same PID namespace, with a /dev/shm that is"
            " large enough, and leave UCX_TLS unset"
        )
    return fact, "set transport.require to what the deployment runs on, or UCX_TLS=tcp"


def _backend(evidence: PairEvidence) -> str:
    facts = evidence.decode.facts
    held = [] if facts is None else sorted({b for w in facts.workers for b in w.observed_backends})
    return "LIBFABRIC" if "LIBFABRIC" in held else held[0] if held else "the transfer"


def _efa(evidence: PairEvidence, backend: str) -> str:
    if backend != "LIBFABRIC":
        return (
            "set kv_connector_extra_config.backends: [LIBFABRIC] in both roles: without it vLLM"
            " takes UCX"
        )
    facts = evidence.decode.facts
    devices = facts is not None and any(
        w.rdma_counters or w.rdma_devices_open for w in facts.workers
    )
    if devices:
        return (
            "the pod has an RDMA device and libfabric did not take it: use libfabric from the EFA"
            " installer, which has the efa provider, and see `fi_info -p efa` in the pod"
        )
    return (
        "no EFA device in the pod: request vpc.amazonaws.com/efa: 1 (and hugepages-2Mi), on an"
        " instance type that has EFA, with the EFA device plugin"
    )


def _cuda_ipc(evidence: PairEvidence) -> str:
    if any(
        engine.facts is not None and any(worker.device == "cpu" for worker in engine.facts.workers)
        for engine in (evidence.prefill, evidence.decode)
    ):
        return "these engines compute on the CPU: cuda_ipc is between GPUs of one machine"
    if evidence.prefill.node != evidence.decode.node:
        return "cuda_ipc works on one machine only: place both engines on one, or require efa"
    return (
        "set UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on for the engines, or use NixlPushConnector; and leave"
        " PYTORCH_CUDA_ALLOC_CONF=expandable_segments out, whose memory cuda_ipc cannot map"
    )


def of_speed(evidence: PairEvidence, speeds: Numbers, seen: Fabric | None) -> str:
    """Cure for handoffs that are slower than they must be."""
    raw, needed = speeds.raw_gb_per_s, speeds.needed_gb_per_s
    wire_is_fast = raw is not None and needed is not None and raw >= needed
    if wire_is_fast:
        return (
            "the wire is fast enough and the engines are not: try a larger block_size, or"
            " kv_connector_extra_config.enable_cross_layers_blocks"
        )
    if seen == "tcp" and _on_gpus(evidence):
        same = evidence.prefill.node == evidence.decode.node
        return _cuda_ipc(evidence) if same else _efa(evidence, _backend(evidence))
    if seen in ("tcp", None):
        return (
            "the network between these places is too slow for P/D: place both engines on one"
            " machine, or join them by a faster network; until then set disaggregate.mode: auto"
        )
    return "set disaggregate.mode: auto, so that prompts are prefilled where that is quicker"


def _on_gpus(evidence: PairEvidence) -> bool:
    facts = evidence.decode.facts
    return facts is not None and any(worker.device == "cuda" for worker in facts.workers)
