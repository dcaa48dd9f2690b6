"""What several verbs do alike."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click
import pytest

from baton.cli.common import check_folders, claim_file, key_of, unwind_on_sigterm, write_whole
from baton.errors import FilesInTheWay


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


def test_what_cannot_be_written_is_known_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder, a file that is there, a folder that takes no file; nothing is left behind."""
    there = tmp_path / "there.json"
    there.write_text("mine")
    for file, said in ((tmp_path, "a folder is no file"), (there, "is there already")):
        with pytest.raises(FilesInTheWay, match=said):
            claim_file(file, force=False)
    claim_file(there, force=True)
    claim_file(tmp_path / "new.json", force=False)
    assert there.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [there]

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.touch", read_only)
    with pytest.raises(FilesInTheWay, match="Read-only file system"):
        claim_file(tmp_path / "new.json", force=False)


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, Ctrl-C: the old one stays, no half one, and links are followed."""
    file, link = tmp_path / "a.json", tmp_path / "link.json"
    link.symlink_to(file)
    write_whole(link, "one")
    assert file.read_text() == "one"
    assert link.is_symlink()
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):

        def fails(*_: object, _error: BaseException = error, **__: object) -> None:
            raise _error

        with monkeypatch.context() as patched:
            patched.setattr("pathlib.Path.write_text", fails)
            with pytest.raises((FilesInTheWay, KeyboardInterrupt)):
                write_whole(file, "two")
        assert file.read_text() == "one"
        assert sorted(tmp_path.iterdir()) == [file, link]


def test_a_device_is_written_as_it_is() -> None:
    """`-o /dev/stdout` and a full device: no file beside them, and no traceback."""
    claim_file(Path("/dev/full"), force=False)
    with pytest.raises(FilesInTheWay, match="No space left"):
        write_whole(Path("/dev/full"), "x")
    write_whole(Path("/dev/null"), "x")
