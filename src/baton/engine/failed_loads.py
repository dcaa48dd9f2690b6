"""A KV load that failed on a hybrid model fails its request, and nobody answers from garbage.

Two places of vLLM 0.29 leave hybrid models (sliding window, Mamba: several groups of KV layers) out
of what happens after a failed load:

- the NIXL worker does not mark the blocks (`_handle_failed_transfer`,
  vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py): the request goes on as if its
  KV had come, and answers 200 with tokens made from whatever lay in these blocks;
- the scheduler could not cope if it did: `_update_requests_with_invalid_blocks`
  (vllm/v1/core/sched/scheduler.py) unpacks exactly one group, and the exception ends EngineCore.

So here the worker marks the blocks of every group, and the scheduler fails the requests that wait
for one of them; the gateway then goes round again with a fresh prefill. `recompute` is no choice on
hybrid models: a sliding window has no longest valid prefix. Models with one group of full attention
keep vLLM's own behaviour, whatever the policy.

One pool hands out the blocks of all groups (`BlockPool`, vllm/v1/core/block_pool.py), so an id
belongs to one group of one request. Block 0 is the null block that many requests share: it is
never waited for and never marked.

An engine that cannot be guarded (a vLLM in which these places look otherwise) refuses to start with
a KV connector and a hybrid model, and says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from baton.engine.late_patches import change_of, change_when_imported, replace_once

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

log = logging.getLogger("baton.engine.failed_loads")

WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker"
SCHEDULER = "vllm.v1.core.sched.scheduler"
FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"
_NULL_BLOCK = 0

_missing: dict[str, str] = {}
"""Module to why it could not be changed."""


class HybridUnguarded(RuntimeError):
    """A hybrid model whose failed KV loads would go unnoticed: this engine must not do P/D."""


def fail_failed_loads() -> bool:
    """Guard this process of vLLM; True when every place that is changed is there.

    Called through vLLM's plugin entry point. Safe to call again.
    """
    changes = {WORKER: patch_worker, SCHEDULER: patch_scheduler, FACTORY: patch_factory}
    change_when_imported(changes, _cannot)
    return not _missing


def _cannot(module: str, why: str) -> None:
    _missing[module] = why
    log.error(
        "this vLLM is not known: a KV load that fails on a hybrid model would go unnoticed, and "
        "such a model is refused (%s: %s)",
        module,
        why,
    )


# -- worker ----------------------------------------------------------------------------------------


@change_of(WORKER, _cannot)
def patch_worker(module: ModuleType) -> None:
    """Have the NIXL worker mark the blocks of all groups."""
    replace_once(module.NixlBaseConnectorWorker, "_handle_failed_transfer", _marking_all_groups)


def _marking_all_groups(plain: Any) -> Any:
    def handle_failed_transfer(self: Any, req_id: str, handle: int | None) -> None:
        # First the blocks, then the request, as vLLM does: they are drained in the other order, so
        # that a request never counts as loaded before its blocks are known to be invalid.
        meta = self._recving_metadata.get(req_id)
        if meta is not None and self._is_hma_required:
            self._invalid_block_ids.put(blocks_of(meta.local_block_ids))
        plain(self, req_id, handle)

    return handle_failed_transfer


def blocks_of(groups: Iterable[Iterable[int]]) -> set[int]:
    """Ids of the blocks of all groups, without the null block."""
    return {block for group in groups for block in group} - {_NULL_BLOCK}


# -- scheduler -------------------------------------------------------------------------------------


@change_of(SCHEDULER, _cannot)
def patch_scheduler(module: ModuleType) -> None:
    """Have the scheduler fail the requests of a hybrid model that wait for invalid blocks."""
    waits, full = module.RequestStatus.WAITING_FOR_REMOTE_KVS, _full_attention()
    replace_once(
        module.Scheduler, "_handle_invalid_blocks", lambda plain: _failing(plain, waits, full)
    )


def _failing(plain: Any, waits: Any, full: type) -> Any:
    def handle_invalid_blocks(
        self: Any, invalid_block_ids: set[int], num_scheduled_tokens: dict[str, int]
    ) -> set[str]:
        if not is_hybrid(self.kv_cache_config, full):
            failed: set[str] = plain(self, invalid_block_ids, num_scheduled_tokens)
            return failed
        # `update_from_output` reads it after this call, and fails what we return. Read first: a
        # vLLM that calls it otherwise must not get a new attribute that nobody looks at.
        if self.recompute_kv_load_failures:
            self.recompute_kv_load_failures = False
        failed = {
            request.request_id
            for request in self.requests.values()
            if request.status == waits
            and not invalid_block_ids.isdisjoint(
                blocks_of(self.kv_cache_manager.get_block_ids(request.request_id))
            )
        }
        log.error(
            "KV load failed: %d request(s) end with an error (%d blocks): %s",
            len(failed),
            len(invalid_block_ids),
            sorted(failed),
        )
        return failed

    return handle_invalid_blocks


def _full_attention() -> type:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    kind: type = FullAttentionSpec
    return kind


def is_hybrid(kv_cache_config: Any, full: type) -> bool:
    """Whether a failed load is not vLLM's own business: several groups, or one of another kind."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return len(groups) > 1
    spec = groups[0].kv_cache_spec
    specs = getattr(spec, "kv_cache_specs", {"": spec}).values()  # UniformTypeKVCacheSpecs
    return not all(isinstance(one, full) for one in specs)


# -- refusal ---------------------------------------------------------------------------------------


@change_of(FACTORY, _cannot)
def patch_factory(module: ModuleType) -> None:
    """Refuse a connector for a hybrid model when something above could not be changed."""
    replace_once(module.KVConnectorFactory, "create_connector", _refusing)


def _refusing(plain: Any) -> Any:
    def create_connector(cls: Any, config: Any, role: Any, kv_cache_config: Any) -> Any:
        # Afterwards: what is changed here may be imported only by making the connector.
        connector = plain(cls, config, role, kv_cache_config)
        if _missing and is_hybrid(kv_cache_config, _full_attention()):
            raise HybridUnguarded(
                "this model has several kinds of KV layers, and in this vLLM a KV load that fails "
                f"would go unnoticed: {_missing}. Serve it without P/D, or with the vLLM version "
                "that Baton is pinned to."
            )
        return connector

    return create_connector
