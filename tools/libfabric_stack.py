"""Fetches what NIXL's LIBFABRIC plugin needs on a machine without EFA: libfabric over TCP.

The plugin in NIXL's wheel links against libraries that the wheel leaves to the system. Nothing is
installed; everything goes into a cache folder:

- `libfabric.so.1` with its tcp provider, from the PyPI wheel of Intel MPI's runtime (Debian 12's
  libfabric lacks the symbol version FABRIC_1.7);
- `libhwloc.so.15`, unpacked from Debian's package;
- `libcuda.so.1`: where there is no driver, a stub that says "no device" (100) to the three calls
  that the plugin makes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WHEEL = "impi-rt==2021.17.2"
_LIBRARIES = ("libfabric.so.1", "libtcp-fi.so")
_STUB = """
int cuCtxSetCurrent(void *context) { return 100; }
int cuDeviceGetPCIBusId(char *id, int size, int device) { return 100; }
int cuPointerGetAttributes(unsigned n, void *names, void **data, unsigned long long p)
{ return 100; }
"""


class CannotBeHad(Exception):
    """A part of the stack cannot be fetched here; the message says which and why."""


def libfabric_environment(folder: Path) -> dict[str, str]:
    """Variables under which NIXL's LIBFABRIC plugin loads; fetches what is missing.

    Raises:
        CannotBeHad: No wheel, no package, or no compiler.
    """
    libraries = folder / "lib"
    if not (folder / ".complete").exists():
        libraries.mkdir(parents=True, exist_ok=True)
        _libfabric(folder, libraries)
        _hwloc(folder, libraries)
        _cuda_stub(folder, libraries)
        (folder / ".complete").touch()
    return {
        "LD_LIBRARY_PATH": str(libraries),
        "FI_PROVIDER_PATH": str(libraries / "providers"),
    }


def _libfabric(folder: Path, libraries: Path) -> None:
    _run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL, "-d", str(folder)],
        f"the wheel {WHEEL} cannot be had",
    )
    wheel = next(folder.glob("impi_rt-*.whl"))
    (libraries / "providers").mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            name = member.rsplit("/", 1)[-1]
            if "/data/lib/" in member and name in _LIBRARIES:
                place = libraries / ("providers" if name.endswith("-fi.so") else "") / name
                place.write_bytes(archive.read(member))
    wheel.unlink()


def _hwloc(folder: Path, libraries: Path) -> None:
    _run(["apt-get", "download", "libhwloc15"], "Debian's libhwloc15 cannot be had", cwd=folder)
    package = next(folder.glob("libhwloc15_*.deb"))
    _run(["dpkg", "-x", str(package), str(folder / "hwloc")], "libhwloc15 cannot be unpacked")
    found = next((folder / "hwloc").rglob("libhwloc.so.15.*"))
    shutil.copy(found, libraries / "libhwloc.so.15")
    shutil.rmtree(folder / "hwloc")
    package.unlink()


def _cuda_stub(folder: Path, libraries: Path) -> None:
    source = folder / "cuda_stub.c"
    source.write_text(_STUB, encoding="utf-8")
    stub = str(libraries / "libcuda.so.1")
    command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub, str(source)]
    _run(command, "the libcuda stub cannot be compiled")


def _run(command: list[str], fact: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise CannotBeHad(f"{fact}: {exc}") from exc
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise CannotBeHad(f"{fact}: {said[-1] if said else f'status {done.returncode}'}")
