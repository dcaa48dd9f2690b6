"""Slips with one meaning: put right with a warning (`baton.spec.slips`), written by `--fix`."""

from baton.spec.rules.registry import describe

describe(
    "BTN-110",
    "warning",
    "an engine argument beside `engine_kwargs`",
    """
    Published examples put `kv_transfer_config` beside `engine_kwargs`, where Ray refuses it. A key
    that belongs to exactly one part of the config is moved there.

    Source: ray 2.60 `LLMConfig` (extra keys forbidden); `PDServingArgs` looks for
    `engine_kwargs.kv_transfer_config`.
""",
)
describe(
    "BTN-111",
    "warning",
    "a key in the wrong part of the config",
    """
    For instance `engine_kwargs` indented below `model_loading_config`. A key that is unknown where
    it stands and belongs to exactly one other part is moved there, if that place is free.

    Source: ray 2.60 `ModelLoadingConfig`, `LLMConfig`; vLLM 0.29 `KVTransferConfig`.
""",
)
describe(
    "BTN-112",
    "warning",
    "one value where a list is wanted",
    """
    `backends: LIBFABRIC` is read letter by letter: vLLM asks for each item of the list.

    Source: vLLM 0.29 `nixl/base_worker.py`, `[b for b in self.nixl_backends if b != "UCX"]`.
""",
)
describe(
    "BTN-113",
    "warning",
    "a number or true/false in quotes, or text without",
    """
    `tensor_parallel_size: "2"` is text. Ray multiplies it; environment variables must be text.

    Source: ray 2.60 `vllm_models.py`, `num_devices`; `_private/runtime_env/validation.py`,
    `parse_and_validate_env_vars`.
""",
)
describe(
    "BTN-114",
    "warning",
    "JSON in quotes where a mapping is wanted",
    """
    vLLM's command line takes `--kv-transfer-config '{…}'`; in YAML it is a mapping.

    Source: ray 2.60 `prefill_decode/builder.py` calls `.get` on it.
""",
)
describe(
    "BTN-115",
    "warning",
    "an argument spelt as on the command line",
    """
    `max-model-len` is `max_model_len` in YAML.

    Source: ray 2.60 `vllm_models.py`: "Unknown engine argument".
""",
)
