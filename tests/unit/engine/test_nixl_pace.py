"""NIXL's progress thread gets a pause on CPU-only engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from baton.engine import nixl_pace

if TYPE_CHECKING:
    import pytest


class PlainConfig:
    """Stands for NIXL's class: a plain property that takes any value."""

    def __init__(self) -> None:
        self._delay = 5

    @property
    def pthrDelay(self) -> int:  # noqa: N802
        return self._delay

    @pthrDelay.setter
    def pthrDelay(self, value: int) -> None:  # noqa: N802
        self._delay = value


def test_a_pause_of_zero_becomes_ours_and_a_longer_one_stays() -> None:
    """NIXL sets zero after it has made the object."""
    bindings = SimpleNamespace(nixlAgentConfig=PlainConfig)
    assert nixl_pace._wrap(bindings, 100)
    config = bindings.nixlAgentConfig()
    config.pthrDelay = 0
    assert config.pthrDelay == 100
    config.pthrDelay = 2_000
    assert config.pthrDelay == 2_000


def test_wrapping_twice_is_wrapping_once() -> None:
    """vLLM loads plugins in every process, some of them twice."""
    bindings = SimpleNamespace(nixlAgentConfig=PlainConfig)
    nixl_pace._wrap(bindings, 100)
    once = bindings.nixlAgentConfig
    nixl_pace._wrap(bindings, 100)
    assert bindings.nixlAgentConfig is once


def test_zero_in_the_environment_leaves_nixl_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way back, for whoever measures otherwise."""
    monkeypatch.setenv(nixl_pace.SWITCH, "0")
    assert nixl_pace.pace_nixl() is False


def test_beside_a_gpu_build_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """There a core more or less does not matter, and a microsecond may."""
    monkeypatch.setattr(nixl_pace, "cpu_only", lambda: False)
    assert nixl_pace.pace_nixl() is False
