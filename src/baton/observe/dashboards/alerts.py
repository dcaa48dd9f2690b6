"""When somebody should be called. Each alert has its runbook: the fact, what it means, the cure.

Thresholds are defaults for a start. What depends on promises is taken from `slo` of the deployment
(`baton_slo_seconds`), and stays silent where nothing was promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from baton.observe import definitions as d
from baton.observe import state_definitions as s


@dataclass(frozen=True)
class Alert:
    """One rule.

    Args:
        name: In CamelCase, as Prometheus' users have it.
        severity: `page` wakes somebody, `ticket` waits for the morning.
        expression: PromQL; true means trouble.
        held_s: So long it has to be true.
        summary: One line, with what is wrong.
        fact: What was measured.
        meaning: What callers notice, and why it comes about.
        cure: What to do, first things first.
    """

    name: str
    severity: Literal["page", "ticket"]
    expression: str
    held_s: int
    summary: str
    fact: str
    meaning: str
    cure: str


_REQUESTS = d.REQUESTS.series[0]
_OK = f'{_REQUESTS}{{outcome=~"error|broken"}}'

ALERTS: tuple[Alert, ...] = (
    Alert(
        "BatonGatewayDown",
        "page",
        f"absent({s.BUILD.name})",
        120,
        "No gateway is scraped.",
        "Prometheus has had no sample of any gateway for two minutes.",
        "Either no gateway runs and callers get nothing, or Prometheus cannot reach `/metrics`"
        " (address, TLS, or the key it needs when `auth` is set).",
        "Ask `/health` and `/metrics` of the endpoint by hand, with a key. If they answer, correct"
        " the scrape config; if not, `baton status` and the gateway's log.",
    ),
    Alert(
        "BatonErrors",
        "page",
        f"sum(rate({_OK}[5m])) / sum(rate({_REQUESTS}[5m])) > 0.01",
        300,
        "More than 1 % of requests fail.",
        "Outcomes `error` and `broken` of requests that were let in, over five minutes.",
        "Recovery has run out: no other engine could be asked, or streams broke where they cannot"
        " be resumed.",
        "See by `path` and `reason` which requests; `/baton/requests` shows the last ones with"
        " their `attempts`; `/baton/engines` whose circuit is open; `baton logs --request ID`.",
    ),
    Alert(
        "BatonNoDecode",
        "page",
        f'max({s.ENGINES.name}{{role="decode"}}) == 0',
        60,
        "No decode engine takes requests.",
        "Every gateway sees no decode engine that is ready with its circuit closed.",
        "Every request fails, or goes to the overflow provider when one is configured.",
        "`baton status`; the engines' own lines (`baton logs`); after a failed update, deploy the"
        " last file that worked.",
    ),
    Alert(
        "BatonNoPrefill",
        "ticket",
        f'max({s.ENGINES.name}{{role="prefill"}}) == 0',
        300,
        "No prefill engine takes requests: decode prefills by itself.",
        "Every gateway sees no prefill engine that is ready with its circuit closed.",
        "Answers are right and slower: long prompts stall the streams of others on decode. With"
        " `disaggregate.mode: never` this alert has no meaning; leave it out.",
        "`baton status`, `baton logs`. Until prefill is back, fewer requests at once"
        " (`admission.decode`) keep the gaps between tokens short.",
    ),
    Alert(
        "BatonFallbacks",
        "ticket",
        f"sum by (kind) (rate({d.FALLBACKS.series[0]}[10m]))"
        f" / scalar(sum(rate({_REQUESTS}[10m]))) > 0.05",
        600,
        "More than 5 % of requests leave their planned way ({{ $labels.kind }}).",
        "Fallbacks by kind: the leg, and what went wrong with it.",
        "Callers notice longer times to the first token, and nothing else.",
        "`prefill_timeout`: prefill is too slow for `recovery.prefill_timeout_s`, or there is too"
        " little of it. `decode_…`: the handoff fails; `baton verify` proves or refutes the"
        " transport. `no_prefill_engine`: see BatonNoPrefill.",
    ),
    Alert(
        "BatonStreamsBreak",
        "page",
        f"sum(rate({d.BROKEN_STREAMS.series[0]}[10m])) > 0.01",
        300,
        "Streams end with an error event.",
        "Streams that broke after tokens had been sent and that nobody could go on with.",
        "Callers see half an answer and an error. Engines die in mid-stream, and these requests"
        " cannot be resumed exactly (docs/decisions/0012-streams-go-on.md), or no other decode"
        " engine was there.",
        "Find why engines die (`baton logs`); run at least two decode engines.",
    ),
    Alert(
        "BatonSaturated",
        "ticket",
        f'sum(rate({d.REJECTED.series[0]}{{code="rate_limit_exceeded"}}[5m]))'
        f" + sum(rate({d.OVERFLOW.series[0]}[5m])) > 0.1",
        600,
        "Requests find no room.",
        "Requests that were answered 429 (by a key's own limits as well), or offered to the"
        " overflow provider.",
        "There is more traffic than places, or engines have become slow and places stay taken.",
        "Compare `baton_inflight` with `admission.max_inflight`, and the pools' queues. If engines"
        " are not busy (`baton_pool_kv_usage`), raise the limits; else add engines.",
    ),
    Alert(
        "BatonMissesTargets",
        "ticket",
        f'sum(rate({d.SLO_REQUESTS.series[0]}{{met="no"}}[15m]))'
        f' / sum(rate({d.SLO_REQUESTS.series[0]}{{met=~"yes|no"}}[15m])) > 0.1',
        900,
        "More than 10 % of requests miss a target of `slo`.",
        "Streamed requests against `slo.ttft_s` and `slo.tpot_s`; failures count as missed.",
        "Which target says `baton_slo_misses_total`: `ttft` is prefill's or the handoff's, `tpot`"
        " decode's.",
        "Look at the phases: a long `queue` or `prefill` wants more prefill, a long `handoff` a"
        " look at the transport (`baton verify`), a long TPOT more decode or fewer at once.",
    ),
    Alert(
        "BatonHandoffNotWorthIt",
        "ticket",
        f"min({s.COST_EVEN.name}) == +Inf",
        1800,
        "No prompt is long enough for a handoff to pay.",
        "The cost model of every gateway says that prefill on decode is faster at any length.",
        "The transport is slower than prefill, so `auto` sends everything to decode alone and the"
        " prefill engines stand idle. The usual cause is a fabric that fell back to TCP.",
        "`baton verify` with the fabric that you expect. If the transport is as it should be, this"
        " model and hardware do better without P/D.",
    ),
    Alert(
        "BatonTransportFails",
        "page",
        f'sum(rate({d.RETRIES.series[0]}{{kind="stale_kv"}}[10m])) > 0.05'
        f" or max({s.COST_FAILED.name}) > 0.2",
        300,
        "KV handoffs fail.",
        "A fifth of the last handoffs failed, or KV came behind its lease again and again.",
        "Answers stay right: each is prefilled again, which costs time and prefill's work.",
        "`baton verify`; `vllm:nixl_num_failed_transfers_total` by engine says which side; a peer"
        " that was restarted shows as one engine in all failures.",
    ),
    Alert(
        "BatonKvLeftBehind",
        "ticket",
        f'sum(rate({d.KV_RELEASES.series[0]}{{outcome="lapsing"}}[15m])) > 0.2',
        900,
        "Prefill's KV waits for its lease to end.",
        "Offers that nobody took and that could not be released.",
        "Prefill's KV cache fills with blocks that nobody wants, for as long as a lease lasts"
        " (30 s by default): fewer prompts fit.",
        "Mostly callers who hang up in the middle of prefill. Shorten"
        " `kv_connector_extra_config.kv_lease_duration`, or find out why they leave.",
    ),
    Alert(
        "BatonEngineCircuitOpen",
        "ticket",
        f"max by (engine, role) ({s.CIRCUITS.name}) == 2",
        300,
        "{{ $labels.role }} engine {{ $labels.engine }} is left alone.",
        "Its circuit breaker has been open for five minutes: its probes fail as well.",
        "The others carry its load.",
        "`baton logs` for that engine; restart it if it hangs.",
    ),
    Alert(
        "BatonMixedVersions",
        "ticket",
        f"max({s.GENERATIONS.name}) > 1",
        1800,
        "Engines of different versions have been side by side for half an hour.",
        "Two sets of vLLM, Baton, NIXL and KV compatibility hash; a rollout has two for a while.",
        "KV is handed over only within one set. An engine without a partner in its own is idle"
        " (prefill) or prefills for itself (decode).",
        "Finish the rollout or take it back; `generations` in GET /baton/engines says who is what.",
    ),
    Alert(
        "BatonDirectoryStale",
        "page",
        f"max({s.DIRECTORY_AGE.name}) > 30",
        60,
        "A gateway has not read the directory for 30 s.",
        "It goes on with the last view it had.",
        "Requests still work until engines come and go; then they run into engines that are gone.",
        "Is Ray's head alive, and the directory's actor (`ray list actors`)? Network between them?",
    ),
    Alert(
        "BatonEngineUnseen",
        "ticket",
        f"min by (engine, role, node) ({s.SCRAPE_UP.name}) == 0",
        300,
        "The metrics of {{ $labels.role }} engine {{ $labels.engine }} cannot be read.",
        "`/baton/engines/metrics` has had no page of it for five minutes.",
        "Its panels are empty. If requests to it fail as well, other alerts say so.",
        "An engine that is very busy answers late; one that hangs never.",
    ),
    Alert(
        "BatonKeysStale",
        "ticket",
        f"max({s.KEYS_STALE.name}) == 1",
        300,
        "A changed key file does not hold; the old keys are in use.",
        "The file of `auth.api_keys_file` was changed and refused.",
        "A key that was taken back still opens the endpoint.",
        "The gateway's log says the line; correct the file.",
    ),
    Alert(
        "BatonTransportSlow",
        "page",
        f"min by (prefill, decode) ({s.TRANSPORT_OK.name}) == 0",
        120,
        "A pair hands KV over slower than prefill makes it.",
        "For two minutes a gateway has gone around a prefill-decode pair, because its handoffs take"
        " longer than computing the prompts does.",
        "Where another pair is there, callers notice little and the pools are smaller than they"
        " look; where none is, P/D is a loss. Often a pod came up without its EFA or GPU path and"
        " its transfers fell back to TCP without a word.",
        "`baton verify URL`: it names what the pair's KV travels on, how fast, and the cure."
        " Restart the engine that has no device; until then `disaggregate: {mode: auto}`"
        " keeps prompts where they are quicker.",
    ),
)
