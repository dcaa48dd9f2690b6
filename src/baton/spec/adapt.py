"""Fits a GPU file to the CPU of this machine: `--on cpu`.

Every adaptation is a named rule with a before and an after; nothing else is touched. What the user
wrote about roles, replicas, lengths and the `baton` block stays.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from baton.spec.check import examine, refusal
from baton.spec.faults import Change, Edit, Path, dotted, shown
from baton.spec.machine import Machine, in_gib
from baton.spec.model_facts import ModelFacts, find_model, read_facts
from baton.spec.rules.resources import cpu_engine_bytes
from baton.spec.slips import apply_edit
from baton.spec.view import AppView, RoleView, mapping

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path as FilePath

    from baton.spec.checked import CheckedApp, CheckedFile

# Seen working for two engines on two cores; each is set only where the user has not set it.
CPU_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # vLLM compiles its CPU sampler with torch.compile when the first request needs it, also with
    # enforce_eager: seconds of compiler and imports in the middle of a caller's first answer.
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
# Environment that is about fabrics and GPUs, and keeps a CPU engine from starting or misleads it.
_GPU_ENV_PREFIXES = ("NCCL_", "CUDA_", "NVIDIA_", "FI_", "UCX_", "NVSHMEM_")
_GPU_ONLY = (
    "gpu_memory_utilization",
    "quantization",
    "cpu_offload_gb",
    "attention_backend",
    "disable_custom_all_reduce",
    "enable_dbo",
    "moe_backend",
    "linear_backend",
    "all2all_backend",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "enable_sleep_mode",
    "cudagraph_capture_sizes",
    "max_cudagraph_capture_size",
    "compilation_config",
    "distributed_executor_backend",
    "async_scheduling",
)


@dataclass(frozen=True)
class _Step:
    """One adaptation below `args`."""

    rule_id: str
    summary: str
    before: str
    after: str
    edit: Edit


def adapt(
    checked: CheckedFile,
    *,
    on: str = "cpu",
    machine: Machine | None = None,
    replacement_model: FilePath | None = None,
    starting: bool = True,
) -> tuple[CheckedFile, list[Change]]:
    """Fits every P/D application of a file to this machine.

    Args:
        checked: A file that has passed the check.
        on: Only `cpu`.
        machine: The machine it will run on; this one when left out.
        replacement_model: The folder of the model that answers when the one asked for is not on
            this machine or does not fit; without it the model is kept.
        starting: As in `examine`.

    Returns:
        The adapted file, and the changes that made it so (also in `.changes`).

    Raises:
        ConfigRefused: When the adapted file cannot run here either.
    """
    if on != "cpu":
        raise ValueError(f"files are adapted to `cpu` only, not to `{on}`")
    machine = machine or Machine.here()
    document = copy.deepcopy(checked.document)
    changes: list[Change] = []
    answering: list[str | None] = []
    for index, app in enumerate(checked.applications):
        answering.append(None)
        if not app.has_rules:
            continue
        base: Path = ("applications", index, "args")
        args, steps, answering[-1] = _application(app, machine, replacement_model)
        document["applications"][index]["args"] = args
        changes.extend(_change(checked, step, base) for step in steps)
    # The adapted file goes through every rule once more, now against this machine.
    loaded = replace(checked.source, document=document, faults=())
    outcome = examine(loaded, machine=machine, starting=starting)
    if outcome.checked is None:
        raise refusal(outcome.faults)
    result = replace(
        outcome.checked,
        source=checked.source,
        applications=tuple(
            replace(app, answering_model=name)
            for app, name in zip(outcome.checked.applications, answering, strict=True)
        ),
        warnings=checked.warnings,
        changes=(*checked.changes, *changes),
    )
    return result, changes


def _change(checked: CheckedFile, step: _Step, base: Path) -> Change:
    path = (*base, *step.edit.path)
    edit = replace(step.edit, path=path)
    return Change(
        step.rule_id,
        step.summary,
        dotted(path),
        step.before,
        step.after,
        edit,
        checked.source.place(path),
    )


def _application(
    app: CheckedApp, machine: Machine, replacement: FilePath | None
) -> tuple[dict[str, Any], list[_Step], str | None]:
    args = copy.deepcopy(app.args)
    steps: list[_Step] = []

    def apply(found: Iterator[_Step]) -> None:
        for step in list(found):
            apply_edit(args, step.edit)
            steps.append(step)

    def view(facts: ModelFacts | None) -> AppView:
        entry = {"name": app.name, "import_path": app.import_path}
        return AppView(entry, (), args, (), machine, "cpu", facts)

    apply(_roles(view(None), _hardware))
    apply(_roles(view(None), _transfer))
    apply(_roles(view(None), _engine))
    apply(_tensor_parallel(view(None), machine))
    apply(_roles(view(None), _placement))
    apply(_roles(view(None), _environment))
    apply(_transport(view(None)))
    facts = _facts_of(args)
    answering = None
    if replacement is not None:
        reason = _why_not_this_model(view(facts), machine)
        if reason is not None:
            apply(_roles(view(None), lambda role: _model(role, replacement, reason)))
            facts = read_facts(replacement)
            answering = replacement.name
    apply(_length(view(facts)))
    return args, steps, answering


def _roles(app: AppView, rule: Any) -> Iterator[_Step]:
    for role in app.roles:
        yield from rule(role)


def _set(rule_id: str, role: RoleView, path: Path, value: Any, summary: str) -> _Step:
    before: Any = role.config
    for part in path:
        before = mapping(before).get(part)
    return _Step(
        rule_id,
        f"{role.role}: {summary}",
        "nothing" if before is None else shown(before),
        shown(value),
        Edit("set", (*role.path, *path), value=value),
    )


def _delete(rule_id: str, role: RoleView, path: Path, summary: str) -> _Step:
    before: Any = role.config
    for part in path:
        before = mapping(before).get(part)
    return _Step(
        rule_id,
        f"{role.role}: {summary}",
        shown(before),
        "removed",
        Edit("delete", (*role.path, *path)),
    )


def _hardware(role: RoleView) -> Iterator[_Step]:
    if role.config.get("accelerator_type") is not None:
        yield _delete("BTN-220", role, ("accelerator_type",), "there is no accelerator")
    if mapping(role.config.get("accelerator_config")).get("kind") not in (None, "cpu"):
        yield _delete("BTN-220", role, ("accelerator_config",), "there is no accelerator")
    options = mapping(role.deployment.get("ray_actor_options"))
    if options.get("num_gpus"):
        yield _delete(
            "BTN-220",
            role,
            ("deployment_config", "ray_actor_options", "num_gpus"),
            "there is no GPU",
        )


def _placement(role: RoleView) -> Iterator[_Step]:
    if role.on_cpu and "placement_group_config" in role.config:
        return
    group = {"bundles": [{"CPU": 1} for _ in range(role.tp * role.pp)]}
    yield _set("BTN-221", role, ("placement_group_config",), group, "one core for each worker")


def _transfer(role: RoleView) -> Iterator[_Step]:
    if not role.uses_nixl:
        return
    kv: Path = ("engine_kwargs", "kv_transfer_config")
    if role.kv.get("kv_buffer_device") != "cpu":
        yield _set("BTN-222", role, (*kv, "kv_buffer_device"), "cpu", "KV lies in host memory")
    if role.backends != ["UCX"]:
        extra = {**role.extra, "backends": ["UCX"]}
        yield _set(
            "BTN-223", role, (*kv, "kv_connector_extra_config"), extra, "UCX needs no fabric"
        )


def _engine(role: RoleView) -> Iterator[_Step]:
    for key in _GPU_ONLY:
        if key in role.engine:
            yield _delete("BTN-224", role, ("engine_kwargs", key), "for GPUs only")
    if role.engine.get("enforce_eager") is not True:
        yield _set(
            "BTN-225",
            role,
            ("engine_kwargs", "enforce_eager"),
            True,
            "compiling takes minutes on a CPU",
        )
    kv_dtype = role.engine.get("kv_cache_dtype", "auto")
    if kv_dtype not in ("auto", "bfloat16", "float16"):
        yield _delete(
            "BTN-226", role, ("engine_kwargs", "kv_cache_dtype"), "this KV type needs a GPU"
        )


def _environment(role: RoleView) -> Iterator[_Step]:
    own = role.own_env_vars
    kept = {k: v for k, v in own.items() if not str(k).startswith(_GPU_ENV_PREFIXES)}
    # The KV space that a GPU file names, if any, was meant for a GPU machine's host memory.
    wanted = {**{k: v for k, v in CPU_ENV.items() if k not in role.app_env_vars}, **kept}
    if wanted == own:
        return
    if isinstance(role.config.get("runtime_env"), dict):
        yield _set("BTN-227", role, ("runtime_env", "env_vars"), wanted, "engines side by side")
    else:
        yield _set("BTN-227", role, ("runtime_env",), {"env_vars": wanted}, "engines side by side")


def _tensor_parallel(app: AppView, machine: Machine) -> Iterator[_Step]:
    """Less TP when the workers of all engines outnumber the cores: the least that still differs."""
    workers = sum(role.tp * role.pp * role.num_replicas for role in app.roles)
    if workers <= max(machine.cores, 2) * 2:
        return
    for role in app.roles:
        if role.tp > 1:
            yield _set(
                "BTN-228",
                role,
                ("engine_kwargs", "tensor_parallel_size"),
                1,
                f"{workers} workers for {machine.cores} cores",
            )


def _transport(app: AppView) -> Iterator[_Step]:
    require = app.baton.transport.require
    if require in ("any", "shm", "tcp"):
        return
    path = ("baton", "transport", "require")
    yield _Step(
        "BTN-229", f"this machine has no {require}", require, "any", Edit("set", path, value="any")
    )


def _facts_of(args: dict[str, Any]) -> ModelFacts | None:
    loading = mapping(mapping(args.get("prefill_config")).get("model_loading_config"))
    source = loading.get("model_source") or loading.get("model_id")
    folder = find_model(source) if isinstance(source, str) else None
    return read_facts(folder) if folder is not None else None


def _why_not_this_model(app: AppView, machine: Machine) -> str | None:
    """Why the model asked for cannot answer here, or None when it can."""
    if app.facts is None:
        return "it is not on this machine"
    if machine.memory_bytes:
        needed = sum(
            role.num_replicas * cpu_engine_bytes(role, app, machine.memory_bytes)
            for role in app.roles
        )
        if needed > machine.memory_bytes:
            return f"it needs {in_gib(needed)} and this machine has {in_gib(machine.memory_bytes)}"
    return None


def _model(role: RoleView, folder: FilePath, reason: str) -> Iterator[_Step]:
    asked = role.model_source or role.model_id or "the model"
    loading = {**role.loading, "model_source": str(folder)}
    loading.pop("tokenizer_source", None)
    yield _set(
        "BTN-230",
        role,
        ("model_loading_config",),
        loading,
        f"{folder.name} answers as `{role.model_id}`, because of {asked}: {reason}",
    )
    if "HF_HUB_OFFLINE" not in role.env_vars:
        yield _set(
            "BTN-230",
            role,
            ("runtime_env", "env_vars", "HF_HUB_OFFLINE"),
            "1",
            "the folder is all there is",
        )
    for key in (
        "tokenizer",
        "revision",
        "tokenizer_revision",
        "hf_overrides",
        "trust_remote_code",
        "reasoning_parser",
        "tool_call_parser",
        "enable_auto_tool_choice",
        "chat_template",
        "limit_mm_per_prompt",
        "mm_processor_kwargs",
        "speculative_config",
    ):
        if key in role.engine:
            yield _delete("BTN-230", role, ("engine_kwargs", key), "belongs to the other model")


def _length(app: AppView) -> Iterator[_Step]:
    """`max_model_len` no longer than the model takes, and than its KV space holds."""
    limit = app.facts.max_position_embeddings if app.facts else None
    for role in app.roles:
        asked = role.max_model_len
        fit = (
            min(n for n in (asked, limit, 4096 if asked is None else None) if n)
            if (asked or limit)
            else None
        )
        if fit is not None and fit != asked:
            yield _set(
                "BTN-231",
                role,
                ("engine_kwargs", "max_model_len"),
                fit,
                "what the model and a small KV space hold",
            )
