"""Gets the programs that some tests use and pip does not have: Chromium, npm, promtool.

`make test` calls it. On Debian and Ubuntu, as root, what is missing is installed with apt-get;
elsewhere it is said what is missing, and the tests that need it are skipped with that reason.
promtool is only unpacked, into `.programs/`: Debian's package of it starts a Prometheus server when
it is installed. BATON_NO_APT=1 keeps apt-get out of it. Nothing here fails: a machine without a
network still runs the other tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / ".programs"
INSTALLED = {"chromium": ("chromium",), "npm": ("nodejs", "npm")}
"""Program, and Debian's packages that bring it."""
_APT = ("apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=1",
        "-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")  # fmt: skip
TIMEOUT_S = 300


def say(text: str) -> None:
    """To stderr, a line at a time."""
    print(text, file=sys.stderr, flush=True)


def find(program: str) -> str | None:
    """Where a program is: on PATH, where Debian puts it, or unpacked here."""
    for place in (shutil.which(program), f"/usr/bin/{program}", PROGRAMS / "usr/bin" / program):
        if place is not None and os.access(place, os.X_OK):
            return str(place)
    return None


def _run(*command: str, cwd: Path = ROOT) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _unpack_promtool() -> bool:
    PROGRAMS.mkdir(exist_ok=True)
    for old in PROGRAMS.glob("prometheus_*.deb"):
        old.unlink()
    if not _run(*_APT, "download", "prometheus", cwd=PROGRAMS):
        return False
    for package in PROGRAMS.glob("prometheus_*.deb"):
        unpacked = PROGRAMS / "unpacked"
        if _run("dpkg-deb", "-x", str(package), str(unpacked)):
            (PROGRAMS / "usr/bin").mkdir(parents=True, exist_ok=True)
            shutil.copy2(unpacked / "usr/bin/promtool", PROGRAMS / "usr/bin/promtool")
        shutil.rmtree(unpacked, ignore_errors=True)
        package.unlink()
    return find("promtool") is not None


def main() -> int:
    """Always 0."""
    missing = [name for name in (*INSTALLED, "promtool") if find(name) is None]
    if not missing:
        return 0
    may = os.geteuid() == 0 and not os.environ.get("BATON_NO_APT")
    if shutil.which("apt-get") is None or not may:
        say(f"not here, and not installed without root, apt-get and leave: {', '.join(missing)}")
        return 0
    say(f"apt-get: {', '.join(missing)}")
    updated = _run(*_APT, "update")
    for name in missing:
        if name == "promtool":
            got = _unpack_promtool()
        else:
            got = _run(*_APT, "install", "--no-install-recommends", *INSTALLED[name])
        if not got or find(name) is None:
            why = "" if updated else " (its lists could not be read either: is there a network?)"
            say(f"{name}: apt-get could not bring it{why}; tests that need it are skipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
