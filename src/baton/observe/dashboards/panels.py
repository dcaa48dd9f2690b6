"""What is worth looking at, in rows: first what callers notice, then why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.observe import definitions as d
from baton.observe import state_definitions as s

if TYPE_CHECKING:
    from baton.observe.definitions import Metric


@dataclass(frozen=True)
class Query:
    """One expression and how its series are called (`{{label}}`)."""

    expression: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One chart.

    Args:
        title: What it shows.
        unit: Grafana's name of it.
        queries: Drawn together.
        text: What to read from it.
    """

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str


@dataclass(frozen=True)
class Board:
    """One dashboard, in rows."""

    uid: str
    title: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]


WINDOW = "$__rate_interval"


def _rate(metric: Metric | str, by: str, where: str = "") -> str:
    name = metric if isinstance(metric, str) else metric.series[0]
    inside = f"rate({name}{{{where}}}[{WINDOW}])" if where else f"rate({name}[{WINDOW}])"
    return f"sum by ({by}) ({inside})" if by else f"sum({inside})"


def _quantiles(name: str, by: str = "", where: str = "") -> tuple[Query, ...]:
    labels = f"le, {by}" if by else "le"
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        Query(f"histogram_quantile({q}, {_rate(f'{name}_bucket', labels, where)})", f"{legend}{n}")
        for q, n in ((0.5, "p50"), (0.99, "p99"))
    )


def _panel(title: str, unit: str, text: str, *queries: Query) -> Panel:
    return Panel(title, unit, queries, text)


def _vllm(name: str, title: str, unit: str, text: str) -> Panel:
    return Panel(title, unit, _quantiles(f"vllm:{name}", "role"), text)


_SLO_TTFT = Query(f'max({s.SLO.name}{{slo="ttft"}})', "slo.ttft_s")
_SLO_TPOT = Query(f'max({s.SLO.name}{{slo="tpot"}})', "slo.tpot_s")
_TIMED, _TOOK = d.HANDOFF_TIMED_BYTES.series[0], d.HANDOFF_SECONDS.series[0]

OVERVIEW = Board(
    "baton-overview",
    "Baton: what callers get",
    (
        (
            "Callers",
            (
                _panel(
                    "Requests by outcome", "reqps",
                    "`rejected`, `error` and `broken` are what callers see as failures.",
                    Query(_rate(d.REQUESTS, "outcome"), "{{outcome}}"),
                ),
                _panel(
                    "Goodput", "reqps",
                    "Requests that met every target of `slo`, and those that did not.",
                    Query(_rate(d.SLO_REQUESTS, "met"), "{{met}}"),
                ),
                _panel(
                    "Time to the first token", "s", "By route, against the target.",
                    *_quantiles(d.TTFT.name, "route"), _SLO_TTFT,
                ),
                _panel(
                    "Time a token (TPOT)", "s", "By route, against the target.",
                    *_quantiles(d.TPOT.name, "route"), _SLO_TPOT,
                ),
                _panel(
                    "Gaps between pieces (ITL)", "s",
                    "The p99 is what a reader sees as stutter: long prompts on decode show here.",
                    *_quantiles(d.ITL.name),
                ),
                _panel(
                    "Tokens", "short", "As far as engines say them.",
                    Query(_rate(d.TOKENS, "kind"), "{{kind}}"),
                ),
            ),
        ),
        (
            "Where the time goes",
            (
                _panel(
                    "Phases, mean", "s",
                    "Seconds of each stage a second, by requests: stacked, what a request is made"
                    " of.",
                    Query(
                        f"{_rate(f'{d.STAGES.name}_sum', 'stage')}"
                        f" / on () group_left {_rate(d.REQUESTS, '')}",
                        "{{stage}}",
                    ),
                ),
                _panel(
                    "Phases, p99", "s", "Of requests that have the stage.",
                    Query(
                        "histogram_quantile(0.99,"
                        f" {_rate(f'{d.STAGES.name}_bucket', 'le, stage')})",
                        "{{stage}}",
                    ),
                ),
                _panel(
                    "Inflight and queued", "short", "Of all gateways.",
                    Query(f"sum({s.INFLIGHT.name})", "inflight"),
                    Query(f"sum({s.QUEUED.name})", "queued"),
                    Query(f"sum by (pool) ({s.POOL_INFLIGHT.name})", "{{pool}} inflight"),
                    Query(f"sum by (pool) ({s.POOL_QUEUED.name})", "{{pool}} queued"),
                ),
            ),
        ),
        (
            "Ways and recoveries",
            (
                _panel(
                    "Ways chosen", "reqps", "P/D or decode alone, and why.",
                    Query(_rate(d.WAYS, "way, reason"), "{{way}}: {{reason}}"),
                ),
                _panel(
                    "First tokens", "reqps", "Early from prefill, or through decode and why.",
                    Query(_rate(d.FIRST_TOKENS, "how, reason"), "{{how}}: {{reason}}"),
                ),
                _panel(
                    "Recoveries", "ops", "What callers did not notice, but for the time.",
                    Query(_rate(d.RETRIES, "leg, kind"), "retry {{leg}} {{kind}}"),
                    Query(_rate(d.FALLBACKS, "kind"), "fallback {{kind}}"),
                    Query(_rate(d.RESUMES, "how"), "resume {{how}}"),
                ),
                _panel(
                    "Rejected, overflowed, gone", "ops", "Callers who got less than they asked.",
                    Query(_rate(d.REJECTED, "code"), "rejected {{code}}"),
                    Query(_rate(d.OVERFLOW, "reason, outcome"), "overflow {{reason}} {{outcome}}"),
                    Query(_rate(d.HANGUPS, "stage"), "hung up in {{stage}}"),
                    Query(_rate(d.BROKEN_STREAMS, ""), "broken streams"),
                ),
                _panel(
                    "Engines chosen", "ops", "By load, or because they know the prompt.",
                    Query(_rate(d.CHOICES, "leg, why"), "{{leg}} {{why}}"),
                ),
            ),
        ),
    ),
)  # fmt: skip

ENGINES = Board(
    "baton-engines",
    "Baton: engines and KV transfer",
    (
        (
            "Pools",
            (
                _panel(
                    "Engines by state", "short", "As the directory has them.",
                    Query(f"max by (role, state) ({s.POOL_ENGINES.name})", "{{role}} {{state}}"),
                    Query(f"min by (role) ({s.ENGINES.name})", "{{role}} used"),
                ),
                _panel(
                    "Load", "short", "Requests that engines compute, and that wait in them.",
                    Query(f"max by (role) ({s.POOL_RUNNING.name})", "{{role}} running"),
                    Query(f"max by (role) ({s.POOL_WAITING.name})", "{{role}} waiting"),
                ),
                _panel(
                    "KV in use", "percentunit", "On the fullest engine of each role.",
                    Query(f"max by (role) ({s.POOL_KV.name})", "{{role}}"),
                ),
                _panel(
                    "Circuits", "short", "0 closed, 1 half-open, 2 open.",
                    Query(f"max by (engine, role) ({s.CIRCUITS.name}) > 0", "{{role}} {{engine}}"),
                ),
                _panel(
                    "Directory", "s", "Age of the view that gateways have.",
                    Query(f"max({s.DIRECTORY_AGE.name})", "age"),
                ),
            ),
        ),
        (
            "KV from engine to engine",
            (
                _panel(
                    "Handoff speed by pair, at least", "Bps",
                    "KV of streamed handoffs by their time, decode's first step included.",
                    Query(
                        f"topk(20, {_rate(_TIMED, 'prefill, decode')}"
                        f" / {_rate(_TOOK, 'prefill, decode')})",
                        "{{prefill}} to {{decode}}",
                    ),
                ),
                _panel(
                    "KV handed over", "Bps", "The busiest pairs.",
                    Query(
                        f"topk(20, {_rate(d.HANDOFF_BYTES, 'prefill, decode')})",
                        "{{prefill}} to {{decode}}",
                    ),
                ),
                _panel(
                    "On the wire", "Bps", "What NIXL moved, as decode engines say.",
                    Query(_rate("vllm:nixl_bytes_transferred_sum", "engine"), "{{engine}}"),
                ),
                _panel(
                    "Transfer time", "s", "Of NIXL alone.",
                    *_quantiles("vllm:nixl_xfer_time_seconds"),
                ),
                _panel(
                    "Transfers that failed", "ops", "And offers whose lease ran out unread.",
                    Query(_rate("vllm:nixl_num_failed_transfers_total", "engine"), "{{engine}}"),
                    Query(
                        _rate("vllm:nixl_num_kv_expired_reqs_total", "engine"),
                        "{{engine}} expired",
                    ),
                    Query(_rate(d.KV_RELEASES, "outcome"), "release {{outcome}}"),
                ),
                _panel(
                    "Break-even", "short",
                    "Prompts longer than this go to prefill; none when there is no line.",
                    Query(f"max({s.COST_EVEN.name})", "tokens"),
                ),
            ),
        ),
        (
            "Inside engines (vLLM's own metrics)",
            (
                _panel(
                    "Running and waiting", "short", "By engine.",
                    Query("sum by (role, engine) (vllm:num_requests_running)", "{{engine}}"),
                    Query(
                        "sum by (role, engine) (vllm:num_requests_waiting)", "{{engine}} waiting"
                    ),
                ),
                _panel(
                    "Tokens", "short", "Read and written.",
                    Query(_rate("vllm:prompt_tokens_total", "role"), "{{role}} prompt"),
                    Query(_rate("vllm:generation_tokens_total", "role"), "{{role}} generated"),
                ),
                _panel(
                    "Prefix cache", "percentunit", "Share of prompt tokens that were known.",
                    Query(
                        f"{_rate('vllm:prefix_cache_hits_total', 'role')}"
                        f" / {_rate('vllm:prefix_cache_queries_total', 'role')}",
                        "{{role}}",
                    ),
                ),
                _panel(
                    "Preemptions", "ops", "KV was too small for what ran.",
                    Query(_rate("vllm:num_preemptions_total", "engine"), "{{engine}}"),
                ),
                _vllm(
                    "inter_token_latency_seconds", "Gaps between tokens", "s",
                    "As engines have them: compare with what callers get.",
                ),
                _panel(
                    "Engines that are seen", "short", "1: its metrics are on the common page.",
                    Query(f"min by (role, engine) ({s.SCRAPE_UP.name})", "{{role}} {{engine}}"),
                ),
            ),
        ),
    ),
)  # fmt: skip

BOARDS = (OVERVIEW, ENGINES)
