"""What names a fabric. The tables are of runs, on two CPU engines and on an H200."""

from __future__ import annotations

import pytest

from baton.verify.evidence import Raw
from baton.verify.fabric import of_provider, of_tables, of_transport
from tests.unit.verify.situations import FOLDER


def raw(name: str) -> Raw:
    return Raw.model_validate_json((FOLDER / "raw" / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize(
    ("name", "fabric", "fast"),
    [
        ("h200-default", "tcp", False),
        ("h200-getzcopy", "cuda_ipc", True),
        ("h200-expandable-segments", "tcp", False),
        ("h200-host", "shm", False),
    ],
)
def test_a_raw_transfer_on_a_gpu_names_its_fabric(name: str, fabric: str, fast: bool) -> None:
    """One variable decides it there, and expandable segments undo it: 0.4 GB/s against hundreds."""
    found = raw(name)
    assert of_tables(found.ucx, "get").fabric == fabric
    assert found.gb_per_s is not None
    assert (found.gb_per_s > 100) is fast


def test_writes_of_the_same_processes_say_nothing_of_reads() -> None:
    """UCX chose memory for writes where it chose TCP for reads."""
    assert of_tables(raw("h200-default").ucx, "put").fabric is None


@pytest.mark.parametrize(
    ("transport", "fabrics"),
    [
        ("tcp/lo", {"tcp"}),
        ("tcp/eth0", {"tcp"}),
        ("cma/memory", {"shm"}),
        ("sysv/memory", {"shm"}),
        ("cuda_ipc/cuda", {"cuda_ipc"}),
        ("rc_mlx5/mlx5_0:1", {"rdma"}),
        ("50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1", {"rdma"}),
        ("rc_mlx5/mlx5_0:1 and cuda_copy/cuda", {"rdma"}),
        ("srd/rdmap0s6:1", {"efa"}),
        ("ud_verbs/mlx5_0:1", {"rdma"}),
        ("something/else", set()),
    ],
)
def test_transports_belong_to_fabrics(transport: str, fabrics: set[str]) -> None:
    """By UCX's names; copies inside a process cross nothing, and the unknown stays so."""
    assert of_transport(transport) == fabrics


def test_tables_that_disagree_name_no_fabric() -> None:
    """Small transfers over one, large ones over another: neither would be the truth."""
    mixed = (*raw("h200-default").ucx, *raw("h200-getzcopy").ucx)
    seen = of_tables(mixed, "get")
    assert seen.fabric is None
    assert "tcp" in seen.why_not


@pytest.mark.parametrize(
    ("provider", "fabric"),
    [("tcp", "tcp"), ("tcp;ofi_rxm", "tcp"), ("efa", "efa"), ("verbs", "rdma"), ("psm3", None)],
)
def test_providers_belong_to_fabrics(provider: str, fabric: str | None) -> None:
    """Layered ones by their first name."""
    assert of_provider(provider) == fabric
