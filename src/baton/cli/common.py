"""What several verbs do alike: end on SIGTERM, take a key from a variable, refuse a lost file."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM, as a shell has it for SIGINT."""


def unwind_on_sigterm() -> None:
    """From now on SIGTERM unwinds as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


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
