"""How an engine's memory is spent: weights, KV cache, and what context that leaves.

For a GPU engine the room is `gpu_memory_utilization` of each GPU; for a CPU engine the KV space of
`VLLM_CPU_KVCACHE_SPACE`. Activations and CUDA graphs (one to three GiB on a GPU) are not counted:
vLLM measures them when it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from baton.spec.machine import GIB, Machine, in_gib
from baton.spec.view import AppView

if TYPE_CHECKING:
    from baton.spec.checked import CheckedApp
    from baton.spec.model_facts import ModelFacts
    from baton.spec.view import RoleView

DEFAULT_UTILIZATION = 0.92
"""vLLM 0.29 `CacheConfig.gpu_memory_utilization`."""
ENGINE_OVERHEAD_BYTES = int(1.3 * GIB)
"""Python, PyTorch and vLLM in the processes of a CPU engine: an estimate, not measured."""

# Memory of the accelerators that Ray names, in GiB as the driver reports it (rounded down).
_GPU_GIB = {
    "T4": 15, "V100": 16, "P100": 16, "P4": 7, "K80": 11, "A10G": 22, "A10": 22, "L4": 22,
    "L40S": 44, "A100": 39, "A100-40G": 39, "A100-80G": 79, "H100": 79, "H200": 139, "H20": 95,
    "B200": 178, "B300": 268,
}  # fmt: skip


@dataclass(frozen=True)
class RoleBudget:
    """The memory of one engine of a role. Sizes in bytes for one GPU, or for the CPU engine."""

    role: str
    device: str
    """`GPU` or `CPU`."""
    replicas: int
    workers: int
    weights_bytes: int
    kv_bytes_per_token: int
    context_tokens: int | None
    """`max_model_len`, or the model's own limit."""
    kv_bytes_of_context: int | None
    """KV of one sequence of that length."""
    room_bytes: int | None
    """What weights and KV may take together (GPU), or KV alone (CPU). None when unknown."""
    kv_room_bytes: int | None
    concurrency: int
    largest_context: int | None
    """The largest `max_model_len` at which `concurrency` full sequences fit."""

    def as_dict(self) -> dict[str, Any]:
        """For `--format json`."""
        return {key: getattr(self, key) for key in self.__dataclass_fields__}


def budgets_of(app: CheckedApp, machine: Machine | None) -> list[RoleBudget] | None:
    """The budgets of both roles, or None when nothing is known of the model."""
    if app.facts is None:
        return None
    view = AppView({"import_path": app.import_path}, (), app.args, (), machine)
    return [budget_of(role, app.facts, view) for role in view.roles]


def budget_of(role: RoleView, facts: ModelFacts, app: AppView) -> RoleBudget:
    """The budget of one role of a checked application."""
    kv_dtype = str(role.engine.get("kv_cache_dtype") or "auto")
    workers = role.tp * role.pp
    # MLA's KV is whole on every worker; heads are split, and replicated beyond their number.
    split = 1 if facts.is_mla else max(min(role.tp, facts.kv_heads), 1)
    share = split * role.pp
    context = role.max_model_len or facts.max_position_embeddings
    weights = facts.weights_bytes // workers
    room = _room(role, app.machine)
    kv_room = room if role.on_cpu else (None if room is None else room - weights)
    concurrency = _asked_concurrency(role, app)
    return RoleBudget(
        role=role.role,
        device="CPU" if role.on_cpu else "GPU",
        replicas=role.num_replicas,
        workers=workers,
        weights_bytes=facts.weights_bytes if role.on_cpu else weights,
        kv_bytes_per_token=facts.kv_bytes_per_token(kv_dtype) // share,
        context_tokens=context,
        kv_bytes_of_context=None if context is None else facts.kv_bytes(context, kv_dtype) // share,
        room_bytes=room,
        kv_room_bytes=kv_room,
        concurrency=concurrency,
        largest_context=_largest(facts, kv_dtype, share, kv_room, concurrency),
    )


def _room(role: RoleView, machine: Machine | None) -> int | None:
    if role.on_cpu:
        return cpu_kv_bytes(role)
    share = role.engine.get("gpu_memory_utilization", DEFAULT_UTILIZATION)
    size = gpu_bytes(role, machine)
    if size is None or not isinstance(share, (int, float)):
        return None
    return int(size * share)


def gpu_bytes(role: RoleView, machine: Machine | None) -> int | None:
    """Memory of the GPU that the role would get; None when nothing tells."""
    if machine is not None and machine.gpus and machine.gpu_memory_bytes:
        return machine.gpu_memory_bytes
    kind = role.config.get("accelerator_type")
    gib = _GPU_GIB.get(kind) if isinstance(kind, str) else None
    return None if gib is None else gib * GIB


def cpu_kv_bytes(role: RoleView) -> int | None:
    """KV space of a CPU engine, None when vLLM decides from the machine's memory."""
    # vLLM 0.29 `platforms/cpu.py`: the variable wins.
    if space := str(role.env_vars.get("VLLM_CPU_KVCACHE_SPACE", "")):
        return int(space) * GIB if space.isdigit() and int(space) > 0 else None
    kv = role.engine.get("kv_cache_memory_bytes")
    return kv if isinstance(kv, int) and not isinstance(kv, bool) else None


def _asked_concurrency(role: RoleView, app: AppView) -> int:
    """Sequences at once: `max_num_seqs`, or `admission.max_inflight` if the file sets it, or 1."""
    asked = role.engine.get("max_num_seqs")
    if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0:
        return asked
    block = app.args.get("baton")
    admission = block.get("admission") if isinstance(block, dict) else None
    if isinstance(admission, dict) and "max_inflight" in admission:
        return max(app.baton.admission.max_inflight // max(role.num_replicas, 1), 1)
    return 1


def _largest(
    facts: ModelFacts, kv_dtype: str, share: int, room: int | None, concurrency: int
) -> int | None:
    if room is None or not facts.layers or not facts.kv_bytes_per_token(kv_dtype):
        return None
    low, high = 0, facts.max_position_embeddings or 1 << 24
    while low < high:
        middle = (low + high + 1) // 2
        if facts.kv_bytes(middle, kv_dtype) // share * concurrency <= room:
            low = middle
        else:
            high = middle - 1
    return low


def lines_of(budget: RoleBudget) -> list[str]:
    """A budget as text."""
    unit = "per GPU" if budget.device == "GPU" else "per engine"
    rows = [("weights", f"{in_gib(budget.weights_bytes)} {unit}")]
    rows.append(("KV per token", f"{budget.kv_bytes_per_token / 1024:.1f} KiB {unit}"))
    if budget.context_tokens is not None and budget.kv_bytes_of_context is not None:
        rows.append(
            (
                "KV of one sequence",
                f"{in_gib(budget.kv_bytes_of_context)} for {budget.context_tokens:,} tokens",
            )
        )
    if budget.room_bytes is None or budget.kv_room_bytes is None:
        why = (
            "VLLM_CPU_KVCACHE_SPACE is not set"
            if budget.device == "CPU"
            else "no GPU here and no accelerator_type in the file"
        )
        rows.append(("room for KV", f"unknown: {why}"))
    else:
        rows.append(("room for KV", f"{in_gib(max(budget.kv_room_bytes, 0))} {unit}"))
        if budget.kv_bytes_of_context:
            fit = max(budget.kv_room_bytes, 0) // budget.kv_bytes_of_context
            rows.append(("full sequences at once", f"{fit:,}"))
    if budget.largest_context is not None:
        rows.append(
            (
                "largest max_model_len",
                f"{budget.largest_context:,} tokens with {budget.concurrency} at once",
            )
        )
    head = f"{budget.role}: {budget.replicas} x {budget.workers} {budget.device} worker"
    return [head, *(f"  {name:<24}{value}" for name, value in rows)]
