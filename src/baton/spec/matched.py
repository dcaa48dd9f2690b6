"""The set of versions that were run together, and that every rule was read from."""

MATCHED = {
    "vllm": "0.29.0",
    "ray": "2.60.0",
    "nixl": "1.3.2",
    "torch": "2.13.0",
    "transformers": "5.24.0",
}
