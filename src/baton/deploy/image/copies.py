"""Finds every copy of the libraries of which a process may hold only one.

Two libfabrics in one process means that NIXL may get the one without EFA; two NCCLs, that
aws-ofi-nccl was built for another one; two UCXs, that memory registered with one is unknown to the
other. The loader takes the first that it finds by name, without a word.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from baton.deploy.image.facts import Copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Not `libnccl-net.so` (a plugin) and not `libuct_ib.so` (a module of the UCX beside it). The eight
# digits are auditwheel's.
_NAME = re.compile(r"^(lib(?:fabric|nccl|ucp|ucs|uct))(-[0-9a-f]{8})?\.so(?:\.\d+)*$")
_CACHE_LINE = re.compile(r"^\s*(\S+) \(.*\) => (\S+)$", re.MULTILINE)
# Where installers of EFA, CUDA and people put libraries, whether the loader looks there or not.
_FOLDERS = ("/opt/amazon", "/usr/local/lib", "/usr/local/cuda", "/usr/lib/x86_64-linux-gnu")
_DEEPEST = 4


def find_copies(
    library_path: str, cache: str, folders: Sequence[Path], *, packages: Sequence[Path]
) -> tuple[Copy, ...]:
    """All copies, each file once.

    Args:
        library_path: `LD_LIBRARY_PATH`.
        cache: What `ldconfig -p` prints.
        folders: Looked through to some depth.
        packages: `site-packages`, looked through wholly.
    """
    search = [Path(entry) for entry in library_path.split(":") if entry]
    cached = [Path(path) for name, path in _CACHE_LINE.findall(cache) if _NAME.match(name)]
    places: list[tuple[Path, str | None, int]] = [
        (file, "LD_LIBRARY_PATH", order)
        for order, folder in enumerate(search)
        for file in sorted(folder.glob("lib*.so*"))
    ]
    places += [(file, "ldconfig", len(search) + order) for order, file in enumerate(cached)]
    for folder in folders:
        places += [(file, None, 0) for file in _below(folder, _DEEPEST)]
    for folder in packages:
        places += [(file, None, 0) for file in _below(folder, None)]
    found: dict[str, Copy] = {}
    for file, on_path, order in places:
        match = _NAME.match(file.name)
        if match is None or not file.is_file():
            continue
        real = str(file.resolve())
        if real not in found:  # the loader's way to it comes first in the list
            family, mark = match.groups()
            found[real] = Copy(family, real, _digest(file), mark is not None, on_path, order)
    return tuple(found.values())


def _below(folder: Path, depth: int | None) -> Iterator[Path]:
    base = len(folder.parts)
    for root, folders, files in os.walk(folder):
        if depth is not None and len(Path(root).parts) - base >= depth:
            folders.clear()
        yield from (Path(root) / name for name in files if _NAME.match(name))


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def copies_here() -> tuple[Copy, ...]:
    """Those of this machine or image."""
    tool = next((t for t in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if Path(t).exists()), None)
    cache = ""
    if tool is not None:
        cache = subprocess.run(
            [tool, "-p"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
    packages = [Path(entry) for entry in sys.path if entry.endswith(("-packages",))]
    return find_copies(
        os.environ.get("LD_LIBRARY_PATH", ""),
        cache,
        [Path(folder) for folder in _FOLDERS],
        packages=packages,
    )
