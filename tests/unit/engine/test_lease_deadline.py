"""When decode stops trusting KV: the end of prefill's lease, with heartbeats and without."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine import lease_deadline
from baton.engine.lease_deadline import (
    EXTENSION_KEY,
    SLACK_S,
    checks_lease,
    lease_end,
    patch_decode,
    patch_metadata,
    patch_prefill,
)

LEASE_S = 30.0
EXTENSION_S = 20.0


def test_a_heartbeat_that_was_sent_in_time_moves_the_end():
    """By two thirds of a lease from when it was sent, less the slack."""
    assert lease_end(100, 20, []) == 100
    assert lease_end(100, 20, [95]) == 95 + 20 - SLACK_S
    assert lease_end(100, 20, [70]) == 100  # it adds nothing


def test_a_heartbeat_that_may_have_come_too_late_moves_nothing():
    """Nor does any behind it: the lease was over."""
    assert lease_end(100, 20, [99.5, 101, 105]) == 100


@given(
    st.lists(st.tuples(st.floats(0, 200), st.floats(0, SLACK_S)), max_size=30),
    st.floats(-SLACK_S, SLACK_S),
)
def test_decode_never_believes_in_a_lease_that_prefill_has_ended(beats, clock_error):
    """Whatever the heartbeats, their way of up to a second, and the error of the clocks' offset."""
    beats = sorted(beats)
    really_ends = LEASE_S
    for sent_at, took in beats:  # nixl/base_worker.py: `_handle_heartbeat`, then what has expired
        arrived = sent_at + took
        if arrived <= really_ends:
            really_ends = max(really_ends, arrived + EXTENSION_S)
    believed = lease_end(LEASE_S + clock_error - SLACK_S, EXTENSION_S, [sent for sent, _ in beats])
    assert believed <= really_ends


class Remote(SimpleNamespace):
    """Stands for vLLM's RemoteMeta."""


def remote(expiry, **more):
    return Remote(engine_id="p", request_id="q", blocks_expiry_time=expiry, **more)


def worker_of(offset=0.0):
    class NixlPullConnectorWorker:
        def __init__(self):
            self._engine_clock_offset = {"p": offset}
            self._remote_agents = {"p": {}}
            self.read, self.failed, self.complete, self.beats = [], [], set(), []

        def _read_blocks_for_req(self, req_id, meta):
            self.read.append(req_id)

        def _pop_done_transfers(self, transfers):
            return set(self.complete)

        def _send_heartbeats(self, metadata):
            self.beats.append(metadata)

        def _handle_failed_transfer(self, req_id, handle):
            self.failed.append(req_id)

    module = SimpleNamespace(NixlPullConnectorWorker=NixlPullConnectorWorker)
    patch_decode(module)
    patch_decode(module)  # plugins may be loaded twice
    return NixlPullConnectorWorker()


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(lease_deadline, "time", SimpleNamespace(perf_counter=lambda: now.now))
    return now


def meta_of(expiry, **more):
    return SimpleNamespace(remote=remote(expiry, **more), local_block_ids=[[4], [5]])


def test_a_read_in_time_is_left_alone(clock):
    """Begun and complete before the end, on two clocks that differ."""
    worker = worker_of(offset=5000.0)
    worker._read_blocks_for_req("r", meta_of(1030 + 5000))
    clock.now += 28
    worker.complete = {"r"}
    assert worker._pop_done_transfers({}) == {"r"}
    assert (worker.read, worker.failed) == (["r"], [])


def test_an_offer_whose_lease_has_ended_is_not_read(clock):
    """It fails before any block is touched."""
    worker = worker_of()
    worker._read_blocks_for_req("r", meta_of(1000 + SLACK_S / 2))
    assert (worker.read, worker.failed) == ([], ["r"])


def test_a_read_that_is_seen_complete_too_late_fails(clock):
    """The engine was frozen in between: what was read then nobody knows."""
    worker = worker_of()
    worker._read_blocks_for_req("r", meta_of(1030))
    clock.now += 31
    worker.complete = {"r"}
    assert worker._pop_done_transfers({}) == {"r"}
    assert worker.failed == ["r"]
    assert worker._pop_done_transfers({}) == {"r"}
    assert worker.failed == ["r"]  # once


def test_heartbeats_that_were_sent_keep_the_lease_alive(clock):
    """Those to an engine that no hands were shaken with yet are not sent, and do not count."""
    worker = worker_of()
    beat = SimpleNamespace(
        heartbeat_by_engine={
            "p": SimpleNamespace(req_ids={"q"}),
            "stranger": SimpleNamespace(req_ids={"q"}),
        }
    )
    for _ in range(5):
        clock.now += 5
        worker._send_heartbeats(beat)
    clock.now += 15  # 40 s after the offer
    worker._read_blocks_for_req("r", meta_of(1030, **{EXTENSION_KEY: 20.0}))
    assert worker.read == ["r"]
    assert len(worker.beats) == 5
    assert set(worker.baton_leases._heartbeats) == {("p", "q")}


def test_an_offer_without_an_end_is_read_as_vllm_does(clock):
    """Its engine has no Baton: the gateway guards it."""
    worker = worker_of()
    worker._read_blocks_for_req("r", meta_of(None))
    clock.now += 1000
    worker.complete = {"r"}
    worker._pop_done_transfers({})
    assert (worker.read, worker.failed) == (["r"], [])


def test_an_engine_that_was_evicted_meanwhile_is_not_trusted(clock):
    """The offset of its clock is gone with it."""
    worker = worker_of()
    worker._read_blocks_for_req("r", meta_of(1030))
    worker._engine_clock_offset.clear()
    worker.complete = {"r"}
    worker._pop_done_transfers({})
    assert worker.failed == ["r"]


def test_prefills_offers_say_when_its_lease_ends():
    """And how much a heartbeat adds; what is no offer of prefill's is left as it is."""

    class NixlPullConnectorScheduler:
        _kv_lease_duration = 30

        def __init__(self):
            self._reqs_need_send = {"r": 1030.0}

        def request_finished(self, request, block_ids):
            params = {"do_remote_prefill": request.prefill, "remote_blocks_expiry_time": None}
            return bool(block_ids), params

    module = SimpleNamespace(NixlPullConnectorScheduler=NixlPullConnectorScheduler)
    patch_prefill(module)
    patch_prefill(module)
    scheduler = NixlPullConnectorScheduler()
    finished = SimpleNamespace(request_id="r", prefill=True)
    _, params = scheduler.request_finished(finished, [[1]])
    assert params["remote_blocks_expiry_time"] == 1030.0
    assert params[EXTENSION_KEY] == 20
    for other, blocks in ((SimpleNamespace(request_id="r", prefill=False), [[1]]), (finished, [])):
        _, params = scheduler.request_finished(other, blocks)
        assert params["remote_blocks_expiry_time"] is None


def test_decodes_worker_hears_how_much_a_heartbeat_adds():
    """vLLM's metadata has no field for it."""

    class NixlConnectorMetadata:
        def __init__(self):
            self.reqs_to_recv = {}

        def add_new_req_to_recv(self, request_id, blocks, params, cached=()):
            self.reqs_to_recv[request_id] = SimpleNamespace(remote=Remote())

    patch_metadata(SimpleNamespace(NixlConnectorMetadata=NixlConnectorMetadata))
    metadata = NixlConnectorMetadata()
    metadata.add_new_req_to_recv("r", [], {EXTENSION_KEY: 20}, (1,))
    metadata.add_new_req_to_recv("s", [], {EXTENSION_KEY: "evil"})
    assert getattr(metadata.reqs_to_recv["r"].remote, EXTENSION_KEY) == 20.0
    assert not hasattr(metadata.reqs_to_recv["s"].remote, EXTENSION_KEY)


@pytest.mark.parametrize("patch", [patch_prefill, patch_metadata, patch_decode])
def test_a_vllm_that_looks_otherwise_is_said_so(patch, caplog):
    """The gateway's guard is left then, and a person should know."""
    patch(SimpleNamespace())
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_vllm_whose_offers_carry_no_end_is_left_as_it_is(monkeypatch, caplog):
    """vLLM 0.24: every read would fail in our code, and take the EngineCore with it."""

    @dataclass
    class RemoteMeta:
        engine_id: str

    class Worker:
        def _read_blocks_for_req(self, req_id, meta):
            """vLLM's own."""

        _send_heartbeats = _pop_done_transfers = _handle_failed_transfer = _read_blocks_for_req

    plain = Worker._read_blocks_for_req
    monkeypatch.setitem(
        sys.modules, lease_deadline.METADATA, SimpleNamespace(RemoteMeta=RemoteMeta)
    )
    patch_decode(SimpleNamespace(NixlPullConnectorWorker=Worker))
    assert Worker._read_blocks_for_req is plain
    assert not checks_lease(Worker())
    assert "blocks_expiry_time" in caplog.text


def test_a_worker_says_whether_it_checks_the_lease():
    """The gateway asks no further then."""
    assert checks_lease(worker_of())
    assert not checks_lease(SimpleNamespace())
    assert not checks_lease(None)
