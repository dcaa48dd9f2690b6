"""Build the CPU image with buildah, and run commands in it. No registry of images is needed.

    python tools/image_cpu.py build           base from Debian's packages, then Containerfile.cpu
    python tools/image_cpu.py run -- CMD …    one command in a container of it, as its own user
    python tools/image_cpu.py clean           remove every image and container of this folder

Needs root, `buildah`, and `mmdebstrap` or `debootstrap` (or `--base IMAGE` that can be pulled). All
of it lies below `build/image`; nothing of another buildah or podman is touched. Commands run with
chroot isolation, so on this machine's network: what they start should listen on 127.0.0.1 only.

**pip looks in the build where it looks here**, and nothing of that is in the image: its settings
are written into a file of their own, which is mounted while commands run, as are the folders and
certificates that they name. `Containerfile.cpu` says nothing of them.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "image"
CONSOLE = ROOT / "src/baton/observe/console/static/console.js"
IMAGE = "localhost/baton:cpu"
BASE = "localhost/baton-base:bookworm"
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
HOST_PIP = "/run/host-pip"
OPEN_FILES = 65_536
"""buildah's own limit is 1,024: Ray's HAProxy then ends at its start (`baton explain IMG-112`)."""
NEEDS_DISK_BYTES = 10 * 1024**3
# Settings of pip that say where packages come from; values may name folders and files of this host.
_PIP_KEYS = (
    "index-url", "extra-index-url", "find-links", "trusted-host", "cert", "constraint",
    "default-timeout", "timeout", "proxy", "no-index",
)  # fmt: skip


def say(text: str) -> None:
    """Progress goes to stderr."""
    print(text, file=sys.stderr, flush=True)


def refuse(fact: str, cure: str) -> NoReturn:
    """End with one line that says what is wrong, and a cure."""
    raise SystemExit(f"error: {fact}\n\nhint: {cure}")


def missing() -> tuple[str, str] | None:
    """Why this machine cannot build an image, and what to do; None when it can."""
    if os.geteuid() != 0:
        return "building an image needs root", "sudo make image-cpu"
    if shutil.which("buildah") is None:
        return "buildah is not installed", "apt-get install buildah mmdebstrap"
    return None


def parsed(listing: str) -> dict[str, list[str]]:
    """What `pip config list` prints, by key; a later level replaces an earlier one, as in pip.

    The environment comes first in that listing and wins, so it is read last.
    """
    found: dict[str, list[str]] = {}
    lines = [line for line in listing.splitlines() if "=" in line]
    for line in sorted(lines, key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        level, _, key = name.rpartition(".")
        if key in _PIP_KEYS and level in ("global", "user", "install", "site", ":env:"):
            found[key] = str(ast.literal_eval(value)).split()
    return found


def local(value: str) -> Path | None:
    """The path that a setting names, or None for a URL or a word."""
    text = value.removeprefix("file://")
    return Path(text) if text.startswith("/") and Path(text).exists() else None


def inside(settings: dict[str, list[str]]) -> tuple[str, dict[Path, str]]:
    """Pip's settings as a file for the build, and what is to be mounted where for it.

    A folder of links to files beside it (`simple/NAME/index.html` naming `../../files/…`) is
    mounted with the folder above.
    """
    mounts: dict[Path, str] = {}
    lines = ["[global]"]
    for key, values in settings.items():
        written = []
        for value in values:
            path = local(value)
            if path is None:
                written.append(value)
                continue
            above = path.parent if path.name == "simple" else path
            target = mounts.setdefault(above, f"{HOST_PIP}/{len(mounts)}")
            place = target if above == path else f"{target}/{path.name}"
            written.append(f"file://{place}" if value.startswith("file://") else place)
        lines.append(f"{key} = " + "\n    ".join(written))
    return "\n".join(lines) + "\n", mounts


@contextlib.contextmanager
def host_pip() -> Iterator[list[str]]:
    """Arguments of buildah that make pip look where it looks here, while this is open."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    text, mounts = inside(parsed(said.stdout))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pip.conf").write_text(text, encoding="utf-8")
        mounts[Path(folder)] = f"{HOST_PIP}/config"
        yield [
            *[f"--volume={host}:{there}:ro" for host, there in mounts.items()],
            f"--build-arg=PIP_CONFIG_FILE={HOST_PIP}/config/pip.conf",
        ]


def buildah(*arguments: str) -> list[str]:
    """A buildah command line on our own storage."""
    driver = os.environ.get("STORAGE_DRIVER", "overlay")
    return [
        "buildah", "--root", str(PLACE / "store"), "--runroot", str(PLACE / "run"),
        "--storage-driver", driver, *arguments,
    ]  # fmt: skip


def run(command: Sequence[str]) -> None:
    """Run it, with its words on stderr.

    Raises:
        SystemExit: It failed.
    """
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        refuse(
            f"`{' '.join(command[:9])} …` ended with {done.returncode}", "its own words are above"
        )


def has(image: str) -> bool:
    """Whether the storage has that image."""
    command = buildah("inspect", "--type", "image", image)
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def make_base() -> None:
    """Debian's minimal system as an image, from its packages."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=PLACE) as text:
        folder = Path(text)
        if shutil.which("mmdebstrap"):
            run(["mmdebstrap", "--quiet", "--variant=minbase", "--components=main", SUITE,
                 str(folder / "base.tar"), MIRROR])  # fmt: skip
        elif shutil.which("debootstrap"):
            run(["debootstrap", "--variant=minbase", SUITE, str(folder / "root"), MIRROR])
            run(["tar", "-C", str(folder / "root"), "-cf", str(folder / "base.tar"), "."])
            shutil.rmtree(folder / "root")
        else:
            refuse("neither mmdebstrap nor debootstrap is installed", "apt-get install mmdebstrap")
        (folder / "Containerfile").write_text("FROM scratch\nADD base.tar /\n", encoding="utf-8")
        run(buildah("build", "--isolation=chroot", "--tag", BASE, str(folder)))
    say(f"base {BASE}: {time.monotonic() - began:.0f} s")


def build(base: str | None) -> None:
    """The image, from what is in the repository now. Steps that did not change are kept."""
    why_not = missing()
    if why_not is not None:
        refuse(*why_not)
    PLACE.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(PLACE).free
    if free < NEEDS_DISK_BYTES:
        refuse(f"{free / 1024**3:.0f} GiB are free below {PLACE}", "10 GiB are needed")
    if base is None and not has(BASE):
        make_base()
    began = time.monotonic()
    console = [] if CONSOLE.is_file() else ["--build-arg=BATON_WITHOUT_CONSOLE=1"]
    if console:
        say("the console was not built (make console): this image has none")
    with host_pip() as arguments:
        run(
            buildah(
                "build", "--isolation=chroot", "--layers", "--force-rm", "--tag", IMAGE,
                f"--build-arg=BASE={base or BASE}", *arguments, *console,
                "--file", str(ROOT / "deploy/image/Containerfile.cpu"), str(ROOT),
            )
        )  # fmt: skip
    _sweep()
    say(f"image {IMAGE}: {time.monotonic() - began:.0f} s")


def _sweep() -> None:
    """Remove the empty places that were mounted on: buildah 1.28 leaves them in the layers."""
    name = subprocess.run(
        buildah("from", "--pull-never", IMAGE), capture_output=True, text=True, check=True
    ).stdout.strip()
    run(buildah("run", "--isolation=chroot", "--user=0", name, "--", "rm", "-rf", HOST_PIP))
    run(buildah("commit", "--quiet", "--rm", name, IMAGE))


@contextlib.contextmanager
def container() -> Iterator[str]:
    """A container of the image, removed again in the end."""
    # Nobody may be given more than this process has.
    files = min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    command = buildah("from", "--pull-never", f"--ulimit=nofile={files}:{files}", IMAGE)
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        refuse(f"there is no {IMAGE}: {made.stderr.strip()}", "make image-cpu")
    name = made.stdout.strip()
    try:
        yield name
    finally:
        subprocess.run(buildah("rm", name), capture_output=True, check=False)


def run_line(name: str, command: Sequence[str], volumes: Sequence[str] = ()) -> list[str]:
    """The command line that runs one command in a container, under tini as its entry point does."""
    return buildah(
        "run", "--isolation=chroot", *[f"--volume={volume}" for volume in volumes], name,
        "--", "/usr/bin/tini", "-s", "--", *command,
    )  # fmt: skip


def clean() -> None:
    """Remove all that was made: containers, images, storage."""
    if (PLACE / "store").exists():
        for words in (("rm", "--all"), ("rmi", "--all", "--force")):
            subprocess.run(buildah(*words), capture_output=True, check=False)
    shutil.rmtree(PLACE, ignore_errors=True)


def main() -> int:
    """Exit status: that of the command that was run; 1 when a step failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    builds = verbs.add_parser("build", help="base and image")
    builds.add_argument("--base", help="an image to build on, instead of one made from packages")
    runs = verbs.add_parser("run", help="one command in a container of it")
    runs.add_argument("--volume", action="append", default=[], metavar="HOST:THERE[:ro]")
    runs.add_argument("command", nargs="+")
    verbs.add_parser("clean", help="remove all of it")
    chosen = parser.parse_args()
    if chosen.verb == "build":
        build(chosen.base)
    elif chosen.verb == "clean":
        clean()
    else:
        with container() as name:
            return subprocess.run(
                run_line(name, chosen.command, chosen.volume), check=False
            ).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
