"""Writes `src/baton/deploy/eks/instances.json`: the figures of EC2 instance types that matter here.

The source is the table that moto (a dev dependency) carries, which its authors take from EC2's
`DescribeInstanceTypes`. Only figures are kept: GPUs and their memory, vCPUs, RAM, EFA interfaces.
Moto is not imported: its file is read where the package lies. `--check` only compares.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[1] / "src" / "baton" / "deploy" / "eks" / "instances.json"
SOURCE = "moto/ec2/resources/instance_types.json.gz"
# When moto's release was made; its metadata holds no date.
DATES = {"5.2.5": "2026-10-27"}
# Families of CPU nodes that are worth knowing for the head and the operator.
CPU_FAMILIES = ("c6i", "c7i", "m5", "m6i", "m7i", "r6i", "r7i")


def row(entry: dict[str, Any]) -> dict[str, Any]:
    """The figures of one instance type."""
    figures: dict[str, Any] = {
        "vcpus": entry["VCpuInfo"]["DefaultVCpus"],
        "memory_mib": entry["MemoryInfo"]["SizeInMiB"],
        "efa_interfaces": entry["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
    }
    gpus = entry.get("GpuInfo", {}).get("Gpus", [])
    if gpus:
        figures["gpus"] = gpus[0]["Count"]
        figures["gpu"] = gpus[0]["Name"]
        figures["gpu_memory_mib"] = gpus[0]["MemoryInfo"]["SizeInMiB"]
    return figures


def wanted(name: str, entry: dict[str, Any]) -> bool:
    """x86-64 machines with whole NVIDIA GPUs, and a few families without any."""
    if "x86_64" not in entry["ProcessorInfo"]["SupportedArchitectures"]:
        return False
    gpus = entry.get("GpuInfo", {}).get("Gpus", [])
    if gpus:
        return len(gpus) == 1 and gpus[0]["Manufacturer"] == "NVIDIA" and gpus[0]["Count"] >= 1
    return name.partition(".")[0] in CPU_FAMILIES and not entry.get("BareMetal")


def table() -> str:
    """The whole file as text, one type a line."""
    moto = importlib.metadata.distribution("moto")
    raw = Path(str(moto.locate_file(SOURCE))).read_bytes()
    types: dict[str, Any] = json.loads(gzip.decompress(raw))
    rows = [
        f"  {json.dumps(name)}: {json.dumps(row(entry))}"
        for name, entry in sorted(types.items())
        if wanted(name, entry)
    ]
    source = f"moto {moto.version}, {SOURCE}"
    head = {"source": source, "date": DATES.get(moto.version, "unknown")}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    return "\n".join(["{", *lines, ' "types": {', ",\n".join(rows), " }", "}"]) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    text = table()
    if parser.parse_args().check:
        same = TABLE.is_file() and TABLE.read_text(encoding="utf-8") == text
        if not same:
            sys.stderr.write(f"{TABLE} is stale: run tools/generate_instance_table.py\n")
        return int(not same)
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
