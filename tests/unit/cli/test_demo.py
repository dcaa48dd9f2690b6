"""`baton demo` around the script: what is stopped, what is kept, what the exit status says."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from baton.cli import demo
from baton.demo import model
from baton.demo import run as run_module
from baton.demo.run import Check, DemoResult, KvTransfer
from baton.demo.tiny_model import make_tiny_model
from baton.deploy import local, serve_app, state
from baton.errors import DemoFailed, DeployFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RESULT = DemoResult(
    answer="four laps",
    same_answer=True,
    ttft_s=0.5,
    start_to_first_token_s=40.0,
    timeline={"admit_s": 0.001},
    kv_transfer=KvTransfer(bytes=1024, seconds=0.1, backend="UCX"),
    endpoint="http://127.0.0.1:8000",
    checks=(Check("the model is listed", held=True),),
)
FAILED = DemoResult(**{
    **vars(RESULT),
    "same_answer": False,
    "checks": (Check("the answer is the same", held=False, seen="'a' and 'b'"),),
})  # fmt: skip


class World:
    """Deploying and running, faked; `log` says what was done in which order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.outcome: DemoResult | BaseException = RESULT

    def up(self, plan: Any, **_: Any) -> state.Deployment:
        self.log.append(f"up {plan.name} on {plan.http_port}")
        return state.Deployment(
            name=plan.name, marker="m", ray_address="127.0.0.1:1", endpoint=plan.endpoint,
            apps=("demo",), builder="baton", file=plan.file, started_at=0.0,
        )  # fmt: skip

    def run(self, deployment: Any, **_: Any) -> DemoResult:
        self.log.append(f"run at {deployment.endpoint}")
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def down(self, name: str) -> None:
        self.log.append(f"down {name}")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()

    @contextlib.contextmanager
    def connected(*_: Any) -> Iterator[None]:
        yield

    monkeypatch.setenv("BATON_STATE_DIR", str(tmp_path / "state"))
    folder = make_tiny_model(tmp_path / "model")
    monkeypatch.setattr(model, "ensure_demo_model", lambda **_: folder)
    monkeypatch.setattr(local, "up", world.up)
    monkeypatch.setattr(local, "down", world.down)
    monkeypatch.setattr(serve_app, "connected", connected)
    monkeypatch.setattr(run_module, "run", world.run)
    return world


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(demo.command, list(arguments))


def test_everything_is_stopped_and_the_status_is_zero(world: World) -> None:
    """The plain run: up, run, down, and a line to try."""
    result = invoke("--port", "18701")
    assert result.exit_code == 0, result.output
    assert world.log == ["up demo on 18701", "run at http://127.0.0.1:18701", "down demo"]
    assert "checks: 1 of 1 held" in result.output
    assert "curl -N http://127.0.0.1:8000/v1/chat/completions" in result.output


def test_a_check_that_does_not_hold_is_the_exit_status(world: World, tmp_path: Path) -> None:
    """And the measurements are written all the same."""
    world.outcome = FAILED
    result = invoke("--json", str(tmp_path / "out.json"))
    assert isinstance(result.exception, DemoFailed)
    assert result.exception.exit_status == 1
    assert "failed: the answer is the same: 'a' and 'b'" in result.output
    assert json.loads((tmp_path / "out.json").read_text())["same_answer"] is False
    assert world.log[-1] == "down demo"


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [(DemoFailed("no answer"), 1), (KeyboardInterrupt(), 130), (RuntimeError("a fault"), 1)],
    ids=["no-answer", "ctrl-c", "a-fault-of-ours"],
)
def test_whatever_ends_the_run_stops_what_was_started(
    world: World, outcome: BaseException, expected: int
) -> None:
    """Also with --keep: there is nothing worth keeping."""
    world.outcome = outcome
    assert invoke("--keep").exit_code == expected
    assert world.log[-1] == "down demo"


def test_keep_leaves_it_running_when_everything_held(world: World) -> None:
    """And says how to stop it."""
    result = invoke("--keep")
    assert result.exit_code == 0
    assert not any(entry.startswith("down") for entry in world.log)
    assert "baton down demo" in result.output


def test_a_demo_that_runs_already_is_not_disturbed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`up` would update it in place, and the end of this run would take it down.

    It is said before the model is made.
    """
    monkeypatch.setattr(model, "ensure_demo_model", None)
    monkeypatch.setattr(state, "find", lambda _: "something")
    result = invoke()
    assert isinstance(result.exception, DeployFailed)
    assert "baton down demo" in (result.exception.cure or "")
    assert world.log == []


def test_a_json_file_in_no_folder_is_said_before_anything_starts(world: World) -> None:
    """Not after three minutes."""
    result = invoke("--json", "/no/such/folder/out.json")
    assert result.exit_code == 2
    assert "/no/such/folder" in result.output
    assert world.log == []
