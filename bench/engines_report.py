"""What bench/engines.py writes down: medians over rounds, their spread, and ratios round by round.

Setups are compared within a round only, since the machine of another round is another machine:
each ratio is taken in its round, and the median of these is reported with the lowest and highest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from engines_stats import Figures, same_beginning
from gateway_stats import Spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from engines_stats import Answer

LOADS = ("c1", "c8")
BASE = "no_pd"
OURS = ("baton", "baton_gateway")
COMPARED = ("requests_per_s", "ttft_ms_p50", "added_ttft_ms", "itl_ms_p99", "tpot_ms_p50")
FIRST_TOKENS = 8
"""An answer that begins otherwise is another answer."""
_DIGITS = 3


@dataclass
class Turn:
    """What one setup did in one round."""

    figures: dict[str, Figures] = field(default_factory=dict)
    """By load: `c1`, `c8`."""
    cpu_ms_per_request: dict[str, dict[str, float]] = field(default_factory=dict)
    """By load, then by part of the setup; `caller` is the load generator."""
    checks: list[str] = field(default_factory=list)
    """Answers to the prompts that every setup is asked in this round."""
    routes: Counter[str] = field(default_factory=Counter)
    """What the answers' headers said."""
    transfers: int | None = None
    """KV transfers that decode counted meanwhile. One for each answer, and one more that is no part
    of them; in a deployment also its first handoff, where the counter came late."""
    asked: int = 0
    """Streamed answers, those to the checks among them."""
    stages: dict[str, Any] = field(default_factory=dict)
    """Where the time of the last window went, from Baton's own timelines."""
    strangers: float = 0.0
    """Cores that went to processes which are none of ours."""
    piece_of_work_ms: float = 0.0
    """How fast the machine was just before."""
    facts: dict[str, Any] = field(default_factory=dict)

    def saw(self, answers: Sequence[Answer]) -> None:
        """Count answers and what they say of their way."""
        self.asked += len(answers)
        self.routes.update(answer.route for answer in answers if answer.route)


Rounds = list[dict[str, Turn]]


def report(rounds: Rounds, failed: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The file's content, but for versions and machine.

    Args:
        rounds: Of each round, the setups that were measured in it.
        failed: Of each setup, why it was not.
    """
    names = list(dict.fromkeys(name for turns in rounds for name in turns))
    return {
        **{name: _of_setup([t[name] for t in rounds if name in t], rounds, name) for name in names},
        "ratios": {
            one: {
                other: found
                for other in names
                if other not in {one, BASE} and (found := _ratios(rounds, one, other))
            }
            for one in OURS
            if one in names
        },
        "answers": _answers(rounds),
        "failed": {name: list(why) for name, why in failed.items() if why},
        "rounds": len(rounds),
    }


def _of_setup(turns: Sequence[Turn], rounds: Rounds, name: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    spread: dict[str, Any] = {}
    for load in LOADS:
        series = {
            figure: [turn.figures[load][figure] for turn in turns]
            for figure in turns[0].figures[load]
        }
        if name != BASE and (
            added := [a for t in rounds if (a := added_ms(t, name, load)) is not None]
        ):
            series["added_ttft_ms"] = added
        spreads = {figure: Spread.of(values) for figure, values in series.items()}
        out[load] = {figure: round(found.median, _DIGITS) for figure, found in spreads.items()}
        spread[load] = {figure: found.rounded(_DIGITS) for figure, found in spreads.items()}
    return {
        **out,
        "spread": spread,
        "cpu_ms_per_request": {
            load: _medians([turn.cpu_ms_per_request[load] for turn in turns]) for load in LOADS
        },
        "pd": _evidence(turns),
        **({"stages_ms_c8": turns[-1].stages} if turns[-1].stages else {}),
        "strangers_cores": [round(turn.strangers, 2) for turn in turns],
        "piece_of_work_ms": [round(turn.piece_of_work_ms, 1) for turn in turns],
        "facts": turns[-1].facts,
    }


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: round(Spread.of([row.get(name, 0.0) for row in rows]).median, 2) for name in names
    }


def _evidence(turns: Sequence[Turn]) -> dict[str, Any]:
    """Whether prefill and decode really were two engines."""
    routes = sum((turn.routes for turn in turns), Counter[str]())
    counted = [turn.transfers for turn in turns if turn.transfers is not None]
    return {
        "answers": sum(turn.asked for turn in turns),
        "routes": dict(routes) or None,
        "kv_transfers": sum(counted) if counted else None,
    }


def added_ms(turns: Mapping[str, Turn], name: str, load: str) -> float | None:
    """What a setup's median TTFT adds to that of no P/D in the same round."""
    if BASE not in turns or name not in turns:
        return None
    figure = "ttft_ms_p50"
    return turns[name].figures[load][figure] - turns[BASE].figures[load][figure]


def _ratios(rounds: Rounds, one: str, other: str) -> dict[str, Any]:
    """`one` to `other`, by load and figure; empty when they were never in one round."""
    out: dict[str, Any] = {}
    for load in LOADS:
        for figure in COMPARED:
            values = [
                ratio
                for turns in rounds
                if one in turns and other in turns
                if (ratio := _ratio(turns, one, other, load, figure)) is not None
            ]
            if values:
                found = Spread.of(values)
                out.setdefault(load, {})[figure] = {
                    "median": round(found.median, _DIGITS),
                    "low": round(found.low, _DIGITS),
                    "high": round(found.high, _DIGITS),
                }
    return out


def _ratio(turns: Mapping[str, Turn], one: str, other: str, load: str, figure: str) -> float | None:
    if figure == "added_ttft_ms":
        ours, theirs = added_ms(turns, one, load), added_ms(turns, other, load)
        # Where the other adds nothing there is nothing to compare with.
        return None if ours is None or theirs is None or theirs <= 0 else ours / theirs
    below = turns[other].figures[load][figure]
    return turns[one].figures[load][figure] / below if below else None


def _answers(rounds: Rounds) -> dict[str, Any]:
    """How the texts compare with those of no P/D, or of the first setup of the round."""
    compared = same = 0
    shortest: int | None = None
    others: dict[str, int] = {}
    for turns in rounds:
        reference = BASE if BASE in turns else next(iter(turns), None)
        if reference is None:
            continue
        for name, turn in turns.items():
            if name == reference:
                continue
            for text, wanted in zip(turn.checks, turns[reference].checks, strict=True):
                compared += 1
                same += text == wanted
                if text != wanted:
                    begins = same_beginning(text, wanted)
                    shortest = begins if shortest is None else min(shortest, begins)
                    if begins < FIRST_TOKENS:
                        others[name] = others.get(name, 0) + 1
    return {
        "compared": compared,
        "identical": same,
        "shortest_common_beginning_of_others": shortest,
        "other_within_first_tokens": others,
    }
