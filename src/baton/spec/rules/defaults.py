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
