"""What several verbs do alike: end on SIGTERM, take a key from a variable, keep files whole."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from baton.errors import FilesInTheWay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM, as a shell has it for SIGINT."""


def unwind_on_sigterm() -> None:
    """From now on SIGTERM unwinds as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


@contextmanager
def interruptible(said: str) -> Iterator[None]:
    """Ctrl-C ends with `INTERRUPTED` and a sentence: click's own 1 may mean something else."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"interrupted: {said}", err=True)
        sys.exit(INTERRUPTED)


def _interrupt(_signum: int, _frame: object) -> None:
    raise KeyboardInterrupt


def key_of(variable: str | None) -> str | None:
    """The key that `--api-key-env` names.

    Raises:
        click.BadParameter: The variable holds none.
    """
    if variable is None:
        return None
    if not (key := os.environ.get(variable)):
        raise click.BadParameter(f"{variable} is unset or empty", param_hint="--api-key-env")
    return key


def check_folders(*files: Path | None) -> None:
    """Before the work whose results go there.

    Raises:
        click.BadParameter: A file's folder is not there.
    """
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise click.BadParameter(f"there is no folder {file.absolute().parent}")


def claim_file(file: Path, *, force: bool) -> None:
    """Before long work: whether its result can be written there. Leaves nothing behind.

    Raises:
        click.BadParameter: Its folder is not there.
        FilesInTheWay: It is a folder, is there already, or nothing can be written beside it.
    """
    check_folders(file)
    if file.is_dir():
        raise FilesInTheWay("a folder is no file", place=str(file), cure="name a file in it")
    if file.exists() and not file.is_file():
        return  # a device or a pipe
    if file.exists() and not force:
        raise FilesInTheWay(
            "the file is there already", place=str(file),
            cure="name another, or overwrite it with --force",
        )  # fmt: skip
    part = _part_of(file)
    try:
        part.touch()
        part.unlink()
    except OSError as exc:
        raise _unwritable(file, exc) from exc


def write_whole(file: Path, text: str) -> None:
    """Write a file so that nobody ever finds half of it there.

    Raises:
        FilesInTheWay: It cannot be written.
    """
    part = _part_of(file)
    try:
        if file.exists() and not file.is_file():
            file.write_text(text, encoding="utf-8")
            return
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(file.resolve())
        finally:
            part.unlink(missing_ok=True)
    except OSError as exc:
        raise _unwritable(file, exc) from exc


def _part_of(file: Path) -> Path:
    whole = file.resolve()
    return whole.with_name(f".{whole.name[:200]}.{os.getpid()}.part")


def _unwritable(file: Path, exc: OSError) -> FilesInTheWay:
    why = exc.strerror or type(exc).__name__
    return FilesInTheWay(f"the file cannot be written: {why}", place=str(file),
                         cure="name a file that can be")  # fmt: skip
