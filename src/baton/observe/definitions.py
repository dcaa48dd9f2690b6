"""What is measured, what it is called, and the arithmetic behind it. Nowhere else.

    TTFT     request received → first body byte of a streamed answer to its caller
    ITL      each gap between two pieces of a stream, as engines send them (a piece is a token
             unless the engine or the network joins several)
    TPOT     (whole time - TTFT) / (tokens - 1): streamed answers whose tokens are known
    goodput  requests a second that met every target of `slo`

Names are stable: one that is here keeps its meaning and its labels. Times are seconds, sizes bytes,
shares 0 to 1. Every label's values are bounded, by code or by a limit that its definition names.
This file holds what requests leave behind, `state_definitions` what is so at the moment;
`docs/reference/metrics.md` is made from both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

if TYPE_CHECKING:
    from baton.spec.schema import Slo

Kind = Literal["counter", "gauge", "histogram"]

STAGE_BUCKETS: tuple[float, ...] = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300,
)  # fmt: skip
GAP_BUCKETS: tuple[float, ...] = (
    0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    1, 2, 5, 10, 60,
)  # fmt: skip
MAX_PAIRS = 512
"""Pairs of engines with series of their own; further ones share `other`."""
MAX_ENGINES = 512
"""Engines with series of their own, those in trouble first."""
OTHER = "other"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Args:
        name: As code and Prometheus know it; a counter's series end in `_total`.
        kind: What Prometheus calls it.
        text: What it says, for people.
        labels: Each with what its values are.
        buckets: Of a histogram, in its unit.
    """

    name: str
    kind: Kind
    text: str
    labels: dict[str, str]
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """Names of its series on the page."""
        if self.kind == "counter":
            return (f"{self.name}_total",)
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)

    def counter(self, registry: CollectorRegistry) -> Counter:
        return Counter(self.name, self.text, tuple(self.labels), registry=registry)

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        return Gauge(self.name, self.text, tuple(self.labels), registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        return Histogram(
            self.name, self.text, tuple(self.labels), buckets=self.buckets, registry=registry
        )


def counter(name: str, text: str, **labels: str) -> Metric:
    return Metric(name, "counter", text, labels)


def gauge(name: str, text: str, **labels: str) -> Metric:
    return Metric(name, "gauge", text, labels)


def _seconds(name: str, text: str, **labels: str) -> Metric:
    return Metric(name, "histogram", text, labels, STAGE_BUCKETS)


_ROUTE = "`pd`, `decode_only`, `overflow`, or `none` before one was chosen"
_PAIR = f"`replica_id`; `{OTHER}` beyond {MAX_PAIRS} pairs"
_KEY = "name of the caller's key"

# -- requests and their ways --

REQUESTS = counter(
    "baton_requests",
    "Requests that were let in, by the way they went and why.",
    path="the route, as vLLM spells it",
    route=_ROUTE,
    reason="why that way (eligibility, cost model, `fallback`)",
    outcome="`ok`, `rejected`, `error`, `broken` or `hangup`",
)
FALLBACKS = counter(
    "baton_fallbacks",
    "Times that a request left the planned way, by kind.",
    kind="leg and failure, such as `prefill_timeout`",
)
RETRIES = counter(
    "baton_retries",
    "Legs that were tried again after a failure.",
    leg="`prefill` or `decode`",
    kind="the failure (`baton.errors.FailureKind`)",
)
RESUMES = counter(
    "baton_resumed_streams",
    "Streams that broke and went on from another engine.",
    how="`restart`, `continue`, `replay` or `finish`",
)
BROKEN_STREAMS = counter(
    "baton_broken_streams",
    "Streams that ended with an error event after tokens had been sent.",
)
CHOICES = counter(
    "baton_routing_choices",
    "Engines that were chosen for a leg, by why.",
    leg="`prefill` or `decode`",
    why="`only`, `load`, `prefix`, `home` or `spill` (`baton.gateway.routing.Choice`)",
)
FIRST_TOKENS = counter(
    "baton_first_tokens",
    "Streamed P/D requests by how their first token went.",
    how="`early` from prefill, or `ordinary` through decode",
    reason="why (`baton.gateway.first_token`)",
)
WAYS = counter(
    "baton_ways",
    "Requests on routes that can be disaggregated, by the way chosen for them.",
    way="`pd` or `local`",
    reason="why",
)
HANGUPS = counter("baton_hangups", "Callers that went away.", stage="the stage in which they left")
REJECTED = counter(
    "baton_rejected",
    "Requests answered with an error of the gateway's own.",
    code="the error's code, or its status",
)
OVERFLOW = counter(
    "baton_overflow",
    "Requests that were offered to the overflow provider.",
    reason="`saturated` or `unready`",
    outcome="how it went",
)
KV_RELEASES = counter(
    "baton_kv_releases",
    "KV offers of prefill that no decode took, by how their release went.",
    outcome="`lapsing`: left to its lease",
)
PROMPT_COUNTS = counter(
    "baton_prompt_counts",
    "Prompts whose tokens a limit depended on, by how they were counted.",
    how="by whom",
)
KEY_REQUESTS = counter(
    "baton_key_requests",
    "Requests that were understood, by key.",
    key=_KEY,
    outcome="as in `baton_requests_total`",
)
KEY_REJECTED = counter(
    "baton_key_rejected", "Requests that were not let in, by key.", key=_KEY, code="the error's"
)

# -- time --

STAGES = _seconds(
    "baton_stage_seconds",
    "What each stage of a request took. A stage that did not happen is not counted.",
    stage="`admit`, `queue`, `route`, `prefill`, `handoff`, `first_token`, `decode`,"
    " `local_prefill`, `answer` or `overflow` (docs/reference/timeline.md)",
)
TTFT = _seconds(
    "baton_ttft_seconds",
    "Request received to first body byte sent to the caller, streamed answers.",
    route=_ROUTE,
)
ITL = Metric(
    "baton_itl_seconds",
    "histogram",
    "Gaps between two pieces of a stream, as they come from engines; a break that was healed is"
    " one long gap.",
    {},
    GAP_BUCKETS,
)
TPOT = Metric(
    "baton_tpot_seconds",
    "histogram",
    "Mean time a token behind the first, a value for each stream whose tokens are known.",
    {"route": _ROUTE},
    GAP_BUCKETS,
)
SLO_REQUESTS = counter(
    "baton_slo_requests",
    "Requests that generate, against every target of `slo`. Goodput is the rate of `yes`. Nothing"
    " is counted without a target.",
    met="`yes`, `no` (also errors and broken streams), or `unmeasured`: not streamed, tokens not"
    " known, or the caller left",
)
SLO_MISSES = counter("baton_slo_misses", "Targets that were missed.", slo="`ttft` or `tpot`")
TOKENS = counter(
    "baton_tokens",
    "Tokens of requests that ended, where somebody counted them: engines in usage or token ids.",
    kind="`prompt` or `completion`",
)

# -- KV between engines --

HANDOFFS = counter("baton_handoffs", "Prompts whose KV decode took.", prefill=_PAIR, decode=_PAIR)
HANDOFF_BYTES = counter(
    "baton_handoff_kv_bytes",
    "KV of the prompts that were handed over: tokens times bytes a token. What decode had cached"
    " did not move: vllm:nixl_bytes_transferred counts the wire.",
    prefill=_PAIR,
    decode=_PAIR,
)
HANDOFF_SECONDS = counter(
    "baton_handoff_seconds",
    "Time of streamed handoffs: KV transfer and decode's first step.",
    prefill=_PAIR,
    decode=_PAIR,
)
HANDOFF_TIMED_BYTES = counter(
    "baton_handoff_timed_kv_bytes",
    "`baton_handoff_kv_bytes_total` of streamed handoffs only; divided by the seconds, the least"
    " speed of the transfer.",
    prefill=_PAIR,
    decode=_PAIR,
)

REQUEST_METRICS = (
    REQUESTS, FALLBACKS, RETRIES, RESUMES, BROKEN_STREAMS, CHOICES, FIRST_TOKENS, WAYS, HANGUPS,
    REJECTED, OVERFLOW, KV_RELEASES, PROMPT_COUNTS, KEY_REQUESTS, KEY_REJECTED, STAGES, TTFT, ITL,
    TPOT, SLO_REQUESTS, SLO_MISSES, TOKENS, HANDOFFS, HANDOFF_BYTES, HANDOFF_SECONDS,
    HANDOFF_TIMED_BYTES,
)  # fmt: skip


# -- arithmetic --


def tpot(total_s: float, ttft_s: float, tokens: int) -> float | None:
    """Seconds a token behind the first; None for answers of one token."""
    return (total_s - ttft_s) / (tokens - 1) if tokens > 1 else None


@dataclass(frozen=True)
class Verdict:
    """What a request was against the targets: `met`, and those that it missed."""

    met: Literal["yes", "no", "unmeasured"]
    missed: tuple[str, ...] = ()


def judge(
    slo: Slo, *, outcome: str, ttft_s: float | None, tpot_s: float | None, tokens: int | None
) -> Verdict | None:
    """Hold a request that generates against the targets; None where there are none to hold it to.

    Args:
        slo: The targets.
        outcome: The timeline's. A request that was wrong itself (`rejected` by an engine) must not
            be asked about.
        ttft_s: None when the answer was not streamed.
        tpot_s: None when it is not known.
        tokens: Of the answer; one token has no TPOT to miss.
    """
    if slo.ttft_s is None and slo.tpot_s is None:
        return None
    if outcome == "hangup":
        return Verdict("unmeasured")
    if outcome != "ok":
        return Verdict("no")
    asked = [("ttft", slo.ttft_s, ttft_s)]
    if tokens is None or tokens > 1:
        asked.append(("tpot", slo.tpot_s, tpot_s))
    missed = tuple(
        name
        for name, target, value in asked
        if target is not None and value is not None and value > target
    )
    if missed:
        return Verdict("no", missed)
    if any(target is not None and value is None for _, target, value in asked):
        return Verdict("unmeasured")
    return Verdict("yes")
