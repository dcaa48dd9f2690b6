"""What a drill sees of a deployment that is starting engines again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton.deploy import local_faults, serve_app
from baton.deploy.local_faults import LocalFaults
from baton.deploy.state import Deployment
from baton.errors import NotRunning
from baton.spec.lease import DirectorySnapshot, EngineLease

if TYPE_CHECKING:
    from collections.abc import Callable


def lease(engine_id: str, state: Any = "ready", role: Any = "prefill") -> EngineLease:
    url = f"http://127.0.0.1:1/{engine_id}" if engine_id else ""
    return EngineLease(
        replica_id=f"r-{engine_id}", role=role, url=url, engine_id=engine_id, model_id="m",
        state=state,
    )  # fmt: skip


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LocalFaults]:
    """Faults of a deployment whose directory says this, one snapshot after the other."""

    def make(*snapshots: list[EngineLease]) -> LocalFaults:
        left = list(snapshots)

        def engines(_app: str) -> DirectorySnapshot:
            now = left.pop(0) if len(left) > 1 else left[0]
            return DirectorySnapshot(engines=tuple(now))

        monkeypatch.setattr(serve_app, "engines", engines)
        monkeypatch.setattr(local_faults, "_LOOK_S", 0.001)
        monkeypatch.setattr(local_faults.engine_processes, "kill", lambda _pid, *, core_only: None)
        deployment = Deployment(
            name="d", marker="m", ray_address="127.0.0.1:3", endpoint="http://127.0.0.1:2",
            apps=("d",), builder="baton", file="app.yaml", started_at=0.0,
        )  # fmt: skip
        return LocalFaults(deployment, {})

    return make


async def test_an_engine_that_still_starts_is_not_yet_one(
    faults: Callable[..., LocalFaults],
) -> None:
    """It has neither an address to read from nor an id of its own."""
    of = faults([lease("a"), lease("", "starting"), lease("d", role="decode")])
    assert [engine.engine_id for engine in await of.engines()] == ["a", "d"]


async def test_the_engine_that_comes_back_is_one_with_an_id(
    faults: Callable[..., LocalFaults],
) -> None:
    """Serve's new replica is in the directory long before it has one."""
    of = faults(
        [lease("a"), lease("d", role="decode")],
        [lease("", "starting"), lease("d", role="decode")],
        [lease("b", role="decode"), lease("d", role="decode"), lease("", "starting")],
        [lease("a2"), lease("d", role="decode")],
    )
    assert (await of.restart(lease("a"))).engine_id == "a2"


async def test_a_directory_that_names_nobody_makes_no_old_engine_a_new_one(
    faults: Callable[..., LocalFaults],
) -> None:
    """Then nothing is killed either."""
    with pytest.raises(NotRunning, match="names no engine"):
        await faults([]).restart(lease("a"))
