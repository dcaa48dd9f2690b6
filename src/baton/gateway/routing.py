"""Chooses engines: a pure choice over what the directory and this gateway's own counts say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from baton.gateway.directory import Directory
    from baton.spec.lease import EngineLease


def load_of(engine: EngineLease, own: int) -> float:
    """How busy an engine is, in requests.

    The lease is up to a second old and holds what every gateway sent; `own` is exact and only
    ours. Ours are in both, so the larger of the two counts, and a nearly full KV cache (where vLLM
    begins to preempt) weighs like a full batch.
    """
    busy = max(own, engine.load.running + engine.load.waiting)
    return busy + engine.load.waiting + (256 if engine.load.kv_usage > 0.95 else 0)  # noqa: PLR2004


def choose(
    engines: Sequence[EngineLease],
    own: Mapping[str, int],
    turn: int,
    exclude: Collection[str] = (),
) -> EngineLease | None:
    """The least loaded engine; engines that are equally loaded take turns.

    Args:
        engines: Candidates, in the directory's order.
        own: Requests that this gateway has running, by `replica_id`.
        turn: A number that grows by one for each choice.
        exclude: `replica_id`s that this request has already failed on.
    """
    best: list[EngineLease] = []
    least = float("inf")
    for engine in engines:
        if engine.replica_id in exclude:
            continue
        load = load_of(engine, own.get(engine.replica_id, 0))
        if load < least:
            best, least = [engine], load
        elif load == least:
            best.append(engine)
    return best[turn % len(best)] if best else None


def release_takers(directory: Directory) -> Sequence[EngineLease]:
    """Decode engines that may take a release: one that fails its probes as well, or KV is held."""
    return directory.decode_engines() or [
        engine for engine in directory.all_engines() if engine.role == "decode"
    ]


class InFlight:
    """This gateway's own requests on each engine, and whose turn it is."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._turn = 0

    def pick(
        self, engines: Sequence[EngineLease], exclude: Collection[str] = ()
    ) -> EngineLease | None:
        """Choose an engine. It is not counted until `begin`."""
        self._turn += 1
        return choose(engines, self._counts, self._turn, exclude)

    def begin(self, engine: EngineLease) -> None:
        self._counts[engine.replica_id] += 1

    def end(self, engine: EngineLease) -> None:
        self._counts[engine.replica_id] -= 1
        if self._counts[engine.replica_id] <= 0:
            del self._counts[engine.replica_id]

    def count(self, replica_id: str) -> int:
        return self._counts.get(replica_id, 0)
