"""What is so at the moment: the gateway's load, engines, directory, pools, the cost model.

The second half of `definitions`.
"""

from __future__ import annotations

from baton.observe.definitions import MAX_ENGINES, MAX_PAIRS, REQUEST_METRICS, counter, gauge

_ROLE = "`prefill` or `decode`"
_POOL = "`prefill` or `decode`"

# -- this gateway --

BUILD = gauge("baton_build_info", "Always 1.", version="of Baton")
INFLIGHT = gauge("baton_inflight", "Requests that hold a place now.")
QUEUED = gauge("baton_queued", "Requests that wait for a place now.")
POOL_INFLIGHT = gauge(
    "baton_pool_inflight", "Requests that hold a place in a pool now.", pool=_POOL
)
POOL_QUEUED = gauge(
    "baton_pool_queued", "Requests that wait now and need a place in a pool.", pool=_POOL
)
POOL_TOKENS = gauge(
    "baton_pool_prompt_tokens",
    "Prompt tokens in a pool now, where a limit has them counted.",
    pool=_POOL,
)
OVERFLOW_INFLIGHT = gauge(
    "baton_overflow_inflight", "Requests that the overflow provider serves now."
)
KEY_RELOAD_FAILURES = counter(
    "baton_key_reload_failures", "Changed keys that did not hold; the old ones stayed in use."
)
KEYS_STALE = gauge(
    "baton_keys_stale", "1 while the keys in use are older than what their file says."
)
SLO = gauge("baton_slo_seconds", "Targets of `slo`, where set.", slo="`ttft` or `tpot`")
SPANS = counter(
    "baton_spans",
    "Spans of traces, where an OTLP endpoint is configured.",
    outcome="`exported`, `failed`: the collector did not take them, `dropped`: the queue was full",
)

# -- engines and the directory --

ENGINES = gauge("baton_engines", "Engines this gateway would send a request to now.", role=_ROLE)
CIRCUITS = gauge(
    "baton_engine_circuit",
    "Circuit breaker of each engine: 0 closed, 1 half-open, 2 open.",
    engine=f"`replica_id`; at most {MAX_ENGINES}, those not closed first",
    role=_ROLE,
)
GENERATIONS = gauge(
    "baton_engine_generations",
    "Sets of versions (vLLM, Baton, NIXL, KV compatibility) among the engines; KV is handed over"
    " within one only.",
)
UNPAIRED = gauge(
    "baton_unpaired_engines",
    "Engines that no engine of the other role and the same versions stands beside, while versions"
    " are mixed.",
    role=_ROLE,
)
DIRECTORY_AGE = gauge(
    "baton_directory_age_seconds", "Since the directory was last read; -1: never."
)
DIRECTORY_FAILURES = counter(
    "baton_directory_failures",
    "Reads of the directory that failed; the last known view stayed in use.",
)
POOL_ENGINES = gauge(
    "baton_pool_engines",
    "Engines in the directory.",
    role=_ROLE,
    state="`starting`, `ready` or `draining`",
)
POOL_RUNNING = gauge("baton_pool_running_requests", "Requests that engines compute.", role=_ROLE)
POOL_WAITING = gauge("baton_pool_waiting_requests", "Requests that wait in engines.", role=_ROLE)
POOL_PROMPTS = gauge(
    "baton_pool_queued_prompt_tokens",
    "Prompt tokens of open requests, by measured tokens a byte; prefill only.",
    role=_ROLE,
)
POOL_RATE = gauge(
    "baton_pool_prefill_tokens_per_second",
    "Prompt tokens a second of all engines while busy; prefill only.",
    role=_ROLE,
)
POOL_KV = gauge(
    "baton_pool_kv_usage", "Share of KV blocks in use on the fullest engine.", role=_ROLE
)
POOL_TPOT = gauge(
    "baton_pool_tpot_seconds",
    "Recent mean gap between tokens on the slowest engine; decode only.",
    role=_ROLE,
)

# -- the cost model of `disaggregate: auto`; NaN where nothing is measured yet --

COST_PREFILL = gauge(
    "baton_cost_prefill_seconds_per_1000_tokens",
    "Measured seconds until 1,000 prompt tokens are read.",
    where=_ROLE,
)
COST_FIXED = gauge(
    "baton_cost_handoff_fixed_seconds",
    "What a first byte takes longer behind a handoff of no tokens than on decode alone.",
)
COST_TOKENS = gauge("baton_cost_handoff_tokens_per_second", "Measured speed of KV transfers.")
COST_BYTES = gauge(
    "baton_cost_handoff_bytes_per_second",
    "The same in bytes, where engines say what KV a token has.",
)
COST_EVEN = gauge(
    "baton_cost_break_even_tokens",
    "Prompts longer than this are worth a handoff now; +Inf when none is.",
)
COST_FAILED = gauge("baton_cost_handoff_failed_share", "Share of the last handoffs that failed.")
COST_RATIO = gauge("baton_cost_tokens_per_byte", "Prompt tokens that a byte of text makes.")

# -- engines' own metrics, at /baton/engines/metrics --

_ENGINE = "`replica_id`; an engine's own label of that name becomes `exported_engine`"
_NODE = "where it runs, as its lease says"
SCRAPE_UP = gauge(
    "baton_engine_scrape_up",
    "1 when the engine's own metrics are on this page, 0 when not.",
    role=_ROLE,
    engine=_ENGINE,
    node=_NODE,
)
SCRAPE_SECONDS = gauge(
    "baton_engine_scrape_seconds", "What asking took.", role=_ROLE, engine=_ENGINE, node=_NODE
)
SCRAPE_DROPPED = gauge(
    "baton_engine_scrape_dropped_lines",
    "Lines that are no samples, or were too many.",
    role=_ROLE,
    engine=_ENGINE,
    node=_NODE,
)

# -- each pair's transport --

_PAIR_ENGINE = f"`replica_id`; {MAX_PAIRS} pairs at most, those that are avoided first"
TRANSPORT_OK = gauge(
    "baton_transport_ok",
    "1 while a pair hands KV over as fast as prefill makes it, 0 while it is avoided.",
    prefill=_PAIR_ENGINE,
    decode=_PAIR_ENGINE,
)
TRANSPORT_SPEED = gauge(
    "baton_transport_bytes_per_second",
    "KV bytes a second of a pair's handoffs, decode's first step and HTTP included; NaN where"
    " engines do not say what KV a token has, or too little was measured.",
    prefill=_PAIR_ENGINE,
    decode=_PAIR_ENGINE,
)

STATE_METRICS = (
    BUILD, INFLIGHT, QUEUED, POOL_INFLIGHT, POOL_QUEUED, POOL_TOKENS, OVERFLOW_INFLIGHT,
    KEY_RELOAD_FAILURES, KEYS_STALE, SLO, SPANS, ENGINES, CIRCUITS, GENERATIONS, UNPAIRED,
    DIRECTORY_AGE, DIRECTORY_FAILURES, POOL_ENGINES, POOL_RUNNING, POOL_WAITING, POOL_PROMPTS,
    POOL_RATE, POOL_KV, POOL_TPOT, COST_PREFILL, COST_FIXED, COST_TOKENS, COST_BYTES, COST_EVEN,
    COST_FAILED, COST_RATIO, TRANSPORT_OK, TRANSPORT_SPEED,
)  # fmt: skip
FEDERATED_METRICS = (SCRAPE_UP, SCRAPE_SECONDS, SCRAPE_DROPPED)
ALL_METRICS = (*REQUEST_METRICS, *STATE_METRICS, *FEDERATED_METRICS)
