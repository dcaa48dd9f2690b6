"""Keeps requests away from an engine that has just failed, and finds out when it is well again.

For each engine a small machine, driven by how legs end and by a clock that is handed in:

    closed ──failure──▶ open ──cool-off over──▶ half-open ──probe succeeds──▶ closed
                         ▲                          │
                         └────── probe fails ───────┘   (a longer cool-off)

- No connection opens at once: nothing listens there. Timeouts, 5xx, and answers that break
  off open after three in a row: one may be the request's fault.
- The cool-off is 1 s and doubles with each probe that fails, up to 30 s, with a fifth of jitter so
  that several gateways do not probe together.
- Half-open lets exactly one request through. A probe that ends without a verdict (its caller hung
  up) leaves the place to the next, and so does one that has said nothing for ten seconds: an answer
  that is not streamed may take minutes.
- Busy (429, 503) is no failure, and neither is KV that could not be loaded: that is most often the
  other engine's death.

An engine that starts anew (another `engine_id` or `replica_id`) starts closed.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from baton.errors import LegFailed
from baton.gateway.candidates import Candidates
from baton.gateway.prefill import RequestRejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from baton.errors import FailureKind
    from baton.spec.lease import EngineLease

log = logging.getLogger("baton.gateway.breaker")

FIRST_COOL_OFF_S = 1.0
LONGEST_COOL_OFF_S = 30.0
JITTER = 0.2
FAILURES_IN_A_ROW = 3
PROBE_PATIENCE_S = 10.0
AT_ONCE: frozenset[FailureKind] = frozenset({"refused", "unreachable"})
COUNTED: frozenset[FailureKind] = frozenset({
    "disconnected", "truncated", "timeout", "server_error", "unauthorized", "no_params",
})  # fmt: skip

State = Literal["closed", "open", "half_open"]


@dataclass
class _Circuit:
    """What is known about one engine.

    `opened` counts openings since it was last well; `epoch` names the last one, and `probed_at` is
    when its latest probe began.

    `failures` before an answer and `broken` streams are counted apart: a stream that will break
    begins well.
    """

    engine_id: str | None = None
    failures: int = 0
    broken: int = 0
    opened: int = 0
    closes_at: float = 0.0
    epoch: int = 0
    probed_at: float | None = None


class Breakers:
    """One circuit for each engine that has failed.

    Args:
        clock: Seconds, never going back.
        jitter: A number from -1 to 1, drawn for each cool-off.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = lambda: random.uniform(-1, 1),  # noqa: S311 - no secret
    ) -> None:
        self._clock = clock
        self._jitter = jitter
        self._circuits: dict[str, _Circuit] = {}
        self._epochs = itertools.count(1)

    # -- who may be asked ------------------------------------------------------------------------

    def state(self, engine: EngineLease) -> State:
        circuit = self._known(engine)
        if circuit is None or not circuit.opened:
            return "closed"
        return "open" if self._clock() < circuit.closes_at else "half_open"

    def allows(self, engine: EngineLease) -> bool:
        """Whether a request may go there now: closed, or half-open and nobody probes."""
        state = self.state(engine)
        if state == "half_open":
            probed_at = self._circuits[engine.replica_id].probed_at
            return probed_at is None or self._clock() >= probed_at + PROBE_PATIENCE_S
        return state == "closed"

    def sound(self, engines: Sequence[EngineLease]) -> Candidates:
        """The engines that may be asked now, in their order."""
        candidates = Candidates.of(engines)
        known = [candidates.by_id.get(replica_id) for replica_id in self._circuits]
        return candidates.without(
            [e.replica_id for e in known if e is not None and not self.allows(e)]
        )

    def soonest(self, engines: Sequence[EngineLease]) -> list[EngineLease]:
        """The one whose cool-off ends first: for when an error would be the only other answer."""
        return sorted(engines, key=self._closes_at)[:1]

    def _closes_at(self, engine: EngineLease) -> float:
        circuit = self._known(engine)
        return 0.0 if circuit is None else circuit.closes_at

    def cool_off_left_s(self, engine: EngineLease) -> float:
        """Seconds until a probe may go there; 0 when one may go now."""
        circuit = self._known(engine)
        if circuit is None or not circuit.opened:
            return 0.0
        return max(0.0, circuit.closes_at - self._clock())

    # -- how legs end ----------------------------------------------------------------------------

    @contextmanager
    def leg(self, engine: EngineLease) -> Iterator[None]:
        """Around one leg: enter before anything is awaited, and how it ends is the verdict.

        A leg that starts while the circuit is not closed is a probe, also when it was sent only
        because there is no other engine.
        """
        circuit = self._known(engine)
        mine = 0
        if circuit is not None and circuit.opened:
            mine, circuit.probed_at = circuit.epoch, self._clock()
        try:
            yield
        except LegFailed as failure:
            self._verdict(engine, failure.failure, mine)
            raise
        except RequestRejected:
            self._verdict(engine, None, mine)  # an answer: it is well
            raise
        except BaseException:
            self._leave(engine, mine)  # the caller went away, or never got so far
            raise
        else:
            self._verdict(engine, None, mine)

    @contextmanager
    def streaming(self, replica_id: str) -> Iterator[None]:
        """Around what follows an answer's first byte: three in a row that break off open, too."""
        try:
            yield
        except LegFailed as failure:
            if failure.failure != "diverged":  # two engines differ: nobody knows which is wrong
                circuit = self._circuits.setdefault(replica_id, _Circuit())
                circuit.broken += 1
                if circuit.broken >= FAILURES_IN_A_ROW and not circuit.opened:
                    self._open(replica_id, circuit, failure.failure)
            raise
        circuit_or_none = self._circuits.get(replica_id)
        if circuit_or_none is not None:
            circuit_or_none.broken = 0
            self._tidy(replica_id, circuit_or_none)

    def _verdict(self, engine: EngineLease, failure: FailureKind | None, mine: int) -> None:
        circuit = self._known(engine)
        if failure is None:
            if circuit is not None and (not circuit.opened or mine == circuit.epoch):
                if circuit.opened:
                    log.info("engine is well again", extra={"engine": engine.replica_id})
                    circuit.broken = 0
                circuit.failures = circuit.opened = 0
                circuit.probed_at = None
                self._tidy(engine.replica_id, circuit)
            return
        if failure not in AT_ONCE and failure not in COUNTED:
            self._leave(engine, mine)
            return
        circuit = self._circuit(engine)
        if circuit.opened and mine != circuit.epoch:
            return  # a leg from before: what it saw is known
        circuit.failures += 1
        if circuit.opened or failure in AT_ONCE or circuit.failures >= FAILURES_IN_A_ROW:
            self._open(engine.replica_id, circuit, failure)

    def _open(self, replica_id: str, circuit: _Circuit, failure: FailureKind) -> None:
        cool_off_s = FIRST_COOL_OFF_S * 2 ** min(circuit.opened, 10)
        cool_off_s *= 1 + JITTER * self._jitter()
        circuit.opened += 1
        circuit.epoch = next(self._epochs)
        circuit.probed_at = None
        circuit.closes_at = self._clock() + min(LONGEST_COOL_OFF_S, cool_off_s)
        log.warning(
            "engine is left alone for a while",
            extra={
                "engine": replica_id,
                "failure": failure,
                "cool_off_s": round(min(LONGEST_COOL_OFF_S, cool_off_s), 3),
            },
        )

    def _leave(self, engine: EngineLease, mine: int) -> None:
        circuit = self._known(engine)
        if circuit is not None and circuit.opened and mine == circuit.epoch:
            circuit.probed_at = None

    # -- who they are ----------------------------------------------------------------------------

    def _known(self, engine: EngineLease) -> _Circuit | None:
        circuit = self._circuits.get(engine.replica_id)
        if circuit is not None and circuit.engine_id is None:
            circuit.engine_id = engine.engine_id  # a stream broke first
        if circuit is not None and circuit.engine_id != engine.engine_id:
            del self._circuits[engine.replica_id]  # it has started anew
            return None
        return circuit

    def _circuit(self, engine: EngineLease) -> _Circuit:
        circuit = self._known(engine)
        if circuit is None:
            circuit = self._circuits[engine.replica_id] = _Circuit(engine.engine_id)
        return circuit

    def _tidy(self, replica_id: str, circuit: _Circuit) -> None:
        if not (circuit.failures or circuit.broken or circuit.opened):
            self._circuits.pop(replica_id, None)

    def forget(self, replica_id: str) -> None:
        """The engine was seen to be well by other means."""
        self._circuits.pop(replica_id, None)

    def keep(self, engines: Sequence[EngineLease]) -> None:
        """Forget engines that are gone."""
        gone = self._circuits.keys() - {engine.replica_id for engine in engines}
        for replica_id in gone:
            del self._circuits[replica_id]
