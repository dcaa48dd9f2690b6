"""The timeline of one request: what each stage took, under that stage's own name.

Times are seconds on the monotonic clock. A stage that did not happen is absent; a leg that failed
stands in `attempts`, never in a stage.

=================  =====================================================================
stage              from → to
=================  =====================================================================
`admit`            request received → let in (body read, key checked, place found)
`route`            choosing engines (both choices of a request, added)
`prefill`          prefill leg sent → its answer
`handoff`          decode request sent → its first body byte. Holds the KV transfer and
                   the first decode step. Streamed P/D only
`decode`           first body byte from decode → last byte. Streamed answers only
`local_prefill`    request sent to a decode engine without KV → its first body byte:
                   prefill and the first decode step there. Streamed, decode alone
`overflow`         request sent to the overflow provider → first byte of its answer, or
                   all of it when it is not streamed
`answer`           request sent to decode → last byte, when the answer is not streamed:
                   HTTP shows no border between handoff and decode there
=================  =====================================================================

`first_token` says of a streamed P/D request how its first token went: `early: from_prefill`, before
`handoff`, which then hides between the first two tokens; `early: complete`, where it was the whole
answer and nothing was handed over; or `ordinary` and why (`gateway.first_token`).

`choices` says for each leg why the last engine was chosen, and what share of the prompt's beginning
it was known to `held` (`gateway.routing.Choice`).

`ttft_s` is received → first body byte to the caller. `total_s` is received → last byte.
`way` is what the cost model said of a request that it was asked about: `way`, `reason`,
`prompt_tokens` as estimated, and the predicted seconds `pd_s` (prefill and handoff), `local_s`
(prefill on decode) and `stall_s` (what streams there lose by that, added up).
"""

from __future__ import annotations

import json
import time
from collections import deque
from typing import Any, Literal, Protocol

Stage = Literal[
    "admit", "route", "prefill", "handoff", "decode", "local_prefill", "answer", "overflow"
]
STAGES: tuple[Stage, ...] = (
    "admit",
    "route",
    "prefill",
    "handoff",
    "decode",
    "local_prefill",
    "answer",
    "overflow",
)


class Watcher(Protocol):
    """Is told at once how each leg went."""

    def stage_ended(self, stage: Stage, seconds: float) -> None:
        """A stage took so long."""

    def leg_failed(self, leg: str, kind: str, seconds: float) -> None:
        """A leg broke, after so long."""


class Timeline:
    """Filled in as the request goes its way; read when it has ended (or when asked on the way)."""

    __slots__ = (
        "_started",
        "attempts",
        "bytes_out",
        "choices",
        "decode_engine",
        "fallbacks",
        "first_token",
        "outcome",
        "path",
        "prefill_engine",
        "prompt_tokens",
        "reason",
        "received_at",
        "request_id",
        "resumes",
        "route",
        "stages",
        "status",
        "streamed",
        "total_s",
        "ttft_s",
        "watcher",
        "way",
    )

    def __init__(self, request_id: str, path: str) -> None:
        self._started = time.perf_counter()
        self.received_at = time.time()
        self.request_id = request_id
        self.path = path
        self.route: str | None = None
        self.reason: str | None = None
        self.way: dict[str, Any] | None = None
        self.prompt_tokens: int | None = None
        """Where an engine has counted them."""
        self.watcher: Watcher | None = None
        self.streamed = False
        self.status = 0
        self.outcome = "running"
        self.prefill_engine: str | None = None
        self.decode_engine: str | None = None
        self.choices: dict[str, dict[str, Any]] = {}
        self.fallbacks: list[str] = []
        self.first_token: tuple[str, str] | None = None
        self.attempts: list[dict[str, Any]] = []
        self.resumes: list[dict[str, Any]] = []
        self.stages: dict[Stage, float] = {}
        self.ttft_s: float | None = None
        self.total_s: float | None = None
        self.bytes_out = 0

    @staticmethod
    def now() -> float:
        """Seconds on the clock that every stage uses."""
        return time.perf_counter()

    def since_received(self) -> float:
        """Seconds since the request was received."""
        return time.perf_counter() - self._started

    def add(self, stage: Stage, seconds: float) -> None:
        """Add to a stage: `route` happens twice in a P/D request, a retried leg again."""
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        if self.watcher is not None:
            self.watcher.stage_ended(stage, seconds)

    def failed_attempt(self, leg: str, engine: str, kind: str, seconds: float) -> None:
        """Note a leg that broke: its time belongs to no stage."""
        self.attempts.append(
            {"leg": leg, "engine": engine, "kind": kind, "seconds": round(seconds, 6)}
        )
        if self.watcher is not None:
            self.watcher.leg_failed(leg, kind, seconds)

    def resumed(self, how: str, engine: str, kind: str, seconds: float) -> None:
        """Note a stream that broke and goes on: how, whose died, and for how long it stood."""
        self.resumes.append(
            {"how": how, "engine": engine, "kind": kind, "seconds": round(seconds, 6)}
        )

    def first_byte(self) -> None:
        """The first body byte goes to the caller now."""
        if self.ttft_s is None:
            self.ttft_s = self.since_received()

    def finish(self, outcome: str, status: int | None = None) -> None:
        """End the timeline. The first outcome stays."""
        if self.total_s is not None:
            return
        self.total_s = self.since_received()
        self.outcome = outcome
        if status is not None:
            self.status = status

    def gone(self) -> None:
        """The caller hung up: also when its answer was whole and on the way."""
        self.finish("hangup")
        self.outcome = "hangup"

    def as_dict(self) -> dict[str, Any]:
        """The timeline as JSON-ready values, seconds to the microsecond."""
        return {
            "request_id": self.request_id,
            "path": self.path,
            "received_at": round(self.received_at, 6),
            "route": self.route,
            "reason": self.reason,
            "way": self.way,
            "prompt_tokens": self.prompt_tokens,
            "streamed": self.streamed,
            "status": self.status,
            "outcome": self.outcome,
            "prefill_engine": self.prefill_engine,
            "decode_engine": self.decode_engine,
            "choices": dict(self.choices),
            "fallbacks": list(self.fallbacks),
            "first_token": None if self.first_token is None else ": ".join(self.first_token),
            "attempts": list(self.attempts),
            "resumes": list(self.resumes),
            "stages": {f"{stage}_s": round(s, 6) for stage, s in self.stages.items()},
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 6),
            "total_s": round(self.since_received() if self.total_s is None else self.total_s, 6),
            "bytes_out": self.bytes_out,
        }

    def log_fields(self) -> dict[str, Any]:
        """What the access line says of the request, flat."""
        return {
            "request_id": self.request_id,
            "route": self.route,
            "reason": self.reason,
            "outcome": self.outcome,
            "prefill": self.prefill_engine,
            "decode": self.decode_engine,
            **{f"{leg}_why": choice["why"] for leg, choice in self.choices.items()},
            **{f"{stage}_s": round(s, 6) for stage, s in self.stages.items()},
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 6),
            "total_s": None if self.total_s is None else round(self.total_s, 6),
        }

    def as_json(self) -> str:
        """One ASCII line, fit for a header or an SSE comment."""
        return json.dumps(self.as_dict(), separators=(",", ":"))


class TimelineRing:
    """The last timelines, oldest first. Memory is bounded by `size`."""

    def __init__(self, size: int = 1000) -> None:
        self._ring: deque[Timeline] = deque(maxlen=size)

    def add(self, timeline: Timeline) -> None:
        self._ring.append(timeline)

    def as_list(self) -> list[dict[str, Any]]:
        return [timeline.as_dict() for timeline in self._ring]
