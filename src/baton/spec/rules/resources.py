"""What a file asks for against what a machine has. Only when the machine is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec.faults import shown
from baton.spec.machine import GIB, in_gib
from baton.spec.rules.registry import Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView, RoleView


@rule("BTN-180", "error", "more GPUs than this machine has")
def gpus(app: AppView) -> Iterator[Finding]:
    """Ray waits without end for a placement group that no node can hold.

    Checked against this machine when it is where the file would run; a RayService manifest and
    `--target cluster` mean another one. Engines that ask for GPUs only by Ray's default are
    reported as a note by `validate`.

    Source: ray 2.60 `llm_config.py`, `_resolve_accelerator_config` (GPU by default); a placement
    group stays pending.
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
            cure="add --on cpu to run it on this machine's CPU",
            at_value=asked,
            severity=None if asked else "note",
        )


@rule("BTN-181", "error", "more memory than this machine has")
def memory(app: AppView) -> Iterator[Finding]:
    """Every CPU engine holds the weights once, its KV cache, and 1.3 GiB for its three processes.

    Past the machine's memory the kernel kills one of them.

    The KV cache is `VLLM_CPU_KVCACHE_SPACE` GiB, or `kv_cache_memory_bytes`; left out, vLLM takes
    `gpu_memory_utilization` of the memory of each engine's NUMA node for weights and KV together.

    Source: vLLM 0.29 `platforms/cpu.py` (`VLLM_CPU_KVCACHE_SPACE`), `v1/worker/cpu_worker.py`.
    """
    machine = app.machine
    if machine is None or app.facts is None or not machine.memory_bytes:
        return
    parts = [
        (role, role.num_replicas * cpu_engine_bytes(role, app, machine.memory_bytes))
        for role in app.roles
        if role.on_cpu
    ]
    needed = sum(size for _, size in parts)
    if needed <= machine.memory_bytes or not parts:
        return
    weights = in_gib(app.facts.weights_bytes)
    yield Finding(
        parts[0][0].path,
        f"the engines need {in_gib(needed)} and this machine has {in_gib(machine.memory_bytes)}",
        found=" + ".join(f"{role.role} {in_gib(size)}" for role, size in parts)
        + f" (weights {weights} each)",
        allowed=in_gib(machine.memory_bytes),
        cure="lower VLLM_CPU_KVCACHE_SPACE in runtime_env.env_vars, or take a smaller model",
    )


ENGINE_OVERHEAD_BYTES = int(1.3 * GIB)
"""Measured: two engines of a 2-layer model with 1 GiB of KV each took 4.6 GiB in all."""


def cpu_engine_bytes(role: RoleView, app: AppView, memory_bytes: int) -> int:
    """Memory that one CPU engine takes, in bytes."""
    weights = app.facts.weights_bytes if app.facts else 0
    space = role.env_vars.get("VLLM_CPU_KVCACHE_SPACE")
    kv = role.engine.get("kv_cache_memory_bytes")
    if isinstance(kv, int) and not isinstance(kv, bool):
        return weights + ENGINE_OVERHEAD_BYTES + kv
    if space is not None and str(space).isdigit() and int(space) > 0:
        return weights + ENGINE_OVERHEAD_BYTES + int(space) * GIB
    share = role.engine.get("gpu_memory_utilization", 0.92)
    if isinstance(share, (int, float)):
        return ENGINE_OVERHEAD_BYTES + int(float(share) * memory_bytes)
    return weights + ENGINE_OVERHEAD_BYTES
