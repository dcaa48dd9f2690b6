"""What a file asks for against what a machine has. Only when the machine is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from baton.spec.budget import (
    DEFAULT_UTILIZATION,
    ENGINE_OVERHEAD_BYTES,
    RoleBudget,
    budget_of,
    cpu_kv_bytes,
)
from baton.spec.faults import shown
from baton.spec.machine import in_gib
from baton.spec.rules.registry import Finding, rule
from baton.spec.view import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView, RoleView


@rule("BTN-180", "error", "more GPUs than this machine has")
def gpus(app: AppView) -> Iterator[Finding]:
    """Ray waits without end for a placement group that no node can hold.

    Checked against this machine when it is where the file would run; a RayService manifest and
    `--target cluster` mean another one.

    Bundles that ask for a GPU are a demand in the file's own words, and refused. Without
    `placement_group_config` Ray takes a GPU for each worker all the same; but then the file says
    nothing of hardware, and is as likely being looked at on a laptop before it goes to a GPU box:
    a note for `validate`. `up`, which would wait without end, refuses both.

    Source: ray 2.60 `llm_config.py`, `_resolve_accelerator_config` ("Default to GPUConfig");
    `serve/_private/deployment_scheduler.py` creates the placement group and waits for it.
    """
    machine = app.machine
    if machine is None:
        return
    wanted = sum(role.gpus * role.num_replicas for role in app.roles)
    if wanted <= machine.gpus:
        return
    for role in app.roles:
        if not role.gpus:
            continue
        asked = "placement_group_config" in role.config
        count = f" x {role.num_replicas} replicas" if role.num_replicas > 1 else ""
        yield Finding(
            role.at("placement_group_config") if asked else role.path,
            f"{role.role} asks for {role.gpus:g} GPU{count} and this machine has {machine.gpus}",
            found=shown(role.config["placement_group_config"])
            if asked
            else "no placement_group_config: Ray takes one GPU a worker",
            allowed=f"{machine.gpus} GPUs in all" if machine.gpus else "no GPU here",
            cure="add --on cpu to run it on this machine's CPU"
            + ("" if app.starting else ", or --target cluster to check it for another machine"),
            at_value=asked,
            severity=None if asked or app.starting else "note",
        )


@rule("BTN-181", "error", "more memory than this machine has")
def memory(app: AppView) -> Iterator[Finding]:
    """Every CPU engine holds the weights once, its KV cache, and 1.3 GiB for its processes.

    Past the machine's memory the kernel kills one of them.

    The KV cache is `VLLM_CPU_KVCACHE_SPACE` GiB, or `kv_cache_memory_bytes`; left out, vLLM takes
    `gpu_memory_utilization` of the memory of each engine's NUMA node for weights and KV together.

    Source: vLLM 0.29 `platforms/cpu.py` (`VLLM_CPU_KVCACHE_SPACE`), `v1/worker/cpu_worker.py`.
    """
    machine = app.machine
    if machine is None or not machine.memory_bytes:
        return
    parts = [
        (role, role.num_replicas * cpu_engine_bytes(role, app, machine.memory_bytes))
        for role in app.roles
        # Without the model only a KV cache that the file sets is certain.
        if role.on_cpu and (app.facts is not None or cpu_kv_bytes(role) is not None)
    ]
    needed = sum(size for _, size in parts)
    if needed <= machine.memory_bytes or not parts:
        return
    weights = "" if app.facts is None else f" (weights {in_gib(app.facts.weights_bytes)} each)"
    yield Finding(
        parts[0][0].path,
        f"the engines need {in_gib(needed)} and this machine has {in_gib(machine.memory_bytes)}",
        found=" + ".join(f"{role.role} {in_gib(size)}" for role, size in parts) + weights,
        allowed=in_gib(machine.memory_bytes),
        cure="lower VLLM_CPU_KVCACHE_SPACE in runtime_env.env_vars, or take a smaller model",
    )


def cpu_engine_bytes(role: RoleView, app: AppView, memory_bytes: int) -> int:
    """Memory that one CPU engine takes, in bytes."""
    weights = app.facts.weights_bytes if app.facts else 0
    kv = cpu_kv_bytes(role)
    if kv is not None:
        return weights + ENGINE_OVERHEAD_BYTES + kv
    share = role.engine.get("gpu_memory_utilization", DEFAULT_UTILIZATION)
    if isinstance(share, (int, float)):
        return ENGINE_OVERHEAD_BYTES + int(float(share) * memory_bytes)
    return weights + ENGINE_OVERHEAD_BYTES


@rule("BTN-182", "error", "weights that do not fit the GPU")
def weights_on_gpu(app: AppView) -> Iterator[Finding]:
    """Each GPU holds its share of the weights within `gpu_memory_utilization` of its memory.

    Only what is certain is refused: activations, which come on top, are not counted.

    Source: vLLM 0.29 `v1/worker/gpu_worker.py`, `determine_available_memory`: "No available memory
    for the cache blocks".
    """
    if app.facts is None or not app.facts.weights_bytes:
        return
    for role in app.roles:
        if role.on_cpu or role.engine.get("cpu_offload_gb"):
            continue
        budget = budget_of(role, app.facts, app)
        if budget.room_bytes is None or budget.weights_bytes < budget.room_bytes:
            continue
        yield Finding(
            role.path,
            f"{role.role} needs {in_gib(budget.weights_bytes)} of weights on each GPU, and"
            f" {in_gib(budget.room_bytes)} may be used",
            found=in_gib(budget.weights_bytes),
            allowed=f"less than {in_gib(budget.room_bytes)}",
            cure="raise tensor_parallel_size, or take a smaller or quantized model",
        )


@rule("BTN-183", "error", "a KV cache too small for one sequence")
def kv_for_one(app: AppView) -> Iterator[Finding]:
    """The KV cache must hold one sequence of `max_model_len`; vLLM refuses to start otherwise.

    Only what is certain is refused. `max_model_len: -1` lets vLLM find the largest that fits.

    Source: vLLM 0.29 `v1/core/kv_cache_utils.py`, `check_enough_kv_cache_memory`: "is larger than
    the available KV cache memory".
    """
    if app.facts is None or not app.facts.layers:
        return
    for role in app.roles:
        if whole(role.engine.get("max_model_len"), 0) == -1:
            continue
        budget = budget_of(role, app.facts, app)
        needed, room = budget.kv_bytes_of_context, budget.kv_room_bytes
        if needed is None or room is None or room <= 0 or needed <= room:
            continue
        setting = "VLLM_CPU_KVCACHE_SPACE" if role.on_cpu else "gpu_memory_utilization"
        yield Finding(
            role.engine_at("max_model_len"),
            f"{role.role} has {in_gib(room)} for KV, and one sequence of"
            f" {budget.context_tokens} tokens takes {in_gib(needed)}",
            found=str(budget.context_tokens),
            allowed=f"{_largest_for_one(budget, role, app)} or less",
            cure=f"set max_model_len: {_largest_for_one(budget, role, app)}, or raise {setting}",
            at_value=True,
        )


def _largest_for_one(budget: RoleBudget, role: RoleView, app: AppView) -> int:
    """The longest sequence that fits, whatever concurrency was asked for."""
    alone = replace(
        role, config={**role.config, "engine_kwargs": {**role.engine, "max_num_seqs": 1}}
    )
    largest = budget_of(alone, app.facts, app).largest_context if app.facts else None
    return largest if largest is not None else budget.context_tokens or 0
