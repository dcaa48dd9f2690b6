"""The report of bench/gateway.py: what its windows come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway_stats import Spread, Work, cost, differences, ratios

from baton.observe.percentile import percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway_connections import Window

STEP_MS = 5.0
PACE = {"rate": 105.0, "seconds": 2.5, "tokens": 16}
"""105 requests a second, each of 15 steps: 8 are open at a time, by Little's law."""
SHORT = {"rate": 200.0, "seconds": 1.2, "tokens": 1}
LONG = {"rate": 24.0, "seconds": 1.6, "tokens": 256}
BUSY = {"inflight": 384, "seconds": 1.2, "tokens": 16}
FLOOD = {"inflight": 384, "seconds": 1.2, "tokens": 128}
FLOOD_STEP_MS = 2.0
"""192,000 tokens a second are offered then: more than anybody here passes on."""
HELD_STREAMS = 1000
SHARES = {"p50": 0.50, "p99": 0.99}
_MS, _US = 1e6, 1e3


@dataclass
class Turn:
    """What one subject did in one round."""

    windows: dict[str, Window] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    generator_s: dict[str, float] = field(default_factory=dict)
    engine_s: dict[str, float] = field(default_factory=dict)
    parts_s: dict[str, dict[str, float]] = field(default_factory=dict)
    strangers: float = 0.0
    """Cores that other programs took meanwhile."""

    def costs(self, cpu_s: dict[str, float] | None = None) -> tuple[float, float]:
        """CPU microseconds a request and a chunk: the subject's, or somebody else's."""
        of = self.cpu_s if cpu_s is None else cpu_s
        work = {
            name: Work(of[name], self.windows[name].answered, self.windows[name].chunks)
            for name in ("short", "long")
        }
        return cost(work["short"], work["long"])


def figures(turns: dict[str, list[Turn]]) -> dict[str, Any]:
    """The report of one part: medians, spreads, ratios."""
    found: dict[str, Any] = {
        name: {}
        for name in (
            "ttft_ms", "added_ttft_ms", "added_gap_ms", "added_way_us", "cpu_us_per_chunk",
            "cpu_us_per_request", "requests_per_s", "chunks_per_s",
        )
    }  # fmt: skip
    spread: dict[str, Any] = {name: {} for name in found}

    def put(group: str, who: str, rounds: Sequence[float], share: str | None = None) -> None:
        of = Spread.of(rounds)
        if share is None:
            found[group][who], spread[group][who] = round(of.median, 2), of.rounded(2)
        else:
            found[group].setdefault(who, {})[share] = round(of.median, 3)
            spread[group].setdefault(who, {})[share] = of.rounded(3)

    def pace(who: str, kind: str, share: float, unit: float) -> list[float]:
        return [
            percentile(getattr(turn.windows["pace"], kind), share) / unit for turn in turns[who]
        ]

    for who, own in turns.items():
        for share, value in SHARES.items():
            put("ttft_ms", who, pace(who, "ttft_ns", value, _MS), share)
            if who == "direct":
                continue
            for group, kind, unit in (
                ("added_ttft_ms", "ttft_ns", _MS),
                ("added_gap_ms", "gap_ns", _MS),
                ("added_way_us", "way_ns", _US),
            ):
                added = differences(pace(who, kind, value, unit), pace("direct", kind, value, unit))
                put(group, who, added, share)
        busy = [turn.windows["busy"] for turn in own]
        put("requests_per_s", who, [window.answered / window.took_s for window in busy])
        flood = [turn.windows["flood"] for turn in own]
        put("chunks_per_s", who, [window.in_time / window.took_s for window in flood])
        if who != "direct":
            put("cpu_us_per_request", who, [turn.costs()[0] for turn in own])
            put("cpu_us_per_chunk", who, [turn.costs()[1] for turn in own])
    return {**found, "spread": spread}


def compared(turns: dict[str, list[Turn]], of: str, to: str) -> dict[str, Any]:
    """One subject's figures to another one's of the same round: median, lowest, highest."""
    pairs = {
        "cpu_us_per_request": [[turn.costs()[0] for turn in turns[who]] for who in (of, to)],
        "cpu_us_per_chunk": [[turn.costs()[1] for turn in turns[who]] for who in (of, to)],
        "requests_per_s": [
            [turn.windows["busy"].answered / turn.windows["busy"].took_s for turn in turns[who]]
            for who in (of, to)
        ],
    }
    found = {}
    for name, (ours, theirs) in pairs.items():
        spread = Spread.of(ratios(ours, theirs))
        found[name] = [round(spread.median, 2), *spread.rounded(2)]
    return found


def instrument(turns: dict[str, list[Turn]]) -> dict[str, Any]:
    """What generator and engines cost themselves, and how well the plan was kept."""
    found: dict[str, Any] = {}
    for who, all_turns in turns.items():
        late = [x for turn in all_turns for x in turn.windows["pace"].late_ns]
        found[who] = {
            "late_ms": {share: round(percentile(late, v) / _MS, 3) for share, v in SHARES.items()},
            "open_at_a_time": round(
                Spread.of([_open(turn.windows["pace"]) for turn in all_turns]).median, 1
            ),
            "strangers_cores": [round(turn.strangers, 2) for turn in all_turns],
            "core_share": {
                name: {
                    part: round(
                        sum(getattr(turn, f"{part}_s")[name] for turn in all_turns)
                        / sum(turn.took_s[name] for turn in all_turns),
                        3,
                    )
                    for part in ("generator", "engine", "cpu")
                }
                for name in ("pace", "short", "long", "busy", "flood")
            },
        }
        for part in ("generator", "engine"):
            costs = [turn.costs(getattr(turn, f"{part}_s")) for turn in all_turns]
            found[who][f"{part}_cpu_us"] = {
                "per_request": round(Spread.of([c[0] for c in costs]).median, 1),
                "per_chunk": round(Spread.of([c[1] for c in costs]).median, 1),
            }
    return found


def _open(window: Window) -> float:
    """Requests open at a time: arrivals a second by seconds a request."""
    stream_s = (sum(window.ttft_ns) + sum(window.gap_ns)) / 1e9
    return stream_s / PACE["seconds"]


def one_core(turns: dict[str, list[Turn]]) -> dict[str, dict[str, int]]:
    """Chunks a second that one core passes on.

    `by_cost`: a million microseconds through what a chunk costs at the load `long`.
    `at_saturation`: chunks of the load `flood` by the CPU time that they took, with its requests;
    chunks that wait come together then, and share reads and writes.
    """
    found = {}
    for who, own in turns.items():
        if who != "direct":
            flood = [turn.windows["flood"].chunks / turn.cpu_s["flood"] for turn in own]
            found[who] = {
                "by_cost": round(1e6 / Spread.of([turn.costs()[1] for turn in own]).median),
                "at_saturation": round(Spread.of(flood).median),
            }
    return found


def where_the_time_goes(turns: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """CPU of each part of the deployed path, a request and a chunk."""
    found = {}
    for part in turns[0].parts_s["short"]:
        costs = [turn.costs({n: s[part] for n, s in turn.parts_s.items()}) for turn in turns]
        found[part] = {
            "cpu_us_per_request": round(Spread.of([c[0] for c in costs]).median, 1),
            "cpu_us_per_chunk": round(Spread.of([c[1] for c in costs]).median, 2),
        }
    return found


def report(
    turns: dict[str, dict[str, list[Turn]]],
    memory: dict[str, dict[str, float]],
    idle: dict[str, float],
) -> dict[str, Any]:
    """What is written down.

    Args:
        turns: By part (`alone`, `deployed`) and subject.
        memory: MiB, by subject: `before_mib`, and `added_mib` by `HELD_STREAMS` open streams.
        idle: Share of a core that each subject takes when nobody asks.
    """
    alone = turns["alone"]
    found = figures(alone)
    spread = found.pop("spread")
    result: dict[str, Any] = {**found, "rounds": len(alone["direct"])}
    result["one_core_chunks_per_s"] = one_core(alone)
    if "vllm_router" in alone:
        result["baton_to_vllm_router"] = compared(alone, "baton", "vllm_router")
    if "deployed" in turns:
        deployed = turns["deployed"]
        result["deployed"] = {
            **figures(deployed),
            "rounds": len(deployed["direct"]),
            "deployed_to_bare": compared(deployed, "baton_deployed", "baton"),
            "parts": where_the_time_goes(deployed["baton_deployed"]),
        }
    result["memory_mib_per_1000_streams"] = {
        who: round(held["added_mib"] * 1000 / HELD_STREAMS, 1) for who, held in memory.items()
    }
    result["memory"] = memory
    result["idle_core_share"] = {who: round(share, 4) for who, share in idle.items()}
    result["load"] = {"step_ms": STEP_MS, "pace": PACE, "short": SHORT, "long": LONG, "busy": BUSY}
    result["load"]["flood"] = {**FLOOD, "step_ms": FLOOD_STEP_MS}
    result["spread"] = spread
    result["instrument"] = {part: instrument(of) for part, of in turns.items()}
    return result
