"""Order of the whole run: unit tests first, then contract, integration and end-to-end tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pathlib import Path

# No test asserts wall-clock time, and Hypothesis' deadline would.
settings.register_profile("baton", deadline=None)
settings.load_profile("baton")

_ORDER = ("unit", "contract", "integration", "e2e")


def _rank(path: Path) -> int:
    return next((i for i, name in enumerate(_ORDER) if name in path.parts), len(_ORDER))


# Last of all: pytest-randomly shuffles in the same hook, and within a folder that order stays.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))
