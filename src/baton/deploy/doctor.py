"""Judges a machine against what Baton needs, in general or for one file.

`machine_facts` looks, this file judges: pure functions from what was seen to lines that say ok,
warn or fail, each with a cure. What could not be found out is never ok.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from baton.spec.machine import GIB, in_gib
from baton.spec.matched import MATCHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.deploy.machine_facts import MachineFacts
    from baton.spec.checked import CheckedFile

Verdict = Literal["ok", "warn", "fail"]

RAY_PORTS = {6379: "Ray's head", 8265: "Ray's dashboard"}
ENOUGH_OPEN_FILES = 65_536
FEW_OPEN_FILES = 4_096
ENOUGH_SHM_BYTES = 2 * GIB
_SHM = "/dev/shm"  # noqa: S108 - the shared memory that Ray and NCCL use
_NEEDED = ("vllm", "ray", "nixl")

# Where the libraries come from that NIXL's plugins miss.
_LIBRARIES = {
    "libfabric.so.1": "install libfabric 1.22 or newer (AWS's EFA installer has it; Debian 12's"
    " 1.17 is too old) and put it on LD_LIBRARY_PATH",
    "libhwloc.so.15": "apt-get install libhwloc15",
    "libcuda.so.1": "install the NVIDIA driver",
    "libcufile.so.0": "install CUDA's GPUDirect Storage package, if you want that backend",
    "libred_client.so.2": "install the storage vendor's client, if you want that backend",
    "libucp.so.0": "install UCX, or the NIXL wheel that carries it",
}


@dataclass(frozen=True)
class Line:
    """One judgement."""

    name: str
    verdict: Verdict
    detail: str
    cure: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For `--format json`."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "detail": self.detail,
            "cure": self.cure,
        }


@dataclass(frozen=True)
class Demand:
    """What a file asks of the machine; the defaults are what any P/D pair needs."""

    backends: tuple[str, ...] = ("UCX",)
    require: str = "any"
    gpus: float = 0
    workers: int = 2
    replicas: int = 2
    http_port: int = 8000
    port_range: tuple[int, int] = (18_000, 18_999)
    side_channel_range: tuple[int, int] = (20_000, 20_999)
    memory_bytes: int = 0
    from_file: bool = False
    packages: tuple[str, ...] = field(default=_NEEDED)


def demand_of(checked: CheckedFile) -> Demand:
    """What a checked file asks for."""
    backends: dict[str, None] = {}
    gpus, workers, replicas, require = 0.0, 0, 0, "any"
    ports, side = (18_000, 18_999), (20_000, 20_999)
    for app in checked.applications:
        if not app.has_rules:
            continue
        engines = app.baton.engines
        ports = (engines.port_min, engines.port_max)
        side = (engines.side_channel_port_min, engines.side_channel_port_max)
        require = app.baton.transport.require if require == "any" else require
        for role in app.roles.values():
            extra = role.kv_transfer_config.get("kv_connector_extra_config") or {}
            asked = extra.get("backends") or ["UCX"]
            backends.update(dict.fromkeys(map(str, asked)))
            size = role.tensor_parallel_size * role.pipeline_parallel_size * role.num_replicas
            workers += size
            replicas += role.num_replicas
            gpus += 0 if role.on_cpu else size
    return Demand(
        backends=tuple(backends) or ("UCX",),
        require=require,
        gpus=gpus,
        workers=workers,
        replicas=replicas,
        http_port=int(checked.http_options.get("port", 8000)),
        port_range=ports,
        side_channel_range=side,
        from_file=True,
    )


def judge(facts: MachineFacts, demand: Demand) -> list[Line]:
    """All lines, in the order in which a person would go through them."""
    checks = (_versions, _gpus, _cores, _memory, _shm, _plugins, _fabric, _limits, _ports)
    return [line for check in checks for line in check(facts, demand)]


def _versions(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    major, minor = (int(part) for part in facts.python.split(".")[:2])
    if (major, minor) >= (3, 11):
        yield Line("Python", "ok", facts.python)
    else:
        yield Line("Python", "fail", facts.python, "use Python 3.11 or newer")
    for name, wanted in MATCHED.items():
        found = facts.versions.get(name)
        if found is None:
            verdict: Verdict = "fail" if name in demand.packages else "warn"
            yield Line(name, verdict, "not installed", f"install {name}=={wanted}: `make env`")
        elif found.split("+")[0] == wanted:
            yield Line(name, "ok", found)
        else:
            yield Line(
                name,
                "warn",
                f"{found}, and {wanted} is what was run together",
                f"install {name}=={wanted}",
            )


def _gpus(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    machine = facts.machine
    if machine.gpus:
        detail = (
            f"{machine.gpus} x {machine.gpu_name}, {in_gib(machine.gpu_memory_bytes)},"
            f" driver {machine.driver}"
        )
        short = demand.gpus > machine.gpus
        yield Line(
            "GPUs",
            "fail" if short else "ok",
            detail + (f"; the file asks for {demand.gpus:g}" if short else ""),
            "use fewer replicas or a smaller TP, or `--on cpu`" if short else None,
        )
    elif demand.gpus:
        yield Line("GPUs", "fail", f"none, and the file asks for {demand.gpus:g}", "use --on cpu")
    else:
        yield Line("GPUs", "ok", "none: engines run on the CPU")


def _cores(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    cores = facts.machine.cores
    note = "" if facts.avx512 is not False else ", no AVX-512"
    if demand.gpus == 0 and demand.workers > cores:
        yield Line(
            "cores",
            "warn",
            f"{cores}{note}, for {demand.workers} engine workers: they wait for each other",
            "use fewer replicas, or a smaller TP",
        )
    else:
        yield Line("cores", "ok", f"{cores}{note}")


def _memory(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    total = facts.machine.memory_bytes
    free = facts.available_bytes
    if free is None:
        yield Line("memory", "warn", f"{in_gib(total)}, free unknown", "look at /proc/meminfo")
    elif demand.gpus == 0 and free < demand.replicas * 3 * GIB:
        # Seen: 2.3 GiB for an engine of a 2-layer model, 5.5 GiB for one of Gemma 3 270M.
        yield Line(
            "memory",
            "warn",
            f"{in_gib(free)} free of {in_gib(total)}, for {demand.replicas} engines",
            "end what else uses memory, or take a smaller model",
        )
    else:
        yield Line("memory", "ok", f"{in_gib(free)} free of {in_gib(total)}")


def _shm(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    if facts.shm_bytes is None or facts.shm_free_bytes is None:
        yield Line(_SHM, "fail", "not there", "mount a tmpfs there")
    elif facts.shm_free_bytes < ENOUGH_SHM_BYTES:
        yield Line(
            _SHM,
            "warn",
            f"{in_gib(facts.shm_free_bytes)} free of {in_gib(facts.shm_bytes)}: Ray's object store"
            " falls back to disk, and NCCL may fail",
            "give the container more (--shm-size=8g, or an emptyDir of medium Memory)",
        )
    else:
        yield Line(_SHM, "ok", f"{in_gib(facts.shm_free_bytes)} free")
    del demand


def _plugins(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    if not facts.plugins:
        yield Line("NIXL plugins", "fail", "none found", "install nixl and nixl-cu13")
        return
    for name, missing in sorted(facts.plugins.items()):
        wanted = name in demand.backends
        if not missing:
            yield Line(f"NIXL {name}", "ok", "loads")
        elif not wanted and name not in {"UCX", "LIBFABRIC"}:
            detail = f"does not load: {', '.join(missing)} missing; for storage, not needed here"
            yield Line(f"NIXL {name}", "ok", detail)
        else:
            cures = [_LIBRARIES.get(library, f"install {library}") for library in missing]
            yield Line(
                f"NIXL {name}",
                "fail" if wanted else "warn",
                f"does not load: {', '.join(missing)} missing"
                + ("" if wanted else "; needed for EFA only" if name == "LIBFABRIC" else ""),
                "; ".join(cures),
            )
    for name in demand.backends:
        if name not in facts.plugins:
            yield Line(f"NIXL {name}", "fail", "no such plugin", f"use one of {_loadable(facts)}")


def _loadable(facts: MachineFacts) -> str:
    return ", ".join(name for name, missing in sorted(facts.plugins.items()) if not missing)


def _fabric(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    wanted = demand.require == "efa"
    if facts.efa_devices:
        yield Line("EFA devices", "ok", ", ".join(facts.efa_devices))
    elif wanted:
        yield Line(
            "EFA devices",
            "fail",
            "none, and the file requires efa",
            "use an instance type with EFA and its driver, or set transport.require: any",
        )
    else:
        yield Line("EFA devices", "ok", "none, and none is required")
    if facts.rdma_devices:
        yield Line("RDMA devices", "ok", ", ".join(facts.rdma_devices))
    elif demand.require == "rdma":
        yield Line("RDMA devices", "fail", "none, and the file requires rdma",
                   "set transport.require: any, or use a machine with RDMA")  # fmt: skip
    asked = wanted or "LIBFABRIC" in demand.backends
    if facts.fabric_providers is None:
        yield Line(
            "libfabric providers",
            "warn" if asked else "ok",
            "fi_info is not installed: unknown" if asked else "not needed",
            "install libfabric's tools (fi_info)" if asked else None,
        )
    elif wanted and "efa" not in facts.fabric_providers:
        yield Line(
            "libfabric providers",
            "fail",
            f"{', '.join(facts.fabric_providers)}: no efa",
            "install AWS's EFA software",
        )
    else:
        yield Line("libfabric providers", "ok", ", ".join(facts.fabric_providers) or "none")


def _limits(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    fabric = bool(facts.efa_devices or facts.rdma_devices) or demand.require in {"efa", "rdma"}
    locked = facts.memlock_bytes
    if locked == -1:
        yield Line("memlock", "ok", "unlimited")
    else:
        shown = "unknown" if locked is None else in_gib(locked)
        yield Line(
            "memlock",
            "fail" if fabric else "ok",
            f"{shown}" + (": RDMA cannot register the KV cache" if fabric else ", enough without"
                          " RDMA"),
            "ulimit -l unlimited (in Kubernetes: the IPC_LOCK capability)" if fabric else None,
        )  # fmt: skip
    pages = facts.hugepages
    if fabric and not pages:
        yield Line(
            "hugepages",
            "warn",
            "none: EFA registers memory in small pages",
            "sysctl vm.nr_hugepages=5128 (AWS's value), and hugepages-2Mi in the pod's limits",
        )
    else:
        yield Line("hugepages", "ok", f"{pages or 0}" + ("" if fabric else ", not needed"))
    files = facts.open_files
    if files is None or files < FEW_OPEN_FILES:
        yield Line("open files", "fail", f"{files}", f"ulimit -n {ENOUGH_OPEN_FILES}")
    elif files < ENOUGH_OPEN_FILES:
        yield Line("open files", "warn", f"{files}: Ray asks for {ENOUGH_OPEN_FILES}",
                   f"ulimit -n {ENOUGH_OPEN_FILES}")  # fmt: skip
    else:
        yield Line("open files", "ok", f"{files}")


def _ports(facts: MachineFacts, demand: Demand) -> Iterator[Line]:
    for port, owner in sorted(facts.ports.items()):
        what = RAY_PORTS.get(port, "the endpoint")
        if owner is None:
            yield Line(f"port {port}", "ok", f"free ({what})")
        else:
            yield Line(
                f"port {port}",
                "fail" if port == demand.http_port else "warn",
                f"belongs to {owner} ({what})",
                "end it, or set http_options.port" if port == demand.http_port
                else "a Ray that runs already can be joined with --address",
            )  # fmt: skip
    for name, (low, high, free) in sorted(facts.free_in_ranges.items()):
        enough = free >= demand.replicas
        yield Line(
            f"ports for {name}",
            "ok" if enough else "fail",
            f"{free} of {high - low + 1} free in {low}-{high}",
            None if enough else "widen the range in baton.engines",
        )
