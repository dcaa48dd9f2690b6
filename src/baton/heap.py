"""Keeps Python's garbage collector away from what a server has loaded."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 10_000


def collect_rarely() -> None:
    """For a process that serves from now on: what is loaded stays, what a request makes goes.

    A full collection of all that was imported takes milliseconds in which no token moves, and
    requests leave next to no cycles behind (docs/decisions/0016). vLLM's own server freezes its
    heap in its lifespan, which an engine replica does not run.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
