"""Make `.venv` from the pinned sets in `requirements/`, with nothing but Python's own library.

Called by `make`. Its steps, each timed: an empty environment; torch's CPU build; everything else
(exact versions, every file checked against its sha256, no dependency resolution); one import of
the engine and of Ray Serve, which proves that the environment works and leaves their bytecode on
disk; Baton itself.

A finished environment carries a stamp with the hash of what it was made from. While the stamp
fits, this script returns at once; if it does not, or is missing because a run was cut short, the
environment is made anew. Two runs at once are safe: the second waits, then finds the stamp.

`fit_machine` says what the machine must have. Any Python from 3.8 on can read both files, so that
they can say that it is the wrong one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also where Python is told not to

from fit_machine import SetupError, check_machine

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
MARK = VENV / ".baton-env"  # "this environment is ours", from the first moment
STAMP = VENV / ".baton-complete"
LOCK = ROOT / ".venv.lock"
LOG = ROOT / "build" / "setup-env.log"
TORCH = "requirements/torch-cpu.txt"
PACKAGES = ("requirements/cpu.txt", "requirements/dev.txt")
FORMAT = "1"  # raise it when this script makes a different environment from the same files

# PyPI has only a 3 GB CUDA build of this torch release; the CPU build is on PyTorch's own index.
# That index is asked for torch alone, and only when pip as configured here does not have the file.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# Comes inside the nixl-cu13 wheel, 112 MB: expert-parallel kernels for CUDA, of no use on a CPU.
UNUSED = ("nixl_ep_cu13",)

# Without bytecode each of the five or more Python processes of a deployment compiles these anew
# and starts 10 s later. Compiling all of site-packages, as pip does, takes four times as long.
WARM_UP = (
    "import vllm.entrypoints.openai.api_server, vllm.v1.engine.core, vllm.v1.worker.cpu_worker",
    "import nixl, ray.serve, ray.serve.llm",
)


def say(text: str) -> None:
    """Progress goes to stderr, a line at a time."""
    print(text, file=sys.stderr, flush=True)


def fingerprint() -> tuple[str, str]:
    """What the environment is made from: hashes of the pinned sets, and of Baton's own metadata.

    A moved checkout needs a new environment too: scripts hold its path. Baton itself is installed
    editable, so its code is not part of this; its dependencies and entry points are.
    """
    sets = hashlib.sha256(f"{FORMAT}\n{ROOT}\n".encode())
    for name in (TORCH, *PACKAGES):
        sets.update((ROOT / name).read_bytes())
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    own = text.partition("[tool.pytest")[0]  # what follows is for tools
    return sets.hexdigest(), hashlib.sha256(own.encode()).hexdigest()


def stamped() -> tuple[str, str]:
    """The fingerprint that `.venv` was finished with; empty strings when it was not."""
    try:
        sets, _, own = STAMP.read_text(encoding="utf-8").partition("\n")
    except OSError:
        return "", ""
    return (sets, own) if (VENV / "bin/python").exists() else ("", "")


@contextlib.contextmanager
def locked() -> Iterator[int]:
    """Hold the lock. Its descriptor goes to the children, so a killed run's pip still holds it."""
    descriptor = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this checkout is running; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def child_environment() -> dict[str, str]:
    """The caller's environment without what would bend a pinned installation."""
    bending = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_NO_BINARY", "PIP_REQUIREMENT")
    python = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    env = {key: value for key, value in os.environ.items() if key not in (*bending, *python)}
    return {
        **env,
        # A constraint file of the machine has no say over exact pins.
        "PIP_CONSTRAINT": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


class Work:
    """Runs commands, keeps what they say in the log, and knows how long everything took."""

    def __init__(self, lock: int) -> None:
        self.began = time.monotonic()
        self.lock = lock
        self.env = child_environment()
        LOG.parent.mkdir(exist_ok=True)
        self.log = LOG.open("w", encoding="utf-8")

    def elapsed(self) -> str:
        return f"{time.monotonic() - self.began:4.0f} s"

    def start(self, *command: str) -> subprocess.Popen[str]:
        self.log.write(f"\n$ {' '.join(command)}\n")
        self.log.flush()
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(self.lock,),
        )

    def read(self, process: subprocess.Popen[str], on_line: Callable[[str], None]) -> list[str]:
        lines: list[str] = []
        assert process.stdout is not None  # noqa: S101
        for line in process.stdout:
            self.log.write(line)
            lines.append(line.rstrip())
            on_line(line)
        self.log.flush()
        process.wait()
        return lines

    def run(
        self, *command: str, on_line: Callable[[str], None] = lambda _: None
    ) -> tuple[int, list[str]]:
        process = self.start(*command)
        lines = self.read(process, on_line)
        return process.returncode, lines


PIP_INSTALL = (
    str(VENV / "bin/python"), "-m", "pip", "install",
    "--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-compile",
)  # fmt: skip


def install_torch(work: Work) -> None:
    """From where pip looks on this machine; if the CPU build is not there, from PyTorch's index."""
    status, lines = work.run(*PIP_INSTALL, "-r", TORCH)
    if status != 0 and any("No matching distribution" in line for line in lines):
        say(f"{work.elapsed()}  torch: not where pip looks here; asking PyTorch's CPU index")
        status, lines = work.run(*PIP_INSTALL, "--index-url", TORCH_CPU_INDEX, "-r", TORCH)
    if status != 0:
        pip_failed(lines, "torch's CPU build")


def install_packages(work: Work) -> None:
    """All in one call: two at once were not faster, unpacking is what takes the time."""
    total = sum((ROOT / name).read_text(encoding="utf-8").count("==") for name in PACKAGES)
    seen = 0
    said = time.monotonic()

    def on_line(line: str) -> None:
        nonlocal seen, said
        if line.startswith("Collecting "):
            seen += 1
        if line.startswith("Installing collected packages"):
            say(f"{work.elapsed()}  packages: all fetched, unpacking")
        elif seen < total and time.monotonic() - said > 10:  # noqa: PLR2004
            say(f"{work.elapsed()}  packages: {seen} of {total}")
            said = time.monotonic()

    files = [part for name in PACKAGES for part in ("-r", name)]
    status, lines = work.run(*PIP_INSTALL, *files, on_line=on_line)
    if status != 0:
        pip_failed(lines, "the pinned packages")


def pip_failed(lines: list[str], what: str) -> NoReturn:
    """Turn pip's complaint into one line; a download cut off is the usual one."""
    telling = ("connection broken", "Connection refused", "timed out", "No space left", "HASHES")
    errors = [line for line in lines if any(word in line for word in telling)]
    errors = errors or [line for line in lines if line.startswith("ERROR") or "Error:" in line]
    reason = (errors[-1] if errors else lines[-1] if lines else "no output")[-300:]
    raise SetupError(
        f"pip could not install {what}: {reason}",
        f"check the network and pip's configuration, then run it again; all of pip's words: {LOG}",
    )


def warm_up(work: Work) -> None:
    """Import the engine and Ray Serve once, side by side."""
    running = [work.start(str(VENV / "bin/python"), "-c", code) for code in WARM_UP]
    for process, code in zip(running, WARM_UP):  # noqa: B905  (Python 3.8 has no strict=)
        lines = work.read(process, lambda _: None)
        if process.returncode == -signal.SIGILL:
            raise SetupError(
                "this processor lacks an instruction that vLLM's CPU build uses",
                "use a machine whose processor has AVX2 and FMA",
            )
        if process.returncode != 0:
            raise SetupError(
                f"the new environment does not work: `{code}` failed: {lines[-1] if lines else ''}",
                f"remove {VENV} and run it again; everything it said: {LOG}",
            )


def make(work: Work) -> None:
    """The environment without Baton itself."""
    if VENV.exists():
        if not MARK.exists():
            raise SetupError(
                f"{VENV} exists and was not made by this script",
                f"move it away: mv {VENV} {VENV}.mine",
            )
        say(f"{work.elapsed()}  removing an unfinished or outdated .venv")
        STAMP.unlink(missing_ok=True)
        shutil.rmtree(VENV)
    VENV.mkdir()
    MARK.write_text("Made by tools/setup_env.py. Do not edit; remove it freely.\n")
    say(f"{work.elapsed()}  making .venv with {sys.executable} (log: {LOG.relative_to(ROOT)})")
    status, lines = work.run(sys.executable, "-m", "venv", str(VENV))
    if status != 0:
        raise SetupError(
            f"python -m venv failed: {lines[-1] if lines else ''}",
            "on Debian and Ubuntu: apt-get install python3.11-venv",
        )
    say(f"{work.elapsed()}  torch (CPU build, 190 MB)")
    install_torch(work)
    say(f"{work.elapsed()}  packages: vLLM, Ray Serve, NIXL and what they need (about 900 MB)")
    install_packages(work)
    for name in UNUSED:
        for folder in VENV.glob(f"lib/python*/site-packages/{name}"):
            shutil.rmtree(folder)
    say(f"{work.elapsed()}  first import of vLLM and Ray Serve")
    warm_up(work)


def install_baton(work: Work) -> None:
    """Editable, and without a download: setuptools is one of the pinned packages."""
    say(f"{work.elapsed()}  Baton, editable")
    status, lines = work.run(
        *PIP_INSTALL[:4], "--no-deps", "--no-index", "--no-build-isolation", "-q", "-e", "."
    )
    if status != 0:
        pip_failed(lines, "Baton itself")


def bring_up_to_date(wanted: tuple[str, str], lock: int) -> None:
    """Do what is missing. The stamp comes last."""
    have = stamped()
    if have == wanted:
        return
    work = Work(lock)
    if have[0] != wanted[0]:
        check_machine(ROOT)
        make(work)
        STAMP.write_text(f"{wanted[0]}\n", encoding="utf-8")
    install_baton(work)
    STAMP.write_text("\n".join(wanted), encoding="utf-8")
    say(f"{work.elapsed()}  .venv is ready")


def outer_python() -> str | None:
    """Whom to go on with where this one lies in `.venv` (is it activated?); None: it may stay."""
    if sys.prefix == sys.base_prefix or Path(sys.prefix).resolve() != VENV.resolve():
        return None
    return f"{sys.base_prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"


def main() -> int:
    """Exit status: 0 ready, 3 the machine is unfit or a step failed, 130 interrupted."""
    try:
        wanted = fingerprint()
        if stamped() == wanted:
            return 0
        if python := outer_python():
            os.execv(python, [python, *sys.argv])  # noqa: S606
        if sys.version_info[:2] != (3, 11):
            check_machine(ROOT)  # raises; there is no lock to wait for
        with locked() as lock:
            bring_up_to_date(wanted, lock)
    except SetupError as error:
        say(f"error: {error}\n\nhint: {error.cure}")
        return 3
    except KeyboardInterrupt:
        say("interrupted: .venv is unfinished, the next run makes it anew")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
