"""What the workers found, joined to one statement."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from baton.engine.evidence import (
    _kv_bytes_per_token,
    facts_of,
    gather_evidence,
    kv_bytes_per_token,
    kv_lease_s,
)


def test_only_what_every_worker_has_counts_as_observed() -> None:
    """One worker without the fast backend makes every handoff slow."""
    workers = [
        {"observed_backends": ["LIBFABRIC", "UCX"], "kv_buffer_device": "cuda"},
        {"observed_backends": ["UCX"], "kv_buffer_device": "cuda"},
    ]
    found = gather_evidence(workers, {"kv_connector": "NixlConnector"})
    assert found.observed_backends == ("UCX",)


def test_ucx_is_requested_when_no_backend_is_named() -> None:
    """vLLM's own default, so that requested and observed can be compared."""
    found = gather_evidence([], {"kv_connector": "NixlConnector"})
    assert found.requested_backends == ("UCX",)
    assert found.observed_backends == ()


def test_requested_backends_come_from_the_extra_config() -> None:
    """As vLLM reads them."""
    config = {
        "kv_connector": "NixlConnector",
        "kv_connector_extra_config": {"backends": ["LIBFABRIC"]},
    }
    assert gather_evidence([], config).requested_backends == ("LIBFABRIC",)


def test_an_engine_without_kv_transfer_has_no_evidence() -> None:
    """Nothing was asked for, and nothing is claimed."""
    found = gather_evidence([{}], None)
    assert (found.connector, found.requested_backends, found.observed_backends) == (None, (), ())


def test_workers_that_disagree_on_the_buffer_device_leave_it_unknown() -> None:
    """Unknown is not the same as any of the two."""
    workers = [{"kv_buffer_device": "cpu"}, {"kv_buffer_device": "cuda"}]
    assert gather_evidence(workers, {"kv_connector": "NixlConnector"}).kv_buffer_device is None


@pytest.mark.parametrize(
    ("workers", "all_do"),
    [
        ([{"checks_lease": True}, {"checks_lease": True}], True),
        ([{"checks_lease": True}, {}], False),
        ([], False),
    ],
)
def test_the_lease_is_checked_only_when_every_worker_does(
    workers: list[dict[str, bool]], *, all_do: bool
) -> None:
    """One that does not is enough for wrong KV; nothing known is no pass."""
    assert gather_evidence(workers, {"kv_connector": "NixlConnector"}).checks_lease is all_do


def test_an_engine_says_how_long_it_keeps_an_offer() -> None:
    """What the file says, else vLLM's default; nothing without a connector."""
    extra = {"kv_connector_extra_config": {"kv_lease_duration": 6}}
    assert kv_lease_s({"kv_connector": "NixlConnector", **extra}) == 6.0
    assert kv_lease_s({"kv_connector": "NixlConnector"}) == 30.0
    assert kv_lease_s(None) == 0.0


def test_kv_bytes_of_a_token_are_those_of_all_workers() -> None:
    """Each holds a part; one that does not say leaves it unknown."""
    worker = SimpleNamespace(block_len_per_layer=[4096, 4096], block_size=16)
    assert _kv_bytes_per_token(worker) == 512
    assert _kv_bytes_per_token(SimpleNamespace(block_len_per_layer=[], block_size=16)) == 0
    assert _kv_bytes_per_token(None) == 0
    told = {"kv_bytes_per_token": 512}
    assert kv_bytes_per_token([told, told]) == 1024
    assert kv_bytes_per_token([told, {}]) == 0
    assert kv_bytes_per_token([]) == 0


def test_a_workers_facts_are_read_from_its_agent_and_its_process() -> None:
    """Backends and rails from the agent, memory and hash from the connector."""
    rails = b"num_rails" + (1).to_bytes(8, "little") + b"1|dest_data_ep_0"
    address = b"\x02\x00" + bytes(14)
    metadata = rails + len(address).to_bytes(8, "little") + address
    agent = SimpleNamespace(backends={"LIBFABRIC": 1}, get_agent_metadata=lambda: metadata)
    worker = SimpleNamespace(
        nixl_wrapper=agent,
        device_type="cuda",
        kv_buffer_device="cpu",
        use_host_buffer=True,
        nixl_memory_type="DRAM",
        compat_hash="abc",
        block_len_per_layer=[1024, 1024],
        block_size=16,
    )
    facts = facts_of(worker, "NixlPullConnector", 3)
    assert (facts.rank, facts.observed_backends, facts.host_buffer) == (3, ("LIBFABRIC",), True)
    assert facts.libfabric is not None
    assert facts.libfabric.provider == "tcp"
    assert (facts.compatibility_hash, facts.kv_bytes_per_token) == ("abc", 128)
    assert "lo" in facts.net_counters


def test_a_worker_of_another_vllm_says_what_it_can() -> None:
    """Unknown stays unknown, and nothing is raised."""
    facts = facts_of(SimpleNamespace(), "SomeConnector", 0)
    assert facts.observed_backends == ()
    assert (facts.libfabric, facts.memory_type, facts.device) == (None, None, None)
