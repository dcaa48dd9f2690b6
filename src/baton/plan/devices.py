"""GPUs and instances as published: `data/devices.toml` holds each figure's source and date.

Only devices and fabric: what a cluster needs to know of an instance (zones, quotas, node groups) is
the deploy room's. `--gpu` names a GPU (`H100`) or an instance type (`p5.48xlarge`), which then is
the only one that is bought.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from baton.errors import DeviceUnknown
from baton.spec.suggest import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable

MIB = 1024 * 1024
GBIT = 1e9 / 8


@dataclass(frozen=True)
class Source:
    """Where a figure was published, and when it was read or was valid."""

    text: str
    date: str


@dataclass(frozen=True)
class Gpu:
    """One GPU. FLOP/s are dense; `fp8_flops` is None where there are no FP8 tensor cores."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None
    link: str
    """How GPUs of one instance are joined: `NVLink` or `PCIe`."""
    link_bytes_per_s: float
    source: Source


@dataclass(frozen=True)
class Instance:
    """What can be bought. `usd_per_hour` is None where no dated price is known."""

    name: str
    gpu: str
    gpus: int
    network_bytes_per_s: float
    efa_nics: int
    usd_per_hour: float | None
    price_source: Source | None
    source: Source

    @property
    def has_efa(self) -> bool:
        """Whether KV can leave the instance by RDMA."""
        return self.efa_nics > 0


@cache
def _tables() -> dict[str, Any]:
    text = files("baton.plan").joinpath("data/devices.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _source(name: str) -> Source:
    return Source(**_tables()["sources"][name])


@cache
def all_gpus() -> dict[str, Gpu]:
    """Every GPU of the table by name."""
    return {
        name: Gpu(
            name=name,
            memory_bytes=row["memory_mib"] * MIB,
            memory_bytes_per_s=row["memory_bytes_per_s"],
            bf16_flops=row["bf16_flops"],
            fp8_flops=row.get("fp8_flops"),
            link=row["link"],
            link_bytes_per_s=row["link_bytes_per_s"],
            source=_source(row["source"]),
        )
        for name, row in _tables()["gpu"].items()
    }


@cache
def all_instances() -> dict[str, Instance]:
    """Every instance type of the table by name."""
    found = {}
    for name, row in _tables()["instance"].items():
        price = row.get("price")
        found[name] = Instance(
            name=name,
            gpu=row["gpu"],
            gpus=row["gpus"],
            network_bytes_per_s=row["network_gbps"] * GBIT,
            efa_nics=row.get("efa_nics", 0),
            usd_per_hour=price["usd_per_hour"] if price else None,
            price_source=_source(price["source"]) if price else None,
            source=_source("ec2_types"),
        )
    return found


_ALIASES = {
    "g5": "A10G", "g6": "L4", "g6e": "L40S", "p4d": "A100-40G", "p5": "H100", "p5en": "H200",
    "p6": "B200", "p6-b200": "B200", "a100": "A100-40G", "a100-40gb": "A100-40G",
}  # fmt: skip


@dataclass(frozen=True)
class Hardware:
    """A GPU, and the instance types that it may be bought in."""

    gpu: Gpu
    instances: tuple[Instance, ...]


def find_hardware(name: str) -> Hardware:
    """The GPU of that name, or of that instance type or family (`p5`).

    Raises:
        DeviceUnknown: It is not in the table; the cure names the nearest that is.
    """
    gpus, instances = all_gpus(), all_instances()
    wanted = name.strip().lower()
    for instance in instances.values():
        if instance.name == wanted:
            return Hardware(gpus[instance.gpu], (instance,))
    by_case = {known.lower(): known for known in gpus}
    found = by_case.get(wanted) or _ALIASES.get(wanted)
    if found is not None:
        return Hardware(gpus[found], tuple(i for i in instances.values() if i.gpu == found))
    near = nearest(name, [*gpus, *instances], cutoff=0.5)
    guess = f"did you mean `{near}`? " if near else ""
    raise DeviceUnknown(
        f"`{name}` is not in the table of devices",
        cure=f"{guess}GPUs: {', '.join(gpus)}; or an instance type: {', '.join(instances)}",
    )


def find_all_hardware(names: Iterable[str]) -> list[Hardware]:
    """Each GPU once, with every instance type that one of the names allows.

    Raises:
        DeviceUnknown: One is not in the table.
    """
    allowed: dict[str, set[str]] = {}
    for name in names:
        hardware = find_hardware(name)
        allowed.setdefault(hardware.gpu.name, set()).update(i.name for i in hardware.instances)
    return [
        Hardware(all_gpus()[gpu], tuple(i for i in all_instances().values() if i.name in types))
        for gpu, types in allowed.items()
    ]


def unnamed_hardware(gpus: int = 8) -> Hardware:
    """For a measured engine whose machine nobody named: no price, no fabric, so many GPUs."""
    nobody = Source("measured by `baton profile`", "")
    gpu = Gpu("engine", 0, 0.0, 0.0, None, "unknown", 0.0, nobody)
    # EFA, so that two machines may hand over: how fast is the profile's to say.
    machine = Instance("machine", "engine", gpus, 0.0, 1, None, None, nobody)
    return Hardware(gpu, (machine,))
