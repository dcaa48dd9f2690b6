"""Engines that think, for two files that follow each other: started once, and ended in between."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from tests.real_engines import TOOLS, EngineSpec, RealEngine, start_engines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEASE_S = 10
# The drill's open streams need more blocks than the tests' engines have.
ROOM = ("--num-gpu-blocks-override", "1024")
# Tells thinking from the answer where a request asks for it, as some of the drill's do.
PARSERS = (*TOOLS, "--reasoning-parser", "deepseek_v3")
# Decode engines whose worker waits for its EngineCore leave prefill more of two cores. Otherwise
# three of them answer so fast that fewer than fifty streams are open at once.
APART = (("BATON_CPU_WORKER_PROCESS", "1"),)


class ThinkingEngines:
    """One prefill and three decode engines, from the first who asks until somebody ends them.

    test_first_day asks a pair of them, then test_drill_real kills them one after the other:
    tests/conftest.py has them in this order.
    """

    kv_lease_s = LEASE_S

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._started = contextlib.ExitStack()
        self._engines: list[RealEngine] = []
        self.folder: Path

    def running(self) -> list[RealEngine]:
        """All four, prefill first."""
        if not self._engines:
            self.folder = self._factory.mktemp("thinking")
            specs = [
                EngineSpec("prefill", "prefill-0", (*ROOM, *PARSERS), LEASE_S),
                *(
                    EngineSpec(
                        "decode", f"decode-{number}", (*ROOM, *PARSERS), LEASE_S, environment=APART
                    )
                    for number in range(3)
                ),
            ]
            self._engines = self._started.enter_context(start_engines(specs, self.folder))
        return self._engines

    def end(self) -> None:
        """Whoever asks next has them started anew."""
        self._engines = []
        self._started.close()


@pytest.fixture(scope="session")
def thinking_engines(
    real_engines_wanted: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ThinkingEngines]:
    """They are started by their first `running()`."""
    engines = ThinkingEngines(tmp_path_factory)
    yield engines
    engines.end()
