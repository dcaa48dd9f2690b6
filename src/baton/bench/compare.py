"""The same traffic, the same number of engines: without and with disaggregation.

The baseline gets a fair chance: as many engines behind the same gateway, which spreads the load,
and the size of prefill chunks that does best for this traffic. Both sides are measured in turn over
several rounds, the order turned round each time, so that what the machine does meanwhile falls on
both. Each round has prompts of its own, the same for both sides: no prefix cache remembers them.

The judgement is made on the share of requests that met every target; where both sides keep the
targets alike, on the gaps between tokens (ITL p99), and what that costs stands beside it. Rounds
decide whether a difference counts: where the sides' rounds overlap, nobody wins. Goodput in
requests a second is shown and not judged: both sides get the same requests, and dividing by the
time of the last answer would count one slow answer twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from baton.bench.run import check_disaggregated
from baton.errors import BenchFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from baton.bench.figures import Figures
    from baton.bench.run import Measured

Side = Literal["together", "disaggregated"]
SIDES: tuple[Side, Side] = ("together", "disaggregated")


@dataclass(frozen=True)
class Tried:
    """One size of prefill chunks, in tokens; None for the engine's own."""

    chunk_tokens: int | None
    measured: Measured


@dataclass
class Comparison:
    """Both sides, round by round."""

    rounds: dict[Side, list[Measured]] = field(default_factory=lambda: {s: [] for s in SIDES})
    tuning: list[Tried] = field(default_factory=list)
    chosen_chunk: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """In the form that `--json` writes."""
        return {
            "sentence": sentence(self),
            **self.facts,
            "baseline_chunk_tokens": self.chosen_chunk,
            "tuning": [
                {"chunk_tokens": tried.chunk_tokens, **tried.measured.as_data()}
                for tried in self.tuning
            ],
            "metrics": [row.as_data() for row in rows(self)],
            "rounds": {side: [one.as_data() for one in self.rounds[side]] for side in SIDES},
        }


async def compare(
    measure: Callable[[Side, int], Awaitable[Measured]],
    *,
    rounds: int,
    tell: Callable[[Side, int, Measured], None] = lambda *_: None,
) -> Comparison:
    """Measure both sides in turn.

    Args:
        measure: Measures one side; the round's number makes its prompts.
        rounds: How often.
        tell: Hears of each.

    Raises:
        BenchFailed: A side could not be measured, or the disaggregated side was not.
    """
    found = Comparison()
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            measured = await measure(side, number)
            if side == "disaggregated":
                check_disaggregated(measured)
            elif measured.served.disaggregated:
                raise BenchFailed("the baseline was disaggregated, so there is nothing to compare")
            found.rounds[side].append(measured)
            tell(side, number, measured)
    return found


def tuned(tried: Sequence[Tried]) -> Tried:
    """The size that the baseline does best with: most requests in the targets, then ITL p99."""
    return max(tried, key=lambda one: (one.measured.figures.attainment or 0.0, -_itl_p99(one)))


def _itl_p99(tried: Tried) -> float:
    itl = tried.measured.figures.itl
    return float("inf") if itl is None else itl.at(99)


# -- what it comes to ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One metric on both sides: the median of the rounds, and their range.

    `better` is the side that is better in every round than the other in any; None where the rounds
    overlap.
    """

    name: str
    unit: str
    more_is_better: bool
    together: tuple[float, ...]
    disaggregated: tuple[float, ...]

    @property
    def better(self) -> Side | None:
        one, two = self.together, self.disaggregated
        if min(one) > max(two):
            return "together" if self.more_is_better else "disaggregated"
        if min(two) > max(one):
            return "disaggregated" if self.more_is_better else "together"
        return None

    @property
    def ratio(self) -> float | None:
        """Disaggregated through together, of the medians."""
        below = median(self.together)
        return median(self.disaggregated) / below if below else None

    def as_data(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "together": list(self.together),
            "disaggregated": list(self.disaggregated),
            "better": self.better,
            "ratio": None if self.ratio is None else round(self.ratio, 4),
        }


def _spread_of(name: str, percent: int) -> Callable[[Figures], float | None]:
    def value(figures: Figures) -> float | None:
        one = getattr(figures, name)
        return None if one is None else float(one.at(percent))

    return value


_METRICS: tuple[tuple[str, str, bool, Callable[[Figures], float | None]], ...] = (
    ("goodput", "req/s", True, lambda f: f.goodput),
    ("SLO attainment", "", True, lambda f: f.attainment),
    ("throughput", "req/s", True, lambda f: f.throughput),
    ("ITL p50", "s", False, _spread_of("itl", 50)),
    ("ITL p99", "s", False, _spread_of("itl", 99)),
    ("ITL longest", "s", False, lambda f: None if f.itl is None else f.itl.maximum),
    ("TPOT p50", "s", False, _spread_of("tpot", 50)),
    ("TPOT p99", "s", False, _spread_of("tpot", 99)),
    ("TTFT p50", "s", False, _spread_of("ttft", 50)),
    ("TTFT p99", "s", False, _spread_of("ttft", 99)),
    ("E2E p50", "s", False, _spread_of("e2e", 50)),
    ("E2E p99", "s", False, _spread_of("e2e", 99)),
)


def rows(found: Comparison) -> list[Row]:
    """Every metric that both sides have in every round; of the classes, too."""
    kinds = sorted(found.rounds["together"][0].by_kind) if found.rounds["together"] else []
    result = []
    for kind in ("", *kinds):
        for name, unit, more, value in _METRICS:
            sides = []
            for side in SIDES:
                of = [m.by_kind[kind] if kind else m.figures for m in found.rounds[side]]
                sides.append([value(one) for one in of])
            if any(number is None for side in sides for number in side):
                continue
            together, disaggregated = (tuple(round(n or 0.0, 6) for n in s) for s in sides)
            title = f"{kind}: {name}" if kind else name
            result.append(Row(title, unit, more, together, disaggregated))
    return result


LEAST_SHARE = 0.01
LEAST_FACTOR = 1.1
"""Smaller differences are no reason to run one thing or the other."""
_VERDICTS = {"disaggregated": "wins", "together": "loses"}


def sentence(found: Comparison) -> str:
    """The one at the top: who wins for this traffic, by how much, and at what cost."""
    by_name = {row.name: row for row in rows(found)}
    share, itl, ttft = (by_name.get(n) for n in ("SLO attainment", "ITL p99", "TTFT p50"))
    if itl is None or ttft is None:
        return "For this traffic nothing can be said: no tokens were seen on one of the sides."
    costs = f"TTFT p50 {_range(ttft)}"
    if share is not None and share.better is not None and _apart(share) >= LEAST_SHARE:
        return (
            f"For this traffic disaggregation {_VERDICTS[share.better]} by "
            f"{_apart(share) * 100:.0f} points: {_range(share)} of the requests are within every "
            f"target (ITL p99 {_range(itl)}, {costs})."
        )
    alike = ""
    if share is not None:
        alike = f"; within every target {_range(share)}, which the rounds do not tell apart"
    if itl.better is not None and _factor(itl) >= LEAST_FACTOR:
        return (
            f"For this traffic disaggregation {_VERDICTS[itl.better]} by a factor of "
            f"{_factor(itl):.1f} in ITL p99: {_range(itl)} ({costs}{alike})."
        )
    return (
        "For this traffic disaggregation neither wins nor loses: the rounds do not tell the sides "
        f"apart (ITL p99 {_range(itl)}, {costs}{alike})."
    )


def _apart(row: Row) -> float:
    return abs(median(row.disaggregated) - median(row.together))


def _factor(row: Row) -> float:
    ratio = row.ratio
    return max(ratio, 1 / ratio) if ratio else float("inf")


def _shown(row: Row, value: float) -> str:
    if row.name == "SLO attainment":
        return f"{value * 100:.0f} %"
    return f"{value * 1000:.1f} ms" if row.unit == "s" else f"{value:.2f} {row.unit}".strip()


def _range(row: Row) -> str:
    one, two = median(row.together), median(row.disaggregated)
    return f"{_shown(row, two)} against {_shown(row, one)}"
