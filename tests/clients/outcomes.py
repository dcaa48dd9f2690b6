"""What probes said, each asked once: also one that crashed is not run again for its next case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable


class Outcomes:
    """The outcome of each library's probe.

    Args:
        run: Runs a probe and returns its cases and what became of them; raises when it crashed.
    """

    def __init__(self, run: Callable[[str], dict[str, str]]) -> None:
        self._run = run
        self._told: dict[str, dict[str, str]] = {}
        self._crashed: dict[str, str] = {}

    def of(self, library: str) -> dict[str, str]:
        """What the probe said. The first test that asks gets a crash in full, the others its name.

        Raises:
            Exception: Whatever the probe's crash raised, for the first who asks.
        """
        if library in self._crashed:
            pytest.fail(
                f"the probe of {library} crashed ({self._crashed[library]});"
                " the first of its tests that failed says all of it",
                pytrace=False,
            )
        if library not in self._told:
            try:
                self._told[library] = self._run(library)
            except Exception as crash:
                last = (str(crash).strip().splitlines() or [""])[-1]
                self._crashed[library] = f"{type(crash).__name__}: {last[:200]}"
                raise
        return self._told[library]
