"""Write the hashes into the files of `requirements/`.

A line `name==version` is the source; `python tools/pin.py requirements/cpu.txt` replaces what
stands under it with the sha256 of every wheel of that release which pip could choose on x86-64
Linux with Python 3.11. The files are looked up where this machine's pip looks (its own
configuration), so no index is named here. To move a package, edit its version and run this again.

It leans on pip's internals, which are not a public interface: run it with the pip of `.venv`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pip._internal.commands import create_command
from pip._internal.models.target_python import TargetPython

# Newest glibc first does not matter here: the finder takes every tag in the list as fitting.
_PLATFORMS = [
    "linux_x86_64",
    *(f"manylinux_2_{minor}_x86_64" for minor in range(40, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
]


def _hashes(name: str, version: str) -> list[str]:
    command = create_command("download")
    options, _ = command.parse_args(["--no-deps", "--only-binary", ":all:", name])
    with command.main_context():
        session = command.get_default_session(options)  # type: ignore[attr-defined]
        finder = command._build_package_finder(  # type: ignore[attr-defined]  # noqa: SLF001
            options,
            session,
            target_python=TargetPython(
                platforms=_PLATFORMS, py_version_info=(3, 11), implementation="cp"
            ),
        )
        found = {
            candidate.link.hash
            for candidate in finder.find_all_candidates(name)
            if str(candidate.version) == version and candidate.link.hash is not None
        }
    if not found:
        message = f"{name}=={version}: no wheel with a sha256 for Linux x86-64, Python 3.11"
        raise SystemExit(message)
    return sorted(found)


def _pinned(line: str) -> tuple[str, str] | None:
    requirement = line.partition("#")[0].partition("\\")[0].strip()
    name, equals, version = requirement.partition("==")
    return (name, version) if equals and not line.lstrip().startswith("--") else None


def rewrite(path: Path) -> None:
    """Replace every `--hash` line of the file by what the index says today."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("    --hash")]
    pins = [pin for line in lines if (pin := _pinned(line)) is not None]
    with ThreadPoolExecutor(4) as pool:
        hashes = dict(zip(pins, pool.map(lambda pin: _hashes(*pin), pins), strict=True))
    written: list[str] = []
    for line in lines:
        pin = _pinned(line)
        if pin is None:
            written.append(line)
            continue
        parts = [f"{pin[0]}=={pin[1]}", *(f"    --hash=sha256:{digest}" for digest in hashes[pin])]
        written.append(" \\\n".join(parts))
    path.write_text("\n".join(written) + "\n")
    print(f"{path}: {len(pins)} packages, {sum(map(len, hashes.values()))} hashes")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        rewrite(Path(argument))
