"""What several verbs do alike."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click
import pytest

from baton.cli.common import check_folders, key_of, unwind_on_sigterm

if TYPE_CHECKING:
    from pathlib import Path


def test_sigterm_unwinds_as_ctrl_c_does() -> None:
    """So that one `except KeyboardInterrupt` is enough for both."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        unwind_on_sigterm()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_variable_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a slip in it must not become a request without a key."""
    monkeypatch.setenv("OF_A_TEST", "k")
    assert key_of("OF_A_TEST") == "k"
    assert key_of(None) is None
    monkeypatch.setenv("OF_A_TEST", "")
    with pytest.raises(click.BadParameter, match="OF_A_TEST is unset or empty"):
        key_of("OF_A_TEST")


def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Before the work; a file that nobody asked for is no file."""
    check_folders(tmp_path / "a", None)
    with pytest.raises(click.BadParameter, match="there is no folder"):
        check_folders(tmp_path / "a", tmp_path / "no" / "b")
