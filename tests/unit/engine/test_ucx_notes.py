"""UCX is told to take notes, once, and never in somebody else's file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from baton.engine import ucx_notes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("UCX_PROTO_INFO", "UCX_LOG_FILE"):
        monkeypatch.setenv(name, "")  # restored afterwards, whatever the code sets
        monkeypatch.delenv(name)
    monkeypatch.delenv(ucx_notes.SWITCH, raising=False)
    monkeypatch.setattr(ucx_notes.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(ucx_notes, "_begun", set())
    return tmp_path


def test_notes_go_into_a_file_of_this_process() -> None:
    """And what UCX wrote there is read back."""
    assert ucx_notes.note_ucx_choices()
    file = ucx_notes.notes_file()
    assert file is not None
    assert file.stem == str(os.getpid())
    assert ucx_notes.read_notes() == ""
    file.write_text("a table", "utf-8")
    assert ucx_notes.note_ucx_choices()  # again: what was written since stays
    assert ucx_notes.read_notes() == "a table"


def test_notes_of_a_dead_process_with_the_same_number_are_not_ours(clean: Path) -> None:
    """Numbers come round again."""
    folder = clean / f"baton-ucx-{os.getuid()}"
    folder.mkdir(mode=0o700)
    (folder / f"{os.getpid()}.log").write_text("old", "utf-8")
    (folder / "999999999.log").write_text("older", "utf-8")
    assert ucx_notes.note_ucx_choices()
    assert ucx_notes.read_notes() == ""
    assert list(folder.iterdir()) == []


def test_what_somebody_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there may be no notes, and the evidence says so."""
    monkeypatch.setenv("UCX_LOG_FILE", "/tmp/mine.log")
    assert not ucx_notes.note_ucx_choices()
    assert os.environ["UCX_LOG_FILE"] == "/tmp/mine.log"
    assert ucx_notes.read_notes() is None


def test_the_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """BATON_UCX_NOTES=0."""
    monkeypatch.setenv(ucx_notes.SWITCH, "0")
    assert not ucx_notes.note_ucx_choices()
    assert "UCX_PROTO_INFO" not in os.environ
