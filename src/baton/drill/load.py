"""Keeps many requests going at once, until it is told to stop."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Self

from baton.drill.judge import Judged, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from baton.drill.asks import Case
    from baton.drill.client import Client

_LOOK_S = 0.02


class Load:
    """Workers that ask one case after the other while the block lasts.

    At its end each finishes what it has begun. `judged` holds every request that ended.

    Args:
        client: Sends.
        groups: For each group of workers the cases to choose from, and how many workers.
        seed: Of the choice.
    """

    def __init__(
        self, client: Client, groups: Sequence[tuple[Sequence[Case], int]], *, seed: int
    ) -> None:
        self.client = client
        self._groups = groups
        self._rng = random.Random(seed)  # noqa: S311  (no secret)
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self.judged: list[Judged] = []

    async def __aenter__(self) -> Self:
        for cases, workers in self._groups:
            for _ in range(workers):
                work = self._work(cases, len(self._tasks))
                self._tasks.append(asyncio.create_task(work))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stopping = True
        if error is not None:
            for task in self._tasks:
                task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and error is None:
                raise end

    async def _work(self, cases: Sequence[Case], number: int) -> None:
        await asyncio.sleep(number * _LOOK_S)  # not all in the same moment
        while not self._stopping:
            case = self._rng.choice(cases)
            self.judged.append(judge(case, await self.client.send(case.ask)))

    async def until(self, claim: Callable[[], bool], *, seconds: float) -> bool:
        """Wait until something is so; False when it was not in time."""
        for _ in range(int(seconds / _LOOK_S)):
            if claim():
                return True
            await asyncio.sleep(_LOOK_S)
        return claim()

    async def ended(self, more: int, *, seconds: float) -> bool:
        """Wait until so many more requests have ended."""
        goal = len(self.judged) + more
        return await self.until(lambda: len(self.judged) >= goal, seconds=seconds)
