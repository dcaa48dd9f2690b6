"""What Baton remembers between two commands."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from baton.deploy import state
from baton.errors import DeployFailed, NotRunning

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def deployment(name: str) -> state.Deployment:
    return state.Deployment(
        name=name,
        marker=f"{name}:1",
        ray_address="127.0.0.1:1",
        ray_auth_token="secret",
        endpoint="http://127.0.0.1:8000",
        apps=(name,),
        builder="baton",
        file="app.yaml",
        started_at=0.0,
    )


def test_what_was_saved_is_found_again() -> None:
    """Every field comes back."""
    state.save(deployment("a"))
    assert state.find("a") == deployment("a")
    assert state.the_one(None) == deployment("a")


def test_only_the_owner_can_read_the_key_of_the_cluster(folder: Path) -> None:
    """The record holds Ray's token."""
    state.save(deployment("a"))
    assert stat.S_IMODE((folder / "a.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_with_two_deployments_one_must_be_named() -> None:
    """`baton down` never guesses."""
    state.save(deployment("a"))
    state.save(deployment("b"))
    with pytest.raises(NotRunning, match="a, b"):
        state.the_one(None)
    assert state.the_one("b").name == "b"


def test_an_unknown_name_lists_what_there_is() -> None:
    """The cure is in the message."""
    state.save(deployment("a"))
    with pytest.raises(NotRunning) as caught:
        state.the_one("x")
    assert "a" in (caught.value.cure or "")


def test_nothing_running_says_how_to_start() -> None:
    """An empty state folder is a normal state."""
    with pytest.raises(NotRunning) as caught:
        state.the_one(None)
    assert "baton up" in (caught.value.cure or "")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 64, "a b"])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    """A name becomes a path."""
    with pytest.raises(DeployFailed):
        state.checked_name(name)


def test_two_commands_cannot_change_one_deployment_at_once() -> None:
    """The second one says so and does nothing; the lock ends with the first."""
    with (
        state.locked("a"),
        pytest.raises(DeployFailed, match="another `baton` command"),
        state.locked("a"),
    ):
        raise AssertionError("both held the lock")
    with state.locked("a"):
        pass


def test_a_damaged_record_names_its_file(folder: Path) -> None:
    """It may stand for processes that still run, so it is not thrown away silently."""
    folder.mkdir()
    (folder / "a.json").write_text("{", encoding="utf-8")
    with pytest.raises(DeployFailed) as caught:
        state.find("a")
    assert str(folder / "a.json") in (caught.value.place or "")
