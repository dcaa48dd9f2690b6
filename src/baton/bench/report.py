"""Markdown for people, one HTML page with plots. JSON is `as_data` of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from baton.bench.compare import SIDES, rows, sentence
from baton.bench.figures import PERCENTILES, spread
from baton.bench.page import page
from baton.bench.plots import Chart, Series, Target, by_percentile, number

if TYPE_CHECKING:
    from baton.bench.compare import Comparison
    from baton.bench.figures import Figures, Spread
    from baton.bench.generator import Sample
    from baton.bench.run import Measured
    from baton.bench.sweep import Step
    from baton.spec.schema import Slo

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Report:
    """A report: `lead` is the sentence at its top, `data` what `--json` writes."""

    title: str
    lead: str
    tables: Sequence[tuple[str, Table]]
    notes: Sequence[str]
    plots: Sequence[str]
    data: dict[str, Any]

    def markdown(self) -> str:
        """For people."""
        parts = [f"# {self.title}", self.lead]
        for name, (head, body) in self.tables:
            lines = ["| " + " | ".join(head) + " |", "|" + " --- |" + " ---: |" * (len(head) - 1)]
            lines += ["| " + " | ".join(row) + " |" for row in body]
            parts += [f"## {name}", "\n".join(lines)]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """One page that loads nothing."""
        return page(self.title, self.lead, self.tables, self.notes, self.plots)


# -- one run ---------------------------------------------------------------------------------------


def run_lead(measured: Measured) -> str:
    """The sentence at the top of a run."""
    f = measured.figures
    words = f"{f.throughput:.2f} requests/s answered whole"
    if f.goodput is not None:
        words += f", {f.goodput:.2f} within every target ({(f.attainment or 0) * 100:.0f} %)"
    if f.failed:
        words += f"; {f.failed} of {f.requests} failed"
    return words + "."


def latency_table(figures: Figures) -> Table:
    """TTFT, TPOT, ITL and E2E, in milliseconds."""
    head = ("", *(f"p{p}" for p in PERCENTILES), "max", "values")
    named: tuple[tuple[str, Spread | None], ...] = (
        ("TTFT, ms", figures.ttft),
        ("TPOT, ms", figures.tpot),
        ("ITL, ms", figures.itl),
        ("E2E, ms", figures.e2e),
    )
    return head, [_spread_row(name, one) for name, one in named if one is not None]


def _spread_row(name: str, one: Spread) -> Sequence[str]:
    shown = [one.at(p) for p in PERCENTILES] + [one.maximum]
    return (name, *(f"{value * 1000:.1f}" for value in shown), str(one.count))


def run_tables(measured: Measured) -> list[tuple[str, Table]]:
    """All tables of one run."""
    tables = [("Latency", latency_table(measured.figures))]
    tables += [(f"Latency: {k}", latency_table(f)) for k, f in measured.by_kind.items()]
    if phases := measured.served.phases:
        head = ("stage", *(f"p{p}" for p in PERCENTILES), "max", "values")
        spreads = [(stage, spread(seconds)) for stage, seconds in phases.items()]
        body = [_spread_row(f"{stage}, ms", one) for stage, one in spreads if one is not None]
        tables.append(("Where the time went (the gateway's timelines)", (head, body)))
    return tables


def run_notes(measured: Measured) -> list[str]:
    """What else a reader must know of one run."""
    f, served = measured.figures, measured.served
    notes = [
        f"{f.requests} requests in {f.duration_s:.1f} s, and {f.warmup_excluded} in the warm-up",
        f"{f.input_tokens:,} prompt tokens, {f.output_tokens:,} tokens of answers",
    ]
    if served.counts is None:
        notes.append("the endpoint does not tell which way requests went")
    else:
        ways = ", ".join(f"{n:g} {why}" for why, n in sorted(served.counts.by_reason.items()))
        notes.append(f"{served.disaggregated} requests were disaggregated ({ways})")
    notes += [f"{count} failed: {error}" for error, count in f.errors.items()]
    return notes


def run_plots(runs: Sequence[tuple[str, Sequence[Measured]]], slo: Slo | None = None) -> list[str]:
    """TTFT and ITL by percentile, of one or several runs under each name, warm-up left out."""
    counted = [(name, [s for one in of for s in _counted(one)]) for name, of in runs]
    ttft = [by_percentile(name, [s.ttft_s for s in samples]) for name, samples in counted]
    itl = [by_percentile(name, [g for s in samples for g in s.itl_s]) for name, samples in counted]
    promised = None if slo is None else slo.ttft_s
    targets = (
        []
        if promised is None
        else [Target(f"target {number(promised * 1000)} ms", promised * 1000)]
    )
    return [
        Chart(title, across, up, series, "percentile", "log", promises).svg()
        for title, across, up, series, promises in (
            ("Time to first token", "percentile of requests", "TTFT, ms", ttft, targets),
            ("Gaps between tokens", "percentile of gaps", "ITL, ms", itl, []),
        )
    ]


def _counted(measured: Measured) -> Sequence[Sample]:
    """Whole answers behind the warm-up."""
    ordered = sorted(measured.samples, key=lambda sample: sample.start_s)
    return [s for s in ordered[measured.figures.warmup_excluded :] if not s.error]


# -- a sweep ---------------------------------------------------------------------------------------


def sweep_table(steps: Sequence[Step]) -> Table:
    """A row for each rate."""
    head = ("rate, req/s", "goodput, req/s", "within targets", "TTFT p99, ms", "TPOT p99, ms", "")
    body = []
    for step in steps:
        if step.measured is None:
            body.append((f"{step.rate:.3g}", "-", "-", "-", "-", step.problem[:80]))
            continue
        f = step.measured.figures
        body.append((
            f"{step.rate:.3g}",
            f"{f.goodput or 0:.2f}",
            f"{(f.attainment or 0) * 100:.0f} %",
            "-" if f.ttft is None else f"{f.ttft.at(99) * 1000:.1f}",
            "-" if f.tpot is None else f"{f.tpot.at(99) * 1000:.1f}",
            "held" if step.held else "broke",
        ))  # fmt: skip
    return head, body


def sweep_plots(steps: Sequence[Step]) -> list[str]:
    """Goodput over rate."""
    seen = [(step.rate, step.measured.figures) for step in steps if step.measured is not None]
    goodput = Series("goodput", [(rate, f.goodput or 0.0) for rate, f in seen], dots=True)
    offered = Series("offered", [(rate, rate) for rate, _ in seen])
    across, up = "offered load, requests/s", "goodput, requests/s"
    return [Chart("Goodput by load", across, up, [goodput, offered]).svg()]


# -- a comparison ----------------------------------------------------------------------------------


def compare_tables(found: Comparison) -> list[tuple[str, Table]]:
    """The metrics of both sides, of all requests and of each class; how the baseline was tuned."""
    head = ("median (each round)", "together", "disaggregated", "ratio", "better in every round")
    bodies: dict[str, list[Sequence[str]]] = {}
    for row in rows(found):
        kind, _, name = row.name.rpartition(": ")
        scale, unit = (1000, "ms") if row.unit == "s" else (1, row.unit)
        sides = []
        for values in (row.together, row.disaggregated):
            each = ", ".join(number(v * scale) for v in values)
            sides.append(f"{number(median(values) * scale)} ({each})")
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        named = f"{name}, {unit}" if unit else name
        title = f"Requests of the class {kind}" if kind else "Both sides"
        line = (named, *sides, ratio, row.better or "rounds overlap")
        bodies.setdefault(title, []).append(line)
    tables: list[tuple[str, Table]] = [(title, (head, body)) for title, body in bodies.items()]
    if found.tuning:
        tried = [
            (
                "the engine's own" if one.chunk_tokens is None else str(one.chunk_tokens),
                "-" if (f := one.measured.figures).goodput is None else f"{f.goodput:.2f}",
                "-" if f.itl is None else f"{f.itl.at(99) * 1000:.1f}",
                "-" if f.ttft is None else f"{f.ttft.at(50) * 1000:.1f}",
                "chosen" if one.chunk_tokens == found.chosen_chunk else "",
            )
            for one in found.tuning
        ]
        columns = ("prefill chunk, tokens", "goodput, req/s", "ITL p99, ms", "TTFT p50, ms", "")
        tables.append(("How the baseline was tuned", (columns, tried)))
    return tables


def compare_notes(found: Comparison) -> list[str]:
    """What else a reader must know."""
    notes = [f"{key.replace('_', ' ')}: {value}" for key, value in found.facts.items()]
    own = next((t.measured.figures.itl for t in found.tuning if t.chunk_tokens is None), None)
    if own is not None and found.chosen_chunk is not None:
        notes.append(
            f"the baseline has prefill chunks of {found.chosen_chunk} tokens; with the engine's "
            f"own its ITL p99 was {own.at(99) * 1000:.1f} ms and the longest gap "
            f"{own.maximum * 1000:.0f} ms"
        )
    last = found.rounds["disaggregated"][-1]
    notes.append(
        f"{last.served.disaggregated} of {last.figures.requests + last.figures.warmup_excluded} "
        "requests of the last round were disaggregated"
    )
    return notes


def compare_plots(found: Comparison, slo: Slo | None = None) -> list[str]:
    """Both sides, all rounds together."""
    return run_plots([(side, found.rounds[side]) for side in SIDES], slo)


def compare_lead(found: Comparison) -> str:
    """The sentence at the top."""
    return sentence(found)
