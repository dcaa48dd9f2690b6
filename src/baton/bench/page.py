"""The HTML page of a report: one file that loads nothing and suits a light and a dark screen."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.bench.report import Table

# Told apart also by people who see no red or green (Okabe and Ito, "Color Universal Design"); on a
# dark page the dark ones are lighter.
_LIGHT = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_DARK = ("#5bb5ea", "#ff9047", "#35c99d", "#e3a3c6", "#8fd0f5", "#f0c04d")
_KINDS = {
    **dict.fromkeys(("together", "disaggregated", "held", "chosen"), "won"),
    **dict.fromkeys(("rounds overlap", "-"), "none"),
}
_STYLE = """
:root{color-scheme:light dark;--ink:#1c1e21;--soft:#5d6570;--paper:#fff;--line:#e3e6ea;
--axis:#9aa3ad;--band:#f6f8fa;--good:#0b6e4f;LIGHT}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--soft:#9aa4af;--paper:#14171a;
--line:#2b3137;--axis:#5b656f;--band:#1b1f24;--good:#4fd0a5;DARK}}
body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1.2em;
color:var(--ink);background:var(--paper)}
h1{font-size:1.6em;margin-bottom:.2em}h2{font-size:1.15em;margin:2em 0 .4em}
.first{font-size:1.2em;max-width:46em;margin-top:0}.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.25em .9em;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:600;vertical-align:bottom}
td:first-child,th:first-child{text-align:left;padding-left:.3em}
tr:hover td{background:var(--band)}
.rounds{color:var(--soft);font-size:.86em;padding-left:.6em}.none{color:var(--soft)}
.won{color:var(--good);font-weight:600}
.plots{display:flex;flex-wrap:wrap;gap:1.5em;margin:1.5em 0}.plots svg{flex:1 1 26em;max-width:38em}
ul{color:var(--soft);padding-left:1.2em}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}svg .title{font-size:14px;font-weight:600}
svg .title,svg .label{fill:var(--ink)}svg .mid{text-anchor:middle}svg .end{text-anchor:end}
svg polyline{fill:none;stroke-width:2;stroke-linejoin:round}svg line{stroke-width:3}
svg .grid{stroke:var(--line);stroke-width:1}svg .axis{stroke:var(--axis);stroke-width:1}
svg .target{stroke:var(--soft);stroke-width:1.5;stroke-dasharray:5 4}svg .promise{font-size:11px}
@media print{:root{--paper:#fff}tr{break-inside:avoid}.plots svg{break-inside:avoid}}
"""


def page(
    title: str,
    lead: str,
    tables: Sequence[tuple[str, Table]],
    notes: Sequence[str],
    plots: Sequence[str],
) -> str:
    """One page: the sentence, the plots, the tables, the notes."""
    parts = [f'<h1>{escape(title)}</h1><p class="first">{escape(lead)}</p>']
    drawn = [plot for plot in plots if plot]
    if drawn:
        parts.append('<div class="plots">' + "".join(drawn) + "</div>")
    for name, (head, body) in tables:
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        lines = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in body)
        parts.append(
            f'<h2>{escape(name)}</h2><div class="wide"><table><tr>{cells}</tr>{lines}</table></div>'
        )
    if notes:
        parts.append("<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_style()}</style></head><body>"
        + "".join(parts)
        + "</body></html>\n"
    )


def _cell(text: str) -> str:
    """A cell. What stands in brackets behind a figure is less than the figure."""
    figure, bracket, rest = text.partition(" (")
    if bracket and rest.endswith(")") and figure[:1].isdigit():
        return f'<td>{escape(figure)}<span class="rounds">{escape("(" + rest)}</span></td>'
    kind = _KINDS.get(text)
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _style() -> str:
    style = _STYLE
    for name, colours in (("LIGHT", _LIGHT), ("DARK", _DARK)):
        style = style.replace(name, ";".join(f"--c{at}:{c}" for at, c in enumerate(colours)))
    lines = [
        f"svg .c{at}{{stroke:var(--c{at})}}svg circle.c{at}{{fill:var(--c{at})}}"
        for at in range(len(_LIGHT))
    ]
    return style + "".join(lines)
