"""Markdown for people, one HTML page with plots. JSON is `as_data` of what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

from baton.bench.compare import SIDES, rows, sentence
from baton.bench.figures import PERCENTILES, spread
from baton.bench.plots import Series, chart, distribution

if TYPE_CHECKING:
    from baton.bench.compare import Comparison
    from baton.bench.figures import Figures, Spread
    from baton.bench.run import Measured
    from baton.bench.sweep import Step

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#1a1a1a}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;
text-align:right}td:first-child,th:first-child{text-align:left}.first{font-size:1.3em}
svg{width:100%;max-width:560px;display:block;margin:1em 0}svg line{stroke:#e4e4e4}
svg polyline{fill:none;stroke-width:2}svg text{font:11px system-ui,sans-serif;fill:#333}
svg .title{font-weight:600;font-size:13px}svg .x{text-anchor:middle}svg .y{text-anchor:end}
"""
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
        parts = [f'<h1>{escape(self.title)}</h1><p class="first">{escape(self.lead)}</p>']
        for name, (head, body) in self.tables:
            cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
            lines = "".join(
                "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
                for row in body
            )
            parts.append(f"<h2>{escape(name)}</h2><table><tr>{cells}</tr>{lines}</table>")
        parts += [plot for plot in self.plots if plot]
        parts.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in self.notes) + "</ul>")
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head><body>"
            + "".join(parts)
            + "</body></html>\n"
        )


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


def run_plots(runs: Sequence[tuple[str, Measured]]) -> list[str]:
    """Distributions of TTFT and ITL."""
    good = [(name, [s for s in m.samples if not s.error]) for name, m in runs]
    ttft = [distribution(name, [s.ttft_s for s in samples]) for name, samples in good]
    itl = [distribution(name, [g for s in samples for g in s.itl_s]) for name, samples in good]
    return [
        chart("TTFT: share of requests below", "ms", "%", ttft, log=True),
        chart("ITL: share of gaps below", "ms", "%", itl, log=True),
    ]


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
    return [chart("Goodput", "offered requests/s", "requests/s", [goodput, offered])]


# -- a comparison ----------------------------------------------------------------------------------


def compare_tables(found: Comparison) -> list[tuple[str, Table]]:
    """The metrics of both sides, and how the baseline was tuned."""
    head = ("median (each round)", "together", "disaggregated", "ratio", "better")
    body = []
    for row in rows(found):
        scale, unit = (1000, "ms") if row.unit == "s" else (1, row.unit)
        sides = []
        for values in (row.together, row.disaggregated):
            each = ", ".join(f"{v * scale:.3g}" for v in values)
            sides.append(f"{median(values) * scale:.3g} ({each})")
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        name = f"{row.name}, {unit}" if unit else row.name
        body.append((name, *sides, ratio, row.better or "rounds overlap"))
    tables: list[tuple[str, Table]] = [("Both sides", (head, body))]
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


def compare_plots(found: Comparison) -> list[str]:
    """The last round's distributions, side by side."""
    return run_plots([(side, found.rounds[side][-1]) for side in SIDES])


def compare_lead(found: Comparison) -> str:
    """The sentence at the top."""
    return sentence(found)
