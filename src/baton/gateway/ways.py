"""Which way each prompt goes, and what each request teaches about both: the shell around `cost`.

A prompt's length is known in bytes; in tokens only where an engine has counted it. So tokens are
estimated by the tokens that bytes have made lately: prefill says with each offer how many tokens it
read. What a request teaches is learned when each leg ends, not when the request does: a stream may
go on for minutes.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING

from baton.gateway.cost import CostModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from baton.errors import FailureKind
    from baton.gateway.ask import Ask
    from baton.gateway.cost import WayChoice
    from baton.gateway.directory import Directory
    from baton.gateway.eligibility import PromptSize
    from baton.gateway.links import Links
    from baton.gateway.routing import InFlight
    from baton.observe.costs import CostMetrics
    from baton.observe.timeline import Timeline
    from baton.observe.timeline_fields import Stage

FIRST_GUESS = 0.25
"""Tokens a byte before any prompt was counted: four bytes of English text make a token."""
SHORTEST = 64
"""Prompts under so many tokens teach nothing of length: their time is an engine's step."""
STREAMS_LIVE_S = 0.05
"""How long the count of streams is used: no request walks over a thousand engines."""
_FADE = 0.95
_WEIGHT_BYTES = 4096.0
"""A longer prompt counts as much as one of this length: one book must not be everybody's ratio."""
# What says that a handoff does not work, and not that an engine died, was full, or shut us out.
_LOST: dict[str, frozenset[FailureKind]] = {
    "decode": frozenset({
        "error_event", "server_error", "timeout", "truncated", "silent", "stale_kv",
    }),
    "prefill": frozenset({"timeout", "no_params", "server_error"}),
}  # fmt: skip


class TokenRatio:
    """Tokens a byte, lately."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._bytes = 0.0

    def learn(self, tokens: int, size: int) -> None:
        """A prompt of so many bytes has so many tokens."""
        if tokens <= 0 or size <= 0:
            return
        weight = min(1.0, _WEIGHT_BYTES / size)
        self._tokens = self._tokens * _FADE + tokens * weight
        self._bytes = self._bytes * _FADE + size * weight

    @property
    def is_known(self) -> bool:
        return self._bytes > 0

    @property
    def value(self) -> float:
        return self._tokens / self._bytes if self._bytes else FIRST_GUESS


class Ways:
    """One gateway's choices between P/D and decode alone.

    Args:
        directory: Knows decode's load and KV's size.
        inflight: This gateway's own requests.
        metrics: Counts choices.
        now: Seconds, never going back.
        seed: Of the probes' spacing; None for another one in each process, so that several gateways
            do not probe together.
    """

    def __init__(
        self,
        directory: Directory,
        inflight: InFlight,
        metrics: CostMetrics,
        *,
        now: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        if seed is None:
            seed = random.SystemRandom().getrandbits(32)
        self.model = CostModel(now=now, seed=seed)
        self.links: Links | None = None
        """Told of each handoff by its pair."""
        self.ratio = TokenRatio()
        self._now = now
        self._streams = 0.0
        self._streams_until = float("-inf")
        self._directory = directory
        self._inflight = inflight
        self._metrics = metrics

    def choose(self, size: PromptSize, *, streamed: bool) -> WayChoice:
        """Choose for a prompt that P/D can do right, in mode `auto`."""
        return self.model.decide(
            self.tokens_of(size), self._streams_per_engine(), can_teach=streamed
        )

    def count(self, way: str, reason: str) -> None:
        """Note a choice, whoever made it."""
        self._metrics.choices.labels(way, reason).inc()

    def lesson(self, ask: Ask, timeline: Timeline) -> Lesson:
        """Learn from a request that begins. The lesson has to be closed when it ends."""
        return Lesson(self, ask, timeline)

    def tokens_of(self, size: PromptSize) -> float:
        """Tokens, counted or estimated."""
        return size.tokens if size.tokens is not None else size.bytes * self.ratio.value

    def show(self) -> None:
        """Set the gauges to what is believed now."""
        kv_bytes = Counter(
            engine.kv_bytes_per_token
            for engine in self._directory.all_engines()
            if engine.kv_bytes_per_token > 0
        )
        self._metrics.show(
            self.model.learned(self._streams_per_engine()),
            tokens_per_byte=self.ratio.value if self.ratio.is_known else None,
            kv_bytes_per_token=kv_bytes.most_common(1)[0][0] if kv_bytes else None,
        )

    def _streams_per_engine(self) -> float:
        """Mean over decode engines. A lease holds what every gateway sent, a second ago."""
        now = self._now()
        if now >= self._streams_until:
            self._streams, self._streams_until = self._counted_streams(), now + STREAMS_LIVE_S
        return self._streams

    def _counted_streams(self) -> float:
        engines = self._directory.decode_engines()
        if not engines:
            return 0.0
        return sum(
            max(self._inflight.count(engine.replica_id), engine.load.running) for engine in engines
        ) / len(engines)


class Lesson:
    """What one request teaches. It watches the request's timeline."""

    __slots__ = ("_ask", "_handoff", "_legs_s", "_probe", "_timeline", "_ways", "_with_kv")

    def __init__(self, ways: Ways, ask: Ask, timeline: Timeline) -> None:
        self._ways, self._ask, self._timeline = ways, ask, timeline
        self._with_kv = False
        self._legs_s = 0.0
        self._handoff: int | None = None
        probe = ask.choice
        self._probe = probe if probe is not None and probe.reason == "explore" else None
        if ask.size is not None:
            timeline.watcher = self

    def stage_ended(self, stage: Stage, seconds: float) -> None:
        """A leg went well."""
        if stage == "admit":
            self._learn_ratio()
        elif stage == "prefill":
            self._prefilled(seconds)
        elif stage == "handoff":
            self._handed_over(seconds)
        elif stage == "local_prefill":
            if self._is_sure() and self._tokens() >= SHORTEST:
                self._ways.model.local_prefilled(self._tokens(), seconds)
            self._first_byte("local", seconds)
        elif stage == "answer" and self._with_kv:
            self._end_handoff()
            self._ways.model.handoff_worked()

    def _prefilled(self, seconds: float) -> None:
        self._learn_ratio()
        tokens, model = self._tokens(), self._ways.model
        self._with_kv = True
        self._legs_s += seconds
        if tokens >= SHORTEST:
            model.prefilled(tokens, seconds)
        if self._ask.streamed:
            self._handoff = model.handoff_begins(tokens)

    def _handed_over(self, seconds: float) -> None:
        self._end_handoff()
        if self._tokens() >= SHORTEST:
            self._ways.model.handed_over(self._tokens(), seconds)
        links, prefill, decode = (
            self._ways.links,
            self._timeline.prefill_engine,
            self._timeline.decode_engine,
        )
        if links is not None and prefill is not None and decode is not None:
            links.handed_over(prefill, decode, self._tokens(), seconds)
        self._first_byte("pd", seconds)

    def leg_failed(self, leg: str, kind: str, seconds: float) -> None:
        """A leg broke."""
        self._end_handoff()
        self._legs_s += seconds
        # A decode leg without KV that fails says nothing of handoffs.
        if kind in _LOST[leg] and (leg == "prefill" or self._with_kv):
            self._ways.model.handoff_failed(self._legs_s)
            self._lose_probe(self._legs_s)
        self._with_kv = False

    def close(self) -> None:
        """The request has ended."""
        self._end_handoff()
        self._lose_probe(0.0)
        self._timeline.watcher = None

    def _tokens(self) -> float:
        counted, size = self._timeline.prompt_tokens, self._ask.size
        if counted:
            return float(counted)
        return 0.0 if size is None else self._ways.tokens_of(size)

    def _is_sure(self) -> bool:
        size = self._ask.size
        return self._ways.ratio.is_known or (size is not None and size.tokens is not None)

    def _learn_ratio(self) -> None:
        counted, size = self._timeline.prompt_tokens, self._ask.size
        if counted and size is not None and size.tokens is None:
            self._ways.ratio.learn(counted, size.bytes)

    def _first_byte(self, way: str, seconds: float) -> None:
        probe = self._probe
        if probe is not None and probe.way == way:
            self._probe = None
            self._ways.model.probe_took(probe, self._legs_s + seconds)

    def _lose_probe(self, seconds: float) -> None:
        if self._probe is not None:
            self._probe = None
            self._ways.model.probe_lost(seconds)

    def _end_handoff(self) -> None:
        if self._handoff is not None:
            self._ways.model.handoff_ends(self._handoff)
            self._handoff = None
