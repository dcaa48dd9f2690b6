"""What EC2 instance types have: figures of a table that `tools/generate_instance_table.py` wrote.

The table has a date. A type that is not in it is unknown, which is neither fit nor unfit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

# The names that Ray gives to GPUs (`ray.util.accelerators`), by EC2's names for them.
_RAY_NAMES = {
    "A100": "A100", "A10G": "A10G", "B200": "B200", "B300": "B300", "H100": "H100",
    "H200": "H200", "L4": "L4", "L40S": "L40S", "T4": "T4", "V100": "V100",
}  # fmt: skip


@dataclass(frozen=True)
class Instance:
    """One instance type. Memory in MiB."""

    name: str
    vcpus: int
    memory_mib: int
    efa_interfaces: int = 0
    """`EfaInfo.MaximumEfaInterfaces`; 0 when the type has no EFA."""
    gpus: int = 0
    gpu: str = ""
    """EC2's name of the GPU."""
    gpu_memory_mib: int = 0
    """Of one GPU."""

    @property
    def accelerator_type(self) -> str | None:
        """Ray's name of the GPU, None when Ray has none."""
        return _RAY_NAMES.get(self.gpu)


@cache
def _table() -> dict[str, Any]:
    text = (resources.files("baton.deploy.eks") / "instances.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def find_instance(name: str) -> Instance | None:
    """The figures of a type, None when the table does not have it."""
    figures = _table()["types"].get(name)
    return None if figures is None else Instance(name, **figures)


def gpu_types() -> list[str]:
    """All types with GPUs that the table has."""
    return sorted(name for name, figures in _table()["types"].items() if figures.get("gpus"))


def table_source() -> str:
    """Where the figures come from, with the date, for messages."""
    table = _table()
    return f"{table['source']}, {table['date']}"
