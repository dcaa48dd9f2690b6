"""Order of the whole run: unit tests first, then contract, integration and end-to-end tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_ORDER = ("unit", "contract", "integration", "e2e")


def _rank(path: Path) -> int:
    return next((i for i, name in enumerate(_ORDER) if name in path.parts), len(_ORDER))


# Last of all: pytest-randomly shuffles in the same hook, and within a folder that order stays.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))
