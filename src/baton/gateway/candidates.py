"""The engines that one choice is made from. With a thousand of them nothing may walk over all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from baton.spec.lease import EngineLease


class Candidates(list["EngineLease"]):
    """Engines in the directory's order, and by `replica_id`. Not to be changed once made.

    Args:
        by_id: The engines; the list is made of them.
        read: Which read of the directory they stem from, compared by identity; None: no matter.
    """

    __slots__ = ("by_id", "read")

    def __init__(self, by_id: dict[str, EngineLease], read: object = None) -> None:
        super().__init__(by_id.values())
        self.by_id = by_id
        self.read = read

    @classmethod
    def of(cls, engines: Iterable[EngineLease], read: object = None) -> Candidates:
        """Candidates as they are, or made of any engines."""
        if isinstance(engines, Candidates):
            return engines
        return cls({engine.replica_id: engine for engine in engines}, read)

    def without(self, replica_ids: Collection[str]) -> Candidates:
        """All but these. Copies (in C, some microseconds a thousand) only when one is among them.

        Args:
            replica_ids: Few: engines that were tried, or are left alone.
        """
        gone = [replica_id for replica_id in replica_ids if replica_id in self.by_id]
        if not gone:
            return self
        left = self.by_id.copy()
        for replica_id in gone:
            del left[replica_id]
        return Candidates(left, self.read)
