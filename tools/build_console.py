"""Makes the console's bundle: `npm ci` by the hashes of the lock file, then esbuild.

`make console` calls it, and so does the build of a wheel that has no bundle yet (`setup.py`). It
returns at once when the bundle fits its sources. Needs Node.js 18 or newer and npm, and nothing of
Python but its own library. `--if-possible`: where it cannot be made, say why and end well.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "console"
BUNDLE = ROOT / "src" / "baton" / "observe" / "console" / "static"
FILES = ("index.html", "console.js", "console.css", "icon.svg", "licences.txt")
STAMP = SOURCES / ".built"
OLDEST_NODE = 18
NPM_TIMEOUT_S = 300


class BuildError(Exception):
    """What is wrong, and a cure."""

    def __init__(self, fact: str, cure: str) -> None:
        super().__init__(fact)
        self.cure = cure


def fingerprint() -> str:
    """What the bundle is made from."""
    sources = sorted(
        [*SOURCES.glob("src/**/*"), *SOURCES.glob("package*.json"), SOURCES / "build.mjs"]
    )
    found = hashlib.sha256()
    for path in sources:
        if path.is_file():
            found.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def is_built() -> bool:
    """Whether the bundle is whole and fits its sources, as far as they are here."""
    if not all((BUNDLE / name).is_file() for name in FILES):
        return False
    if not (SOURCES / "build.mjs").is_file():
        return True  # an unpacked sdist without them: what came along is what there is
    return STAMP.is_file() and STAMP.read_text(encoding="utf-8") == fingerprint()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, cwd=SOURCES, capture_output=True, text=True, timeout=NPM_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise BuildError(
            f"{' '.join(command)} took longer than {NPM_TIMEOUT_S} s",
            "check the network and npm's configuration, then run it again",
        ) from None
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        telling = [line for line in lines if "rror" in line] or lines or ["no output"]
        raise BuildError(
            f"{' '.join(command)} failed: {telling[0].strip()[:300]}",
            f"run it by hand in {SOURCES}",
        )


def build() -> None:
    """Make the bundle anew.

    Raises:
        BuildError: Node.js or npm are not there, or too old, or fail.
    """
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise BuildError(
            "the console needs npm and Node.js to be built, and they are not on PATH",
            "on Debian and Ubuntu: apt-get install nodejs npm",
        )
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    major = re.match(r"v(\d+)", said)
    if major is None or int(major.group(1)) < OLDEST_NODE:
        raise BuildError(
            f"{node} is {said.strip() or 'of no version'}; esbuild needs Node.js {OLDEST_NODE}",
            "install a newer Node.js (https://nodejs.org)",
        )
    print("console: npm ci", file=sys.stderr, flush=True)
    _run(npm, "ci")
    _run(npm, "run", "build")
    STAMP.write_text(fingerprint(), encoding="utf-8")
    print(f"console: built into {BUNDLE.relative_to(ROOT)}", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 built, or not possible and that is fine; 3 not possible."""
    parser = argparse.ArgumentParser(description="Make the console's bundle.")
    parser.add_argument("--if-possible", action="store_true", help="end well where it is not")
    asked = parser.parse_args(arguments)
    if is_built():
        return 0
    try:
        build()
    except BuildError as error:
        if asked.if_possible:
            print(f"console: not built: {error}", file=sys.stderr)
            return 0
        print(f"error: {error}\n\nhint: {error.cure}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
