"""What happens to a request of a hybrid model whose KV did not come. vLLM is played by stand-ins;
tests/integration/test_wrong_kv.py does it with real engines."""

from __future__ import annotations

import enum
import queue
from types import SimpleNamespace

import pytest

from baton.engine import failed_loads, late_patches
from baton.engine.failed_loads import (
    HybridUnguarded,
    blocks_of,
    fail_failed_loads,
    is_hybrid,
    patch_factory,
    patch_scheduler,
    patch_worker,
)


class Full:
    """Stands for vLLM's FullAttentionSpec."""


class Window:
    """Another kind."""


class Status(enum.Enum):
    WAITING_FOR_REMOTE_KVS = 1
    RUNNING = 2


def config(*specs):
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=s) for s in specs])


@pytest.fixture(autouse=True)
def known_vllm(monkeypatch):
    monkeypatch.setattr(failed_loads, "_missing", {})
    monkeypatch.setattr(failed_loads, "_full_attention", lambda: Full)


def worker_module():
    class NixlBaseConnectorWorker:
        def __init__(self, hybrid):
            self._is_hma_required = hybrid
            self._recving_metadata = {}
            self._invalid_block_ids = queue.Queue()
            self.order = []
            put = self._invalid_block_ids.put
            self._invalid_block_ids.put = lambda ids: (self.order.append("blocks"), put(ids))

        def _handle_failed_transfer(self, req_id, handle):
            self.order.append(("request", req_id, handle))

    return SimpleNamespace(NixlBaseConnectorWorker=NixlBaseConnectorWorker)


def scheduler_module():
    class Scheduler:
        def __init__(self, cache_config, requests):
            self.kv_cache_config = cache_config
            self.recompute_kv_load_failures = True
            self.requests = {r.request_id: r for r in requests}
            blocks = {r.request_id: r.blocks for r in requests}
            self.kv_cache_manager = SimpleNamespace(get_block_ids=blocks.__getitem__)

        def _handle_invalid_blocks(self, invalid_block_ids, num_scheduled_tokens):
            return {"vllm's own"}

    return SimpleNamespace(Scheduler=Scheduler, RequestStatus=Status)


def request(name, *groups, status=Status.WAITING_FOR_REMOTE_KVS):
    return SimpleNamespace(request_id=name, blocks=groups, status=status)


def test_the_worker_of_a_hybrid_model_marks_the_blocks_of_all_groups_first():
    """Before the request counts as received: the other way round it could be scheduled between."""
    module = worker_module()
    patch_worker(module)
    patch_worker(module)  # plugins may be loaded twice
    worker = module.NixlBaseConnectorWorker(hybrid=True)
    worker._recving_metadata["r"] = SimpleNamespace(local_block_ids=[[0, 4, 5], [6, 7]])
    worker._handle_failed_transfer("r", 9)
    assert worker._invalid_block_ids.get() == {4, 5, 6, 7}
    assert worker._invalid_block_ids.empty()
    assert worker.order == ["blocks", ("request", "r", 9)]


def test_the_worker_of_a_plain_model_is_left_to_vllm():
    """It marks them itself."""
    module = worker_module()
    patch_worker(module)
    worker = module.NixlBaseConnectorWorker(hybrid=False)
    worker._recving_metadata["r"] = SimpleNamespace(local_block_ids=[[4]])
    worker._handle_failed_transfer("r", None)
    assert worker.order == [("request", "r", None)]


def test_the_scheduler_fails_exactly_the_requests_that_wait_for_an_invalid_block():
    """In any group, whatever the policy; running ones and others' blocks are not touched."""
    module = scheduler_module()
    patch_scheduler(module)
    patch_scheduler(module)
    scheduler = module.Scheduler(
        config(Window(), Full()),
        [
            request("in window", [0, 0, 4], [5, 6, 7]),
            request("in whole", [0, 0, 8], [9, 10, 11]),
            request("sound", [0, 0, 12], [13, 14, 15]),
            request("runs", [0, 0, 16], [4, 17], status=Status.RUNNING),
        ],
    )
    failed = scheduler._handle_invalid_blocks({4, 11, 0}, {})
    assert failed == {"in window", "in whole"}
    assert scheduler.recompute_kv_load_failures is False  # else vLLM would not fail them


def test_the_null_block_that_many_requests_share_fails_nobody():
    """A sliding window's first places are all block 0."""
    assert blocks_of([[0, 0, 3], [0]]) == {3}


def test_a_model_with_one_group_of_full_attention_keeps_vllms_behaviour():
    """Including its policy."""
    module = scheduler_module()
    patch_scheduler(module)
    scheduler = module.Scheduler(config(Full()), [request("r", [4])])
    assert scheduler._handle_invalid_blocks({4}, {}) == {"vllm's own"}
    assert scheduler.recompute_kv_load_failures is True


@pytest.mark.parametrize(
    ("cache_config", "hybrid"),
    [
        (config(Full()), False),
        (config(Full(), Full()), True),
        (config(Window()), True),
        (config(Window(), Full()), True),
        (config(SimpleNamespace(kv_cache_specs={"a": Full(), "b": Full()})), False),
        (config(SimpleNamespace(kv_cache_specs={"a": Full(), "b": Window()})), True),
        (config(), False),
    ],
)
def test_what_counts_as_hybrid(cache_config, hybrid):
    """Several groups, or one of another kind than full attention."""
    assert is_hybrid(cache_config, Full) is hybrid


def factory_module():
    class KVConnectorFactory:
        @classmethod
        def create_connector(cls, vllm_config, role, kv_cache_config):
            return "connector"

    return SimpleNamespace(KVConnectorFactory=KVConnectorFactory)


def test_a_vllm_that_looks_otherwise_refuses_hybrid_models_and_says_so(caplog):
    """Loud, and no garbage: the engine does not start for P/D. Plain models do."""
    patch_scheduler(SimpleNamespace())
    module = factory_module()
    patch_factory(module)
    create = module.KVConnectorFactory.create_connector
    with pytest.raises(HybridUnguarded, match="scheduler"):
        create(None, "worker", config(Window(), Full()))
    assert create(None, "worker", config(Full())) == "connector"
    assert any(record.levelname == "ERROR" for record in caplog.records)


def test_a_vllm_that_is_known_makes_connectors_for_hybrid_models():
    """Nothing is refused without a reason."""
    module = factory_module()
    patch_factory(module)
    patch_factory(module)
    create = module.KVConnectorFactory.create_connector
    assert create(None, "worker", config(Window(), Full())) == "connector"


def test_a_vllm_whose_modules_are_gone_is_noticed_at_once(monkeypatch, caplog):
    """Without waiting for an import that never comes."""
    monkeypatch.setattr(late_patches, "module_exists", lambda _: False)
    assert fail_failed_loads() is False
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 3
