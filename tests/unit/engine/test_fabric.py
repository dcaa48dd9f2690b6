"""What libraries and the kernel leave behind, read. The texts are of real runs unless said so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.engine.fabric import (
    net_counters,
    rdma_counters,
    rdma_devices_open,
    read_libfabric_rails,
    read_nixl_log,
    read_ucx_protocols,
)

if TYPE_CHECKING:
    from pathlib import Path

# UCX 1.20 as NIXL 1.3.2 brings it, two processes of one machine, UCX_PROTO_INFO=y.
BY_MEMORY = """\
[1796021841.589210] [vm:18712:0]   +--------------------------+--------------------------------+
[1796021841.589216] [vm:18712:0]   | ucp_context_0 self cfg#0 | active message by ucp_am_send* from host memory    |
[1796021841.590126] [vm:18712:0]   |                        0 | short                                     | tcp/lo |
[1796021841.590127] [vm:18712:0]   |                 1..16515 | zero-copy                                 | tcp/lo |
[1796021861.000000] [vm:18838:0]   +--------------------------------+----------------------------+------------+
[1796021861.000000] [vm:18838:0]   | ucp_context_0 intra-node cfg#1 | remote memory read by ucp_get*(multi) into host memory from host    |
[1796021861.000000] [vm:18838:0]   +--------------------------------+----------------------------+------------+
[1796021861.000000] [vm:18838:0]   |                         0..inf | zero-copy                  | cma/memory |
[1796021861.000000] [vm:18838:0]   +--------------------------------+----------------------------+------------+
"""  # noqa: E501
PUT = """\
[1796021842.929547] [vm:18714:0]   | ucp_context_0 self cfg#0 | remote memory write by ucp_put* from host memory to host    |
[1796021842.929548] [vm:18714:0]   +--------------------------+------------------------------+------------+
[1796021842.929548] [vm:18714:0]   |                   0..inf | zero-copy                    | cma/memory |
"""  # noqa: E501
# The same with UCX_TLS=tcp.
BY_TCP = """\
[1796021870.312418] [vm:18938:0]   | ucp_context_0 intra-node cfg#1 | remote memory read by ucp_get*(multi) into host memory from host    |
[1796021870.312418] [vm:18938:0]   +--------------------------------+----------------------------+--------+
[1796021870.312419] [vm:18938:0]   |                         0..inf | software emulation         | tcp/lo |
"""  # noqa: E501
# The row as it was read from two processes on one H200 (UCX_CUDA_IPC_ENABLE_GET_ZCOPY=on), in UCX's
# usual frame.
ON_GPU = """\
[1796025086.518163] [vm:987  :0]   | ucp_context_0 intra-node cfg#2 | remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda/dev[0]    |
[1796025086.518164] [vm:987  :0]   +--------------------------------+------------------------------+---------------+
[1796025086.518165] [vm:987  :0]   |                         0..inf | zero-copy                    | cuda_ipc/cuda |
"""  # noqa: E501
# NIXL 1.3.2 at NIXL_LOG_LEVEL=INFO, with libfabric's tcp provider.
NIXL_LOG = """\
I1130 06:57:26.821218   18804 libfabric_topology.cpp:136] Discovered 1 tcp devices (TCP fallback)
I1130 06:57:26.830431   18804 libfabric_rail_manager.cpp:232] Created 1 rails using provider=tcp
I1130 06:57:26.830477   18804 libfabric_backend.cpp:298] Initializing Libfabric Backend
"""


def metadata(*addresses: bytes) -> bytes:
    """An agent's metadata as NIXL 1.3.2 writes it, with these endpoints."""
    rails = str(len(addresses)).encode()
    text = b"nixlSerDes|num_rails" + len(rails).to_bytes(8, "little") + rails + b"|"
    for rail, address in enumerate(addresses):
        text += b"dest_data_ep_%d" % rail + len(address).to_bytes(8, "little") + address + b"|"
    return b"nixlSerDes|Agent\x0b" + b"\0" * 7 + b"target18851|Conns" + text + b"MemSection|"


SOCKET = b"\x02\x00\x98S\xc0\x00\x02\x02" + bytes(48)


def test_ucx_reads_and_writes_are_found_and_messages_are_not() -> None:
    """KV moves by reads and writes; messages only say that it has come."""
    (read,) = read_ucx_protocols(BY_MEMORY)
    assert (read.operation, read.scope, read.transport) == ("get", "intra-node", "cma/memory")
    assert (read.local, read.remote, read.sizes, read.how) == (
        "host",
        "host",
        "0..inf",
        "zero-copy",
    )
    (write,) = read_ucx_protocols(PUT)
    assert (write.operation, write.scope) == ("put", "self")


def test_the_same_table_twice_is_one_protocol() -> None:
    """UCX writes it for each connection."""
    assert len(read_ucx_protocols(BY_TCP + BY_TCP)) == 1


def test_memory_of_gpus_and_several_size_ranges_are_told_apart() -> None:
    """The first is of an H200, the second written by hand: InfiniBand was not at hand."""
    text = """
    | ucp_context_0 inter-node cfg#2 | remote memory read by ucp_get*(multi) into cuda/GPU0 from cuda/GPU1    |
    |                    0..8184 | copy-in                     | rc_mlx5/mlx5_0:1 |
    |                  8185..inf | zero-copy                   | rc_mlx5/mlx5_0:1 |
    """  # noqa: E501
    (gpu,) = read_ucx_protocols(ON_GPU)
    assert (gpu.local, gpu.remote, gpu.transport) == ("cuda/GPU0", "cuda/dev[0]", "cuda_ipc/cuda")
    small, large = read_ucx_protocols(text)
    assert (small.local, small.remote, small.sizes) == ("cuda/GPU0", "cuda/GPU1", "0..8184")
    assert large.sizes == "8185..inf"


def test_a_log_of_something_else_says_nothing() -> None:
    """No table, no evidence."""
    assert read_ucx_protocols("| a | b |\nnothing here\n| 0..inf | zero-copy | tcp/lo |") == ()


def test_the_form_of_an_endpoints_address_gives_the_provider_away() -> None:
    """A socket's family, or EFA's GID; the second one is from libfabric's source."""
    rails = read_libfabric_rails(metadata(SOCKET))
    assert rails is not None
    assert (rails.rails, rails.provider) == (1, "tcp")
    gid = b"\xfe\x80" + bytes(30)
    many = read_libfabric_rails(metadata(*[gid] * 12))
    assert many is not None
    assert (many.rails, many.provider) == (12, "efa")


def test_rails_that_differ_or_are_of_an_unknown_form_name_no_provider() -> None:
    """No guess."""
    for addresses in ((SOCKET, b"\xfe\x80" + bytes(30)), (b"\x7f\x7f" + bytes(30),), (b"",)):
        rails = read_libfabric_rails(metadata(*addresses))
        assert rails is not None
        assert rails.provider is None


def test_metadata_without_libfabric_has_no_rails() -> None:
    """UCX's agent."""
    assert read_libfabric_rails(b"nixlSerDes|Agent|UCX") is None


def test_nixls_log_names_provider_rails_and_devices() -> None:
    """What the usual check for `Backend LIBFABRIC was instantiated` overlooks."""
    assert read_nixl_log(NIXL_LOG) == {
        "devices": 1,
        "device_kind": "tcp",
        "rails": 1,
        "provider": "tcp",
    }
    assert read_nixl_log("Backend UCX was instantiated") == {}


def test_rdma_counters_are_bytes_of_every_port(tmp_path: Path) -> None:
    """InfiniBand counts words of four bytes, EFA bytes."""
    port = tmp_path / "rdmap0s0" / "ports" / "1"
    for name, value in (
        ("counters/port_xmit_data", "10"),
        ("hw_counters/rdma_read_bytes", "7"),
        ("hw_counters/lifespan", "12"),
    ):
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(f"{value}\n", "utf-8")
    assert rdma_counters(tmp_path) == {"rdmap0s0/1": {"port_xmit_data": 40, "rdma_read_bytes": 7}}
    assert rdma_counters(tmp_path / "none") == {}


def test_interfaces_counters_are_read_from_the_kernels_table(tmp_path: Path) -> None:
    """The process's own network namespace."""
    table = tmp_path / "dev"
    table.write_text(
        "Inter-|   Receive  |  Transmit\n face |bytes packets\n"
        "    lo: 100 1 0 0 0 0 0 0 200 1 0 0 0 0 0 0\n",
        "utf-8",
    )
    assert net_counters(table) == {"lo": {"rx_bytes": 100, "tx_bytes": 200}}


def test_open_device_files_are_listed(tmp_path: Path) -> None:
    """An agent on EFA or InfiniBand holds one; one on TCP holds sockets."""
    (tmp_path / "3").symlink_to("/dev/infiniband/uverbs0")
    (tmp_path / "4").symlink_to("socket:[1]")
    assert rdma_devices_open(tmp_path) == ("/dev/infiniband/uverbs0",)
