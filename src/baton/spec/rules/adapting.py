"""What `--on cpu` changes (`baton.spec.adapt`), so that each change can be explained."""

from baton.spec.rules.registry import describe

describe(
    "BTN-220",
    "note",
    "accelerators are removed",
    """
    `accelerator_type`, `accelerator_config` and `num_gpus` ask Ray for hardware that is not here,
    and Ray waits for it without end.

    Source: ray 2.60 `llm_config.py`, `_check_accelerator_type_matches_hardware`.
""",
)
describe(
    "BTN-221",
    "note",
    "bundles ask for cores",
    """
    Without `placement_group_config` Ray takes an LLM deployment for a GPU deployment. One core a
    worker makes it a CPU deployment.

    Source: ray 2.60 `accelerators.py`, `infer_hardware_kind_from_bundles`.
""",
)
describe(
    "BTN-222",
    "note",
    "KV in host memory",
    """
    A CPU engine's KV lies in host memory, and NIXL's connector takes no other device there.

    Source: vLLM 0.29 `nixl/utils.py`, `_NIXL_SUPPORTED_DEVICE`.
""",
)
describe(
    "BTN-223",
    "note",
    "UCX instead of a fabric",
    """
    LIBFABRIC needs a newer libfabric than most machines have. UCX comes with NIXL and uses shared
    memory or TCP.

    Source: vLLM 0.29 `nixl/base_worker.py` (`backends`, default UCX).
""",
)
describe(
    "BTN-224",
    "note",
    "GPU settings are removed",
    """
    Memory share, kernels, graph capture and quantization methods are for GPUs. On a CPU
    `gpu_memory_utilization` would be taken of the whole machine's memory, by each engine.

    Source: vLLM 0.29 `platforms/cpu.py`, `v1/worker/cpu_worker.py`.
""",
)
describe(
    "BTN-225",
    "note",
    "eager mode",
    """
    Compiling the model takes minutes on a CPU and gains little for a trial.

    Source: vLLM 0.29 `platforms/cpu.py` (`DYNAMO_TRACE_ONCE` with inductor).
""",
)
describe(
    "BTN-226",
    "note",
    "KV type that a CPU has",
    """
    vLLM's CPU attention keeps KV in 16 bits.

    Source: vLLM 0.29 `v1/attention/backends/cpu_attn.py`.
""",
)
describe(
    "BTN-227",
    "note",
    "environment for engines side by side",
    """
    One GiB of KV each, no core pinning and one thread a worker: without these, two engines on one
    machine pin the same cores and each takes most of the memory. GPU and fabric variables go.

    Source: vLLM 0.29 `platforms/cpu.py`, `vllm/envs.py`.
""",
)
describe(
    "BTN-228",
    "note",
    "TP reduced to the cores",
    """
    More workers than twice the cores make each other wait.
""",
)
describe(
    "BTN-229",
    "note",
    "transport requirement dropped",
    """
    EFA, RDMA and CUDA IPC do not exist on this machine. `require: any` accepts what is here.
""",
)
describe(
    "BTN-230",
    "note",
    "another model answers",
    """
    When the model asked for is not on this machine, or does not fit its memory, the demo model
    takes its place. The endpoint keeps the `model_id` of the file and says which model answers.
""",
)
describe(
    "BTN-231",
    "note",
    "context capped",
    """
    `max_model_len` is kept, unless the model that answers takes less; left out, it is 4,096 so that
    a small KV space holds a whole prompt.

    Source: vLLM 0.29 `v1/core/kv_cache_utils.py`, `check_enough_kv_cache_memory`.
""",
)
