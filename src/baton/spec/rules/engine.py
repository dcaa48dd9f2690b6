"""Engine arguments that contradict each other, or name something that cannot be imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule
from baton.spec.view import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView

# Names of classes or modules, which vLLM and Ray import when the engine starts.
_MODULE = "kv_connector_module_path"
_CLASS_PATHS = ("worker_cls", "worker_extension_cls", "scheduler_cls")


@rule("BTN-170", "error", "a class path that cannot be one")
def class_paths(app: AppView) -> Iterator[Finding]:
    """Classes are named by module and name, `package.module.Class`.

    Source: vLLM 0.29 `utils/import_utils.py`, `resolve_obj_by_qualname`; ray 2.60
    `common/utils/import_utils.py`, `load_class`.
    """
    for role in app.roles:
        named = [
            (role.engine_at(key), role.engine.get(key))
            for key in _CLASS_PATHS
            if role.engine.get(key) not in ("auto", "")
        ]
        named.append((role.at("server_cls"), role.config.get("server_cls")))
        module = role.kv.get(_MODULE)
        if isinstance(module, str):
            # A module alone; with a name behind it the same test holds.
            named.append((role.kv_at(_MODULE), module if "." in module else f"{module}.x"))
        for path, value in named:
            if value is None or _is_class_path(value):
                continue
            yield Finding(
                path,
                f"`{path[-1]}` must name a class",
                found=shown(value),
                allowed="package.module.Class",
                cure="remove it, or write the full name",
                at_value=True,
            )


@rule("BTN-171", "error", "batches smaller than what they must hold")
def batch_sizes(app: AppView) -> Iterator[Finding]:
    """A step takes `max_num_batched_tokens`: at least one token for each of `max_num_seqs`.

    Without chunked prefill it must also take a whole prompt of `max_model_len`, and a threshold for
    long prompts cannot lie above that length.

    Source: vLLM 0.29 `vllm/config/scheduler.py`, `verify_max_model_len`.
    """
    for role in app.roles:
        tokens = whole(role.engine.get("max_num_batched_tokens"), 0)
        sequences = whole(role.engine.get("max_num_seqs"), 0)
        threshold = whole(role.engine.get("long_prefill_token_threshold"), 0)
        longest = role.max_model_len
        path = role.engine_at("max_num_batched_tokens")
        if 0 < tokens < sequences:
            yield Finding(
                path,
                f"{tokens} tokens a step cannot hold {sequences} sequences",
                found=str(tokens),
                allowed=f"{sequences} or more",
                cure="raise max_num_batched_tokens, or lower max_num_seqs",
                at_value=True,
            )
        chunks = role.engine.get("enable_chunked_prefill")
        if tokens and longest and tokens < longest and chunks is False:
            yield Finding(
                path,
                f"without chunked prefill a step of {tokens} tokens cannot take a prompt of"
                f" {longest}",
                found=str(tokens),
                allowed=f"{longest} or more",
                cure="remove enable_chunked_prefill: false, or raise max_num_batched_tokens",
                at_value=True,
            )
        if longest and threshold > longest:
            yield Finding(
                role.engine_at("long_prefill_token_threshold"),
                f"the threshold {threshold} lies above max_model_len {longest}",
                found=str(threshold),
                allowed=f"{longest} or less",
                cure="lower it",
                at_value=True,
            )


def _is_class_path(value: object) -> bool:
    if not isinstance(value, str):
        return False
    parts = value.replace(":", ".").split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


# Arguments that vLLM checks against each other, against the model or against the platform, in ways
# that no list of names and types can hold. Found by comparing this check with the real classes for
# every argument (`tests/integration/test_spec_against_sources.py` holds it there).
JUDGED_BY_VLLM = frozenset(
    {
        # parallelism and placement
        "data_parallel_external_lb", "data_parallel_hybrid_lb",
        "data_parallel_multi_port_external_lb", "data_parallel_rank", "data_parallel_size_local",
        "data_parallel_start_rank", "device_ids",
        "enable_batch_sharded_sampling", "enable_dbo", "enable_elastic_ep", "enable_eplb",
        "enable_expert_parallel", "eplb_config", "nnodes", "node_rank", "numa_bind_cpus",
        "numa_bind_nodes", "offload_backend", "offload_group_size", "offload_num_in_group",
        "ray_workers_use_nsight", "ubatch_size",
        # fault tolerance, memory, replay
        "enable_cumem_allocator", "enable_fault_tolerance", "enable_sleep_mode",
        "enable_trace_replay", "fault_tolerance_config", "kv_offloading_backend",
        "kv_offloading_size", "return_sampling_mask", "weight_transfer_config",
        # the model: formats, quantization, experts, state layers
        "config_format", "convert", "enable_mamba_cache_stochastic_rounding", "hf_config_path",
        "hf_overrides", "mamba_ssu_algorithm", "model_impl", "moe_backend", "pooler_config",
        "quantization", "quantization_config", "runner",
        # speculative decoding
        "diffusion_config", "per_request_spec_decode_metrics", "spec_method", "spec_model",
        "spec_tokens", "speculative_config",
        # objects with validators of their own, and plugins
        "attention_config", "compilation_config", "ec_manager_config", "ec_transfer_config",
        "kernel_config", "kv_events_config", "logits_processors", "mamba_config", "model_weights",
        "profiler_config", "reasoning_config", "scheduler_cls", "show_hidden_metrics_for_version",
        "structured_outputs_config", "worker_cls", "worker_extension_cls",
    }
)  # fmt: skip


@rule("BTN-107", "note", "an argument that only vLLM itself can judge")
def judged_by_vllm(app: AppView) -> Iterator[Finding]:
    """Some arguments are checked against others, the model or the platform when an engine is built.

    `baton validate` and `baton up` ask the installed vLLM about them, when it is one for the
    hardware that the file is for and the model is on this machine. That takes some seconds, and
    only for a file that holds such an argument. What vLLM then refuses is an error of this rule; a
    question that could not be asked stays a note, and the engine's own start answers it.

    Source: vLLM 0.29 `vllm/engine/arg_utils.py`, `create_engine_config`, and the validators of
    `vllm/config/*.py`.
    """
    for role in app.roles:
        named = [(role.engine_at(key), role.engine[key]) for key in role.engine if _judged(key)]
        named.append((role.kv_at(_MODULE), role.kv.get(_MODULE)))
        for path, value in named:
            if value is not None:
                yield Finding(
                    path,
                    f"`{path[-1]}` is judged by vLLM itself, when it is asked or when the engine"
                    " starts",
                    found=shown(value),
                )


def _judged(key: object) -> bool:
    return isinstance(key, str) and key in JUDGED_BY_VLLM
