"""Figures of a run. What TTFT, TPOT and goodput are is defined in `baton.observe.definitions`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.observe.definitions import judge, tpot
from baton.observe.percentile import percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton.bench.generator import Sample
    from baton.spec.schema import Slo

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Spread:
    """Percentiles of something, in seconds; `count` values were seen."""

    count: int
    mean: float
    maximum: float
    percentiles: Mapping[int, float]

    def at(self, percent: int) -> float:
        return self.percentiles[percent]

    def as_data(self) -> dict[str, float | int]:
        data: dict[str, float | int] = {"count": self.count, "mean_s": round(self.mean, 6)}
        data |= {f"p{p}_s": round(value, 6) for p, value in self.percentiles.items()}
        return data | {"max_s": round(self.maximum, 6)}


def spread(values: Sequence[float]) -> Spread | None:
    """None for no values: a percentile of nothing is not 0."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        len(ordered),
        sum(ordered) / len(ordered),
        ordered[-1],
        {percent: percentile(ordered, percent / 100, ordered=True) for percent in PERCENTILES},
    )


@dataclass(frozen=True)
class Figures:
    """What a run came to, warm-up excluded.

    `goodput` and `attainment` (the share of requests that met every target) are None where no
    target was given; a request that failed meets none.
    """

    requests: int
    failed: int
    duration_s: float
    warmup_excluded: int
    input_tokens: int
    output_tokens: int
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None
    met: int | None
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Requests a second that were answered whole."""
        return (self.requests - self.failed) / self.duration_s

    @property
    def goodput(self) -> float | None:
        return None if self.met is None else self.met / self.duration_s

    @property
    def attainment(self) -> float | None:
        return None if self.met is None or not self.requests else self.met / self.requests

    def as_data(self) -> dict[str, Any]:
        """In the form that `--json` writes."""
        spreads = {"ttft": self.ttft, "tpot": self.tpot, "itl": self.itl, "e2e": self.e2e}
        return {
            "requests": self.requests,
            "failed": self.failed,
            "errors": dict(self.errors),
            "duration_s": round(self.duration_s, 3),
            "warmup_excluded": self.warmup_excluded,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "requests_per_s": round(self.throughput, 4),
            "output_tokens_per_s": round(self.output_tokens / self.duration_s, 2),
            "goodput_per_s": None if self.goodput is None else round(self.goodput, 4),
            "slo_attainment": None if self.attainment is None else round(self.attainment, 4),
            **{name: None if s is None else s.as_data() for name, s in spreads.items()},
        }


def figures(samples: Sequence[Sample], slo: Slo, *, warmup_s: float) -> Figures:
    """The figures of those requests that left after the warm-up.

    The time that throughput and goodput are divided by goes from the end of the warm-up to the
    last token of the last request.
    """
    counted = [sample for sample in samples if sample.start_s >= warmup_s]
    good = [sample for sample in counted if not sample.error]
    end = max((sample.start_s + sample.total_s for sample in counted), default=warmup_s)
    tpots = [t for s in good if (t := tpot(s.total_s, s.ttft_s, s.output_tokens)) is not None]
    return Figures(
        requests=len(counted),
        failed=len(counted) - len(good),
        duration_s=max(end - warmup_s, 1e-9),
        warmup_excluded=len(samples) - len(counted),
        input_tokens=sum(sample.input_tokens for sample in good),
        output_tokens=sum(sample.output_tokens for sample in good),
        ttft=spread([sample.ttft_s for sample in good]),
        tpot=spread(tpots),
        itl=spread([gap for sample in good for gap in sample.itl_s]),
        e2e=spread([sample.total_s for sample in good]),
        met=_met(counted, slo),
        errors=Counter(_brief(sample.error) for sample in counted if sample.error),
    )


def _met(counted: Sequence[Sample], slo: Slo) -> int | None:
    verdicts = [
        judge(
            slo,
            outcome="error" if sample.error else "ok",
            ttft_s=sample.ttft_s,
            tpot_s=tpot(sample.total_s, sample.ttft_s, sample.output_tokens),
            tokens=sample.output_tokens,
        )
        for sample in counted
    ]
    if any(verdict is None for verdict in verdicts):
        return None
    return sum(verdict is not None and verdict.met == "yes" for verdict in verdicts)


def _brief(error: str) -> str:
    return (error.strip().splitlines() or [""])[-1][:120]
