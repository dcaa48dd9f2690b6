"""Decode never uses KV that it may have read after prefill's lease on it had ended.

Prefill keeps the blocks of an offer for `kv_lease_duration` (30 s) and longer while decode's
heartbeats come; then it gives them to other requests. vLLM 0.29's decode side does not know when
that is: a decode engine that was frozen, or that got the offer late, reads blocks that belong to
somebody else and answers 200. Prefill notices ("Potentially invalid KV blocks for unrecognized
request … were retrieved", nixl/pull_worker.py), when the tokens are already on their way.

vLLM has what is needed for the other direction, decode's blocks read back by prefill:
`remote_blocks_expiry_time` in the params and the offset between the two clocks, measured in the
handshake (`_is_turn2_read_expired`, nixl/pull_worker.py). So here prefill says when its lease ends
as well, and decode

- does not begin a read behind that time, and
- fails a load that it sees complete behind that time: what was seen complete before was read
  before.

Heartbeats move the end. Prefill handles them before it looks for leases that have ended
(`get_finished`, nixl/base_worker.py), and each adds `kv_lease_duration * 2 // 3` from then on; so a
heartbeat that decode sent while the lease surely lived moves the end to that much after it was
sent. Offers without an end (an engine without Baton) are read as before: the gateway's own guard
(`gateway/lease_guard.py`) is for them.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from baton.engine.late_patches import (
    NotKnown,
    change_of,
    change_when_imported,
    is_replaced,
    replace_once,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

log = logging.getLogger("baton.engine.lease_deadline")

_NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
PREFILL = f"{_NIXL}.pull_scheduler"
METADATA = f"{_NIXL}.metadata"
DECODE = f"{_NIXL}.pull_worker"

SLACK_S = 1.0
"""Taken off every end: the clocks' offset is known to half a handshake's round trip, and a
heartbeat takes a moment to arrive."""
EXTENSION_KEY = "baton_lease_extension_s"
_FORGET_AFTER_S = 600.0


def keep_lease_deadlines() -> bool:
    """Guard this process of vLLM; True when every place that is changed is there.

    Called through vLLM's plugin entry point. Safe to call again.
    """
    changes = {PREFILL: patch_prefill, METADATA: patch_metadata, DECODE: patch_decode}
    return change_when_imported(changes, _cannot)


def _cannot(module: str, why: str) -> None:
    log.error(
        "this vLLM is not known: decode does not see when prefill's lease on KV has ended, and "
        "only the gateway's guard is left (%s: %s)",
        module,
        why,
    )


# -- prefill ---------------------------------------------------------------------------------------


@change_of(PREFILL, _cannot)
def patch_prefill(module: ModuleType) -> None:
    """Have prefill's offers say when its lease ends, on its scheduler's clock."""
    replace_once(module.NixlPullConnectorScheduler, "request_finished", _saying_the_end)


def _saying_the_end(plain: Any) -> Any:
    def request_finished(self: Any, request: Any, block_ids: Any) -> Any:
        delayed, params = plain(self, request, block_ids)
        if delayed and params and params.get("do_remote_prefill"):
            ends_at = self._reqs_need_send.get(request.request_id)
            if ends_at is not None:
                params["remote_blocks_expiry_time"] = ends_at
                params[EXTENSION_KEY] = self._kv_lease_duration * 2 // 3
        return delayed, params

    return request_finished


# -- decode ----------------------------------------------------------------------------------------


@change_of(METADATA, _cannot)
def patch_metadata(module: ModuleType) -> None:
    """Have decode's scheduler tell its worker how much a heartbeat adds to the lease."""
    replace_once(module.NixlConnectorMetadata, "add_new_req_to_recv", _passing_the_extension)


def _passing_the_extension(plain: Any) -> Any:
    def add_new_req_to_recv(
        self: Any,
        request_id: str,
        local_block_ids: Any,
        kv_transfer_params: Any,
        *more: Any,
        **named: Any,
    ) -> None:
        plain(self, request_id, local_block_ids, kv_transfer_params, *more, **named)
        extension = kv_transfer_params.get(EXTENSION_KEY)
        if isinstance(extension, int | float):
            setattr(self.reqs_to_recv[request_id].remote, EXTENSION_KEY, float(extension))

    return add_new_req_to_recv


def lease_end(first_end: float, extension_s: float, heartbeats: Iterable[float]) -> float:
    """When the lease surely still lived, at the latest.

    Args:
        first_end: End without heartbeats, slack taken off. All times are on decode's clock.
        extension_s: What a heartbeat adds, from when it is handled.
        heartbeats: When they were sent, in order.
    """
    end = first_end
    for sent_at in heartbeats:
        if sent_at + SLACK_S > end:
            break  # it may have come too late, and so may all that follow
        end = max(end, sent_at + extension_s - SLACK_S)
    return end


class Leases:
    """What one decode worker knows about the leases of what it reads."""

    def __init__(self) -> None:
        self.reading: dict[str, Any] = {}
        """Requests whose read has begun, to their metadata."""
        self._heartbeats: dict[tuple[str, str], list[float]] = {}

    def beat(self, engine_id: str, remote_ids: Iterable[str], now: float) -> None:
        """A heartbeat for these requests is about to be sent."""
        if len(self._heartbeats) > 1000:  # noqa: PLR2004 - a bound, far above what waits at once
            self._heartbeats = {
                key: beats
                for key, beats in self._heartbeats.items()
                if beats[-1] > now - _FORGET_AFTER_S
            }
        for remote_id in remote_ids:
            self._heartbeats.setdefault((engine_id, remote_id), []).append(now)

    def has_ended(self, remote: Any, offset: float, now: float) -> bool:
        """Whether prefill may have given the blocks to somebody else by now.

        Args:
            remote: vLLM's `RemoteMeta`.
            offset: Prefill's clock minus ours.
            now: On our clock.
        """
        expiry = remote.blocks_expiry_time
        if expiry is None:
            return False
        end = lease_end(
            expiry - offset - SLACK_S,
            getattr(remote, EXTENSION_KEY, 0.0),
            self._heartbeats.get((remote.engine_id, remote.request_id), ()),
        )
        return now > end

    def done(self, req_id: str) -> Any:
        """The request's read has ended: its metadata, once."""
        meta = self.reading.pop(req_id, None)
        if meta is not None:
            self._heartbeats.pop((meta.remote.engine_id, meta.remote.request_id), None)
        return meta


@change_of(DECODE, _cannot)
def patch_decode(module: ModuleType) -> None:
    """Have the NIXL pull worker look at the lease before and after each read."""
    worker = module.NixlPullConnectorWorker
    changes = {
        "_read_blocks_for_req": _read_in_time,
        "_pop_done_transfers": _done_in_time,
        "_send_heartbeats": _noting_heartbeats,
    }
    for name in (*changes, "_handle_failed_transfer"):
        getattr(worker, name)  # all or nothing
    # vLLM 0.24 has these methods, and offers that carry no end.
    offer = getattr(sys.modules.get(METADATA), "RemoteMeta", None)
    if offer is not None and "blocks_expiry_time" not in offer.__dataclass_fields__:
        raise NotKnown("RemoteMeta has no blocks_expiry_time")
    for name, make in changes.items():
        replace_once(worker, name, make)


def checks_lease(worker: Any) -> bool:
    """Whether this connector worker is one that `patch_decode` has changed."""
    return is_replaced(type(worker), "_read_blocks_for_req")


def _read_in_time(plain: Any) -> Any:
    def read_blocks_for_req(self: Any, req_id: str, meta: Any) -> None:
        if meta.remote.blocks_expiry_time is not None and any(meta.local_block_ids):
            if _has_ended(self, meta):
                _say(req_id, meta, "not read")
                self._handle_failed_transfer(req_id, None)
                return
            _leases_of(self).reading[req_id] = meta
        plain(self, req_id, meta)

    return read_blocks_for_req


def _done_in_time(plain: Any) -> Any:
    def pop_done_transfers(self: Any, transfers: Any) -> set[str]:
        done: set[str] = plain(self, transfers)
        leases = _leases_of(self)
        for req_id in done:
            meta = leases.reading.get(req_id)
            late = meta is not None and _has_ended(self, meta)
            leases.done(req_id)
            if late:
                _say(req_id, meta, "read too late")
                self._handle_failed_transfer(req_id, None)
        return done

    return pop_done_transfers


def _noting_heartbeats(plain: Any) -> Any:
    def send_heartbeats(self: Any, metadata: Any) -> None:
        now = time.perf_counter()
        for engine_id, heartbeat in metadata.heartbeat_by_engine.items():
            if engine_id in self._remote_agents:  # else it is only shaking hands, and sends none
                _leases_of(self).beat(engine_id, heartbeat.req_ids, now)
        plain(self, metadata)

    return send_heartbeats


def _leases_of(worker: Any) -> Leases:
    leases: Leases | None = getattr(worker, "baton_leases", None)
    if leases is None:
        leases = worker.baton_leases = Leases()
    return leases


def _has_ended(worker: Any, meta: Any) -> bool:
    offset = worker._engine_clock_offset.get(meta.remote.engine_id)  # noqa: SLF001
    # An engine that was evicted meanwhile took its offset along: then nothing is known.
    return offset is None or _leases_of(worker).has_ended(meta.remote, offset, time.perf_counter())


def _say(req_id: str, meta: Any, what: str) -> None:
    log.error(
        "KV of request %s was %s: prefill's lease had ended (engine %s)",
        req_id,
        what,
        meta.remote.engine_id,
    )
