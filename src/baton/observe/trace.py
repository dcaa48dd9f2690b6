"""W3C trace context: who asked, and which legs were sent to engines under which span.

A request's spans are made when it has ended (`otlp`). On its way only ids are needed: engines get
a `traceparent` that names the leg, so that their own spans become its children.

Format: https://www.w3.org/TR/trace-context/ (Recommendation of 23 November 2021).
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

_PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_SAMPLED = 1
_random = random.SystemRandom()


@dataclass
class Leg:
    """One request to an engine. Times are on the clock of `time.perf_counter`."""

    name: str
    engine: str
    span_id: int
    began: float
    ended: float | None = None
    failure: str | None = None


@dataclass
class Trace:
    """One request's part of a trace.

    Args:
        trace_id: The caller's, or a new one.
        span_id: Of the request at this gateway.
        parent_id: The caller's span; None when this is the first one.
        state: The caller's `tracestate`, passed on as it came.
    """

    trace_id: int
    span_id: int
    parent_id: int | None = None
    state: str | None = None
    legs: list[Leg] = field(default_factory=list)

    def begin_leg(self, name: str, engine: str, now: float) -> dict[str, str]:
        """A leg is sent; the headers that say so to its engine."""
        leg = Leg(name, engine, _random.getrandbits(64) or 1, now)
        self.legs.append(leg)
        headers = {"traceparent": f"00-{self.trace_id:032x}-{leg.span_id:016x}-01"}
        if self.state is not None:
            headers["tracestate"] = self.state
        return headers

    def end_leg(self, name: str, now: float, failure: str | None = None) -> None:
        """The last leg of that name that is open has ended."""
        for leg in reversed(self.legs):
            if leg.name == name and leg.ended is None:
                leg.ended, leg.failure = now, failure
                return

    def break_off(self, engine: str, at: float, failure: str) -> None:
        """A stream that this engine wrote broke, and others go on."""
        for leg in self.legs:
            if leg.engine == engine and leg.name == "decode" and leg.ended is None:
                leg.ended, leg.failure = at, failure
                return

    def end(self, now: float) -> None:
        """The request has ended, and with it whatever is still open."""
        for leg in self.legs:
            if leg.ended is None:
                leg.ended = now


def begin(traceparent: str | None, tracestate: str | None, *, sample: float) -> Trace | None:
    """Begin this gateway's part; None where the request is not to be traced.

    Args:
        traceparent: The caller's header. Whether it is sampled is the caller's decision then.
        tracestate: The caller's other header.
        sample: Share of requests without a caller's trace that begin one.
    """
    found = None if traceparent is None else _PARENT.fullmatch(traceparent.strip())
    # Version 00 has four fields; a later one may have more.
    if found is None or (found[1] == "00" and found[5] is not None):
        if sample < 1.0 and _random.random() >= sample:
            return None
        return Trace(_random.getrandbits(128) or 1, _random.getrandbits(64) or 1)
    if not int(found[4], 16) & _SAMPLED:
        return None
    return Trace(
        int(found[2], 16), _random.getrandbits(64) or 1, int(found[3], 16), tracestate or None
    )
