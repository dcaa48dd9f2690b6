"""Programs from the system: what is missing is named, and nothing is installed without leave."""

from __future__ import annotations

import pytest
from tools import test_programs as programs


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine on which nothing is found, and every command that would be run is noted."""
    ran = []
    monkeypatch.setattr(programs, "find", lambda _: None)
    monkeypatch.setattr(programs, "PROGRAMS", tmp_path)
    monkeypatch.setattr(programs, "_run", lambda *command, **_: bool(ran.append(command)))
    monkeypatch.setattr(programs.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.delenv("BATON_NO_APT", raising=False)
    return ran


def test_without_root_or_leave_nothing_is_installed(bare, monkeypatch, capsys):
    """The missing are named once."""
    monkeypatch.setattr(programs.os, "geteuid", lambda: 1000)
    assert programs.main() == 0
    monkeypatch.setattr(programs.os, "geteuid", lambda: 0)
    monkeypatch.setenv("BATON_NO_APT", "1")
    assert programs.main() == 0
    assert bare == []
    assert capsys.readouterr().err.count("chromium, npm, promtool") == 2


def test_what_apt_get_cannot_bring_is_said_and_fails_nothing(bare, monkeypatch, capsys):
    """A machine without a network still runs its other tests."""
    monkeypatch.setattr(programs.os, "geteuid", lambda: 0)
    assert programs.main() == 0
    said = capsys.readouterr().err
    for name in ("chromium", "npm", "promtool"):
        assert f"{name}: apt-get could not bring it" in said
    assert not any("prometheus" in command and "install" in command for command in bare)
