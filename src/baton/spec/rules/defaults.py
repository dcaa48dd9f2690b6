"""What is filled in where the user left it open (`baton.spec.resolve`)."""

from baton.spec.rules.registry import describe

describe(
    "BTN-210",
    "note",
    "`~` is expanded",
    """
    `model_source: ~/models/x` is a folder below the home of whoever runs Baton. Ray and vLLM do not
    expand it and would look for a hub model of that name, so Baton deploys the full path.

    Source: vLLM 0.29 `transformers_utils/config.py` tests `Path(model).exists()` as given.
""",
)
describe(
    "BTN-211",
    "warning",
    "`kv_transfer_config` is supplied",
    """
    With Baton's import path a role without `kv_transfer_config` gets `kv_connector: NixlConnector`
    and the `kv_role` of its role. Ray's own application refuses such a file.

    Source: ray 2.60 `prefill_decode/builder.py`, `_validate_kv_transfer_config`.
""",
)
describe(
    "BTN-212",
    "note",
    "`engine_id` is supplied",
    """
    A role without `engine_id` is called by its role. Each replica makes its own id from it.

    Source: vLLM 0.29 `vllm/config/kv_transfer.py` would take a random UUID, which tells a reader of
    logs nothing.
""",
)

describe(
    "BTN-213",
    "note",
    "the state layout that NIXL wants is supplied",
    """
    Models with Mamba or linear-attention layers need `VLLM_SSM_CONV_STATE_LAYOUT=DS` in both roles,
    or the engines end with an assertion. Baton sets it where the file does not, when the model has
    such layers or nothing is known of it; other models do not read it.

    Source: vLLM 0.29 `nixl/base_worker.py`, `model_executor/layers/mamba/mamba_utils.py`.
    """,
)
