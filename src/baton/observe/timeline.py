"""The timeline of one request: what each stage took, under that stage's own name.

What its fields and stages are says `timeline_fields`. A stage that did not happen is absent; a leg
that failed stands in `attempts`, never in a stage. Nothing of a prompt or an answer gets in here:
the last timelines are shown at `/baton/requests`, and packed into support bundles.
"""

from __future__ import annotations

import json
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from baton.observe.definitions import GAP_BUCKETS, tpot
from baton.observe.gaps import Gaps
from baton.observe.usage import usage_in

if TYPE_CHECKING:
    from baton.observe.timeline_fields import Stage
    from baton.observe.trace import Trace


MAX_STEPS = 64
"""Further ones are counted and not kept: a request that is tried again and again routes again and
again."""


class Watcher(Protocol):
    """Is told at once how each leg went."""

    def stage_ended(self, stage: Stage, seconds: float) -> None:
        """A stage took so long."""

    def leg_failed(self, leg: str, kind: str, seconds: float) -> None:
        """A leg broke, after so long."""


class Timeline:
    """Filled in as the request goes its way; read when it has ended (or when asked on the way)."""

    __slots__ = (
        "_came_at", "_started", "attempts", "bytes_out", "choices", "completion_tokens",
        "decode_engine", "fallbacks", "first_token", "gaps", "generates", "outcome", "path",
        "prefill_engine", "prompt_tokens", "reason", "received_at", "request_id", "resumes",
        "route", "stages", "status", "steps", "steps_left_out", "streamed", "total_s", "trace",
        "ttft_s", "watcher", "way",
    )  # fmt: skip

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
        self.completion_tokens: int | None = None
        self.generates = False
        """Whether its route writes text, and `slo` is about it."""
        self.gaps: Gaps | None = None
        self.trace: Trace | None = None
        self._came_at: float | None = None
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
        self.steps: list[tuple[Stage, float, float]] = []
        """Stage, seconds since the request was received at which it began, seconds."""
        self.steps_left_out = 0
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

    @property
    def started(self) -> float:
        """When the request was received, on the clock of `now`."""
        return self._started

    def add(self, stage: Stage, seconds: float, *, since: float | None = None) -> None:
        """Add to a stage: `route` happens twice in a P/D request, a retried leg again.

        Args:
            stage: Which.
            seconds: What it took.
            since: When it began, on the clock of `now`; None: it ends now.
        """
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds
        now = time.perf_counter()
        began = (now - seconds if since is None else since) - self._started
        if len(self.steps) < MAX_STEPS:
            self.steps.append((stage, began, seconds))
        else:
            self.steps_left_out += 1
        if self.trace is not None and stage == "prefill":
            self.trace.end_leg("prefill", now)
        if self.watcher is not None:
            self.watcher.stage_ended(stage, seconds)

    def leg(self, name: str, engine: str) -> dict[str, str]:
        """A leg is about to be sent; headers that carry the trace to its engine."""
        return {} if self.trace is None else self.trace.begin_leg(name, engine, self.now())

    def failed_attempt(self, leg: str, engine: str, kind: str, seconds: float) -> None:
        """Note a leg that broke: its time belongs to no stage."""
        self.attempts.append(
            {"leg": leg, "engine": engine, "kind": kind, "seconds": round(seconds, 6)}
        )
        if self.trace is not None:
            self.trace.end_leg(leg, self.now(), kind)
        if self.watcher is not None:
            self.watcher.leg_failed(leg, kind, seconds)

    def streams(self) -> Gaps:
        """The answer is a stream; its pieces are to be noted in what comes back."""
        self.gaps = Gaps(GAP_BUCKETS)
        return self.gaps

    def came(self, at: float) -> None:
        """An engine's first byte came, on the clock of `now`; the last call counts."""
        self._came_at = at

    def count_usage(self, answer: bytes) -> None:
        """Take over what an engine says of tokens in a whole answer or a stream's last events."""
        prompt, completion = usage_in(answer)
        self.prompt_tokens = prompt or self.prompt_tokens
        self.completion_tokens = completion or self.completion_tokens

    @property
    def tpot_s(self) -> float | None:
        """Mean time a token behind the first, of a stream whose tokens are known."""
        if not self.streamed or None in (self.total_s, self.ttft_s, self.completion_tokens):
            return None
        if self.outcome != "ok" or not self.completion_tokens:
            return None
        return tpot(self.total_s or 0.0, self.ttft_s or 0.0, self.completion_tokens)

    def resumed(self, how: str, engine: str, kind: str, seconds: float) -> None:
        """Note a stream that broke and goes on: how, whose died, and for how long it stood."""
        self.resumes.append(
            {"how": how, "engine": engine, "kind": kind, "seconds": round(seconds, 6)}
        )
        if self.trace is not None:
            self.trace.break_off(engine, self.now() - seconds, kind)

    def first_byte(self) -> None:
        """The first body byte goes to the caller now."""
        if self.ttft_s is None:
            self.ttft_s = self.since_received()
            if self.streamed and self._came_at is not None:
                self.add("first_token", self.now() - self._came_at, since=self._came_at)

    def finish(self, outcome: str, status: int | None = None) -> None:
        """End the timeline. The first outcome stays."""
        if self.total_s is not None:
            return
        self.total_s = self.since_received()
        self.outcome = outcome
        if self.trace is not None:
            self.trace.end(self.now())
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
            "trace_id": None if self.trace is None else f"{self.trace.trace_id:032x}",
            "path": self.path,
            "received_at": round(self.received_at, 6),
            "route": self.route,
            "reason": self.reason,
            "way": self.way,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
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
            "steps": [
                {"stage": stage, "at_s": round(at, 6), "seconds": round(seconds, 6)}
                for stage, at, seconds in self.steps
            ],
            "steps_left_out": self.steps_left_out,
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 6),
            "tpot_s": None if (tpot_s := self.tpot_s) is None else round(tpot_s, 6),
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
        self.added = 0
        """How many there have been."""

    def add(self, timeline: Timeline) -> None:
        # What has been added up, or still points at the request's body, is not kept with it.
        timeline.gaps = timeline.watcher = None
        self._ring.append(timeline)
        self.added += 1

    def as_list(self) -> list[dict[str, Any]]:
        return [timeline.as_dict() for timeline in self._ring]

    def after(self, number: int, most: int) -> list[dict[str, Any]]:
        """Those that came behind the first `number`, oldest first; the newest `most` of them.

        A `number` from the future is another gateway's, or this one's before its restart.
        """
        wanted = self.added if number > self.added else self.added - max(0, number)
        newest = list(islice(reversed(self._ring), min(wanted, most)))
        return [timeline.as_dict() for timeline in reversed(newest)]
