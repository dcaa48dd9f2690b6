"""Being connected to Ray takes nothing from the command that connects."""

from __future__ import annotations

import signal
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from baton.deploy.serve_app import connected
from baton.errors import EnvironmentUnfit

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """Ray as far as connecting goes; like the real one, it takes SIGTERM for itself."""
    ray = types.SimpleNamespace(down=0)

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def shutdown() -> None:
        ray.down += 1

    ray.init, ray.shutdown = init, shutdown
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray._raylet", _raylet(ray))
    before = signal.getsignal(signal.SIGTERM)
    yield ray
    signal.signal(signal.SIGTERM, before)


def _raylet(ray: types.SimpleNamespace) -> types.SimpleNamespace:
    """Its compiled part, which keeps a token; also where the real one is loaded already."""
    ray.forgotten = 0

    def reset_cache() -> None:
        ray.forgotten += 1

    loader = types.SimpleNamespace(reset_cache=reset_cache)
    return types.SimpleNamespace(
        AuthenticationTokenLoader=types.SimpleNamespace(instance=lambda: loader)
    )


def test_the_token_of_the_cluster_before_is_forgotten(fake_ray: types.SimpleNamespace) -> None:
    """Ray keeps the first one that a process has used, and before `init` is the time for it."""
    seen: list[int] = []
    fake_ray.init = lambda **_: seen.append(fake_ray.forgotten)
    for _ in range(2):
        with connected("127.0.0.1:1", {}):
            pass
    assert seen == [1, 2]


def test_sigterm_still_reaches_the_command(fake_ray: types.SimpleNamespace) -> None:
    """Otherwise a `baton up` that is told to stop dies at once, and its engines stay."""

    def ours(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, ours)
    with connected("127.0.0.1:1", {}):
        assert signal.getsignal(signal.SIGTERM) is ours
    assert fake_ray.down == 1


def test_a_cluster_that_does_not_answer_is_one_line(fake_ray: types.SimpleNamespace) -> None:
    """Ray's first line, the address, and a cure."""

    def init(**_: Any) -> None:
        raise ConnectionError("Ray is not reachable\nand a long story")

    fake_ray.init = init
    with pytest.raises(EnvironmentUnfit, match=r"at 127\.0\.0\.1:1: Ray is not reachable$"):  # noqa: SIM117
        with connected("127.0.0.1:1", {}):
            pass
