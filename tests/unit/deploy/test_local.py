"""What `up` does while Serve starts what it was given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.deploy import local, serve_app
from baton.deploy.intent import AppPlan
from baton.deploy.serve_app import AppView
from baton.deploy.timings import Timings
from baton.errors import ServeEnded
from baton.spec.schema import Transport


class _Serve:
    """Ray Serve that is ended so many times while it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: int) -> None:
        self.ends = ends
        self.deployed = 0
        self.handed_over: list[str] = []
        monkeypatch.setattr(serve_app, "deploy", self._deploy)
        monkeypatch.setattr(serve_app, "view", self._view)
        monkeypatch.setattr(local, "first_handoff", lambda app, *_: self._hand(app))

    def _deploy(self, _: Any) -> None:
        self.deployed += 1

    def _view(self, _: str) -> AppView:
        if self.ends:
            self.ends -= 1
            raise ServeEnded("Ray Serve ended while tiny was being deployed: ActorDiedError")
        return AppView("RUNNING", "")

    def _hand(self, app: Any) -> None:
        self.handed_over.append(app.name)


def _up(said: list[str]) -> None:
    app = SimpleNamespace(name="tiny", model_id="tiny", by_baton=False)
    plan: Any = SimpleNamespace(
        name="tiny", model_note="", apps=[app], serve_config={}, endpoint_of=lambda _: "http://x"
    )
    local._deploy_and_wait(
        plan,
        head=None,
        progress=lambda _, text: said.append(text),
        timeout_s=5,
        timings=Timings(),
    )


def test_a_serve_that_is_being_ended_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve run` returns before its controller is killed."""
    serve, said = _Serve(monkeypatch, ends=1), []
    _up(said)
    assert (serve.deployed, serve.handed_over) == (2, ["tiny"])
    assert any("starting it again" in text for text in said)


def test_a_serve_that_is_ended_again_and_again_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody does not want it here."""
    serve = _Serve(monkeypatch, ends=9)
    with pytest.raises(ServeEnded):
        _up([])
    assert (serve.deployed, serve.handed_over) == (2, [])


@pytest.mark.parametrize(("by_baton", "require", "proved"), [
    (True, "efa", True), (True, "any", False), (False, "efa", False),
])  # fmt: skip
def test_only_a_fabric_that_is_required_is_proved(
    by_baton: bool, require: str, proved: bool
) -> None:
    """`any` accepts what the engines choose, and Ray's own builder has no evidence to give."""
    app = AppPlan(
        "tiny",
        "/",
        "tiny",
        by_baton=by_baton,
        transport=Transport.model_validate({"require": require}),
    )
    plan: Any = SimpleNamespace(apps=[app], endpoint_of=lambda _: "http://x")
    asked: list[str] = []
    local._prove(plan, lambda _app, endpoint, _key: asked.append(endpoint))
    assert asked == (["http://x"] if proved else [])
