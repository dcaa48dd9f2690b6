"""What `continues` and `gateway/first_token.py` rely on stands in the pinned vLLM. Read as text:
importing it takes ten seconds."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from baton.engine.continues import _NEUTRAL, _PARSERS, continues

NIXL = {"kv_transfer_config": {"kv_connector": "NixlConnector"}}


def source(name: str) -> str:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*_NEUTRAL, *_PARSERS])
def test_every_argument_that_is_looked_at_exists(name: str) -> None:
    """One that was renamed would never be found, and taken for harmless."""
    arguments = source("engine/arg_utils.py") + source("entrypoints/launchers/cli_args.py")
    assert f"    {name}:" in arguments


def test_a_block_is_cached_before_its_last_token_is_taken_back() -> None:
    """Why a prompt may not end one token before the end of a block. Should this change, it may."""
    scheduler = source("v1/core/sched/scheduler.py")
    ready = scheduler.index("# Now that the blocks are ready, actually cache them.")
    cached = scheduler.index("cache_blocks(request, request.num_computed_tokens)", ready)
    taken_back = scheduler.index("request.num_computed_tokens = request.num_tokens - 1", ready)
    assert cached < taken_back


def test_more_blocks_than_were_offered_are_an_assertion() -> None:
    """Why a prompt may not end at the end of a block."""
    worker = source("distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py")
    assert "assert num_decode_blocks <= len(prefill_group)" in worker


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "chat"),
        ({"max_model_len": 4096, "dtype": "bfloat16"}, "chat"),
        ({"kv_transfer_config": {"kv_connector": "NixlPushConnector"}}, "nothing"),
        ({"kv_transfer_config": None}, "nothing"),
        ({"enable_force_include_usage": True}, "nothing"),
        ({"override_generation_config": {"max_new_tokens": 9}}, "nothing"),
        ({"speculative_config": {"method": "ngram"}}, "nothing"),
        ({"reasoning_parser": "qwen3"}, "completions"),
        ({"tool_call_parser": "hermes"}, "completions"),
        ({"structured_outputs_config": {"reasoning_parser": "qwen3"}}, "completions"),
        ({"structured_outputs_config": {"backend": "xgrammar"}}, "chat"),
        ({"structured_outputs_config": object()}, "completions"),
    ],
)
def test_what_engines_say_of_themselves(more: dict[str, Any], expected: str) -> None:
    """By their arguments."""
    plain: dict[str, Any] = {"model_type": "llama", "default_max_tokens": None, "has_state": False}
    assert continues({**NIXL, **more}, **plain) == expected
    assert continues({**NIXL, **more}, **{**plain, "has_state": True}) == "nothing"
    limited = continues({**NIXL, **more}, **{**plain, "default_max_tokens": 5})
    assert limited == ("completions" if expected == "chat" else expected)
    harmony = continues({**NIXL, **more}, **{**plain, "model_type": "gpt_oss"})
    assert harmony == limited
