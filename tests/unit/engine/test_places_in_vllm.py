"""The places of vLLM that Baton changes are where it looks for them. Read as text: importing them
takes ten seconds."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from baton.engine import failed_loads, identity, lease_deadline, one_process

PLACES = [
    (
        failed_loads.WORKER,
        "NixlBaseConnectorWorker",
        "_handle_failed_transfer",
        ("req_id", "handle"),
    ),
    (
        failed_loads.SCHEDULER,
        "Scheduler",
        "_handle_invalid_blocks",
        ("invalid_block_ids", "num_scheduled_tokens"),
    ),
    (
        failed_loads.FACTORY,
        "KVConnectorFactory",
        "create_connector",
        ("config", "role", "kv_cache_config"),
    ),
    (
        lease_deadline.PREFILL,
        "NixlPullConnectorScheduler",
        "request_finished",
        ("request", "block_ids"),
    ),
    (
        lease_deadline.METADATA,
        "NixlConnectorMetadata",
        "add_new_req_to_recv",
        ("request_id", "local_block_ids", "kv_transfer_params", "local_num_computed_blocks"),
    ),
    (
        lease_deadline.DECODE,
        "NixlPullConnectorWorker",
        "_read_blocks_for_req",
        ("req_id", "meta"),
    ),
    (failed_loads.WORKER, "NixlBaseConnectorWorker", "_pop_done_transfers", ("transfers",)),
    (failed_loads.WORKER, "NixlBaseConnectorWorker", "_send_heartbeats", ("metadata",)),
    (one_process._MODULE, "Executor", "get_class", ()),
    (identity.ARGUMENTS, "EngineArgs", "create_engine_config", ("usage_context", "headless")),
]


@pytest.mark.parametrize(("module", "owner", "method", "arguments"), PLACES)
def test_the_pinned_vllm_has_every_place_that_is_changed(module, owner, method, arguments):
    """With these arguments; another vLLM needs another look."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vllm is not installed")
    top = Path(spec.submodule_search_locations[0])
    tree = ast.parse(top.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text())
    (cls,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner)
    (found,) = (n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == method)
    assert tuple(arg.arg for arg in found.args.args[1:]) == arguments


def test_the_policy_that_is_overruled_is_read_behind_the_changed_method():
    """`update_from_output` looks at it after `_handle_invalid_blocks`; under another name it would
    not see what we set."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("vllm is not installed")
    text = Path(spec.submodule_search_locations[0], "v1/core/sched/scheduler.py").read_text()
    body = text[text.index("    def update_from_output(") :]
    called = body.index("self._handle_invalid_blocks(")
    assert "self.recompute_kv_load_failures" in body[called : body.index("\n    def ", called)]
