"""What is loaded is out of the collector's way, and what requests leave is still collected."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from baton.heap import YOUNG_OBJECTS, collect_rarely

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """As it was, afterwards."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class Node:
    """A thing in a cycle."""

    def __init__(self) -> None:
        self.me = self


def test_what_was_loaded_before_is_not_looked_at_again() -> None:
    """And young objects are looked at rarely."""
    kept = Node()
    collect_rarely()
    assert gc.get_freeze_count() > 1000
    assert all(one is not kept for one in gc.get_objects())
    assert gc.get_threshold()[0] == YOUNG_OBJECTS


def test_cycles_that_are_made_later_still_go() -> None:
    """Nothing leaks by it."""
    collect_rarely()
    seen = weakref.ref(Node())
    gc.collect()
    assert seen() is None
