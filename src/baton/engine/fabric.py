"""Finds out what a process's KV transfers really run on: pure readers of what libraries leave.

A NIXL agent says which backends it holds, and not what they found beneath them. What does say it:

- UCX, told by `UCX_PROTO_INFO=y`, writes a table for each operation and kind of memory once it has
  chosen (`read_ucx_protocols`): `tcp/lo`, `cma/memory`, `cuda_ipc/cuda`, `rc_mlx5/mlx5_0:1`.
- The LIBFABRIC plugin publishes its endpoints in the agent's metadata (`read_libfabric_rails`), and
  the form of an address gives the provider away: a socket's begins with its family, EFA's with an
  InfiniBand GID. That is what peers connect to, so it cannot be another provider's.
- The kernel counts the bytes of each device, and knows which device files a process has open.

Lines of NIXL's own log are read as well (`read_nixl_log`), where somebody has them: the probe.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from baton.spec.transfer import LibfabricRails, UcxProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from baton.spec.transfer import Operation

_BAR = re.compile(r"\|(.*)\|\s*$")
# UCX 1.20, ucp_proto_select_dump…: "remote memory read by ucp_get*(multi) into host memory from
# host", "remote memory write by ucp_put* from cuda/GPU0 memory to cuda/GPU0".
_GET = re.compile(r"remote memory read by ucp_get\S* into (\S+)(?: memory)? from (\S+)")
_PUT = re.compile(r"remote memory write by ucp_put\S* from (\S+)(?: memory)? to (\S+)")
_SCOPE = re.compile(r"\b(self|intra-node|inter-node)\b")
_SIZES = re.compile(r"^\d\S*(\.\.\S+)?$|^0$")


def read_ucx_protocols(text: str) -> tuple[UcxProtocol, ...]:
    """The tables of `UCX_PROTO_INFO=y` for reads and writes of remote memory, without doubles."""
    found: dict[UcxProtocol, None] = {}
    heading: tuple[Operation, str, str, str] | None = None
    for line in text.splitlines():
        bar = _BAR.search(line)
        if bar is None:
            continue
        cells = [cell.strip() for cell in bar.group(1).split("|")]
        if len(cells) == 2:  # noqa: PLR2004  # a heading: where, and what
            heading = _heading(*cells)
        elif heading is not None and len(cells) == 3 and _SIZES.match(cells[0]):  # noqa: PLR2004
            operation, scope, local, remote = heading
            protocol = UcxProtocol(
                operation=operation,
                scope=scope,
                local=local,
                remote=remote,
                sizes=cells[0],
                how=cells[1],
                transport=cells[2],
            )
            found[protocol] = None
    return tuple(found)


def _heading(where: str, what: str) -> tuple[Operation, str, str, str] | None:
    scope = _SCOPE.search(where)
    name = scope.group(1) if scope else ""
    if (get := _GET.search(what)) is not None:
        return "get", name, get.group(1), get.group(2)
    if (put := _PUT.search(what)) is not None:
        return "put", name, put.group(1), put.group(2)
    return None


# NIXL 1.3 `nixlSerDes`: name, eight bytes of length, value, "|". The LIBFABRIC plugin's part has
# `num_rails` and one `dest_data_ep_N` for each rail: what `fi_getname` of the endpoint returned.
_RAILS = re.compile(rb"num_rails(.{8})(\d+)\|", re.DOTALL)
_ENDPOINT = b"dest_data_ep_%d"
_LENGTH_BYTES = 8
_AF_INET, _AF_INET6 = 2, 10
_LINK_LOCAL_GID = b"\xfe\x80"


def read_libfabric_rails(metadata: bytes) -> LibfabricRails | None:
    """What the LIBFABRIC backend published in an agent's metadata; None when it holds none."""
    rails = _RAILS.search(metadata)
    if rails is None:
        return None
    count = int(rails.group(2))
    providers = {_provider_of(_endpoint(metadata, rail)) for rail in range(count)}
    only = providers.pop() if len(providers) == 1 else None
    return LibfabricRails(rails=count, provider=only)


def _endpoint(metadata: bytes, rail: int) -> bytes:
    _, _, rest = metadata.partition(_ENDPOINT % rail)
    size = int.from_bytes(rest[:_LENGTH_BYTES], "little")
    return rest[_LENGTH_BYTES : _LENGTH_BYTES + size]


def _provider_of(address: bytes) -> str | None:
    """A socket's address begins with its family (`tcp`), EFA's with a GID (libfabric `efa_ep_addr`:
    `raw[16]`, `qpn`, `pad`, `qkey`). Nobody has seen the second one here: it is from the source.
    """  # noqa: D205
    if not address:
        return None
    if address[:2] == _LINK_LOCAL_GID:
        return "efa"
    family = int.from_bytes(address[:2], "little")
    return "tcp" if family in (_AF_INET, _AF_INET6) else None


_CREATED = re.compile(r"Created (\d+) rails? using provider=(\S+)")
_DISCOVERED = re.compile(r"Discovered (\d+) (\S+) devices")


def read_nixl_log(text: str) -> dict[str, str | int]:
    """What NIXL's LIBFABRIC plugin says at `NIXL_LOG_LEVEL=INFO`: provider, rails, devices."""
    said: dict[str, str | int] = {}
    if (found := _DISCOVERED.search(text)) is not None:
        said["devices"], said["device_kind"] = int(found.group(1)), found.group(2)
    if (made := _CREATED.search(text)) is not None:
        said["rails"], said["provider"] = int(made.group(1)), made.group(2)
    return said


# -- the kernel ----------------------------------------------------------------------------------


def rdma_counters(root: Path = Path("/sys/class/infiniband")) -> dict[str, dict[str, int]]:
    """Counters of bytes of every RDMA device, EFA's too; empty where there is none.

    EFA's stand in `hw_counters` (`tx_bytes`, `rdma_read_bytes`, …), InfiniBand's in `counters`
    (`port_xmit_data`, in words of four bytes, which become bytes here).
    """
    found: dict[str, dict[str, int]] = {}
    for port in sorted(root.glob("*/ports/*")):
        counters: dict[str, int] = {}
        for file in sorted((*port.glob("counters/*"), *port.glob("hw_counters/*"))):
            name = file.name
            value = _number(file) if name.endswith(("_bytes", "_data")) else None
            if value is not None:
                counters[name] = value * 4 if name.startswith("port_") else value
        found[f"{port.parent.parent.name}/{port.name}"] = counters
    return found


def net_counters(table: Path = Path("/proc/self/net/dev")) -> dict[str, dict[str, int]]:
    """Bytes in and out of every network interface of this process's network namespace."""
    found: dict[str, dict[str, int]] = {}
    for line in _text(table).splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) > 8:  # noqa: PLR2004  # the ninth is bytes sent
            found[name.strip()] = {"rx_bytes": int(fields[0]), "tx_bytes": int(fields[8])}
    return found


def rdma_devices_open(root: Path = Path("/proc/self/fd")) -> tuple[str, ...]:
    """Files of `/dev/infiniband` that this process has open."""
    found = set()
    for file in _entries(root):
        try:
            target = os.readlink(file)  # noqa: PTH115  # a Path would be made for every socket
        except OSError:
            continue
        if target.startswith("/dev/infiniband/"):
            found.add(target)
    return tuple(sorted(found))


def _entries(root: Path) -> Iterable[Path]:
    try:
        return list(root.iterdir())
    except OSError:
        return []


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
