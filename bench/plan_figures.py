"""Figures of bench/plan_validate.py: what was measured beside what was predicted."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from baton.observe.percentile import percentile
from baton.plan.simulator import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plan_load import Sent, Speed

AROUND_S = 0.006
"""Nearer than that, two moments are not told apart."""
SAME = 15.0
"""Percent within which a prediction counts as right."""
CELLS = ("ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90")


def figures_of(answers: Sequence[Any]) -> dict[str, float]:
    """p50 and p90 of both times, in milliseconds."""
    return {
        f"{name}_p{100 * share:.0f}": round(
            1e3 * percentile([getattr(one, f"{name}_s") for one in answers], share), 2
        )
        for name in ("ttft", "tpot")
        for share in (0.5, 0.9)
    }


def compared(
    rounds: Sequence[dict[str, float]], said: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """The middle of the rounds, and the middle of the rounds' errors."""
    rows = {}
    for cell in CELLS:
        measured, predicted = [one[cell] for one in rounds], [one[cell] for one in said]
        errors = [100 * (p / m - 1) for p, m in zip(predicted, measured, strict=True)]
        rows[cell] = {
            "measured_ms": round(statistics.median(measured), 2),
            "predicted_ms": round(statistics.median(predicted), 2),
            "error_percent": round(statistics.median(errors), 1),
            "rounds_ms": measured, "predicted_rounds_ms": predicted,
        }  # fmt: skip
    return rows


def beside_answers(pieces: Sequence[Sequence[Request]], sent: Sequence[Sent]) -> dict[str, int]:
    """First tokens that came while another answer was being written, and just when all had ended.

    Two engines that run side by side give the first kind; the second says that one held the other
    up.
    """
    total, rest = {"came_beside_others": 0, "came_when_others_had_ended": 0}, list(sent)
    for piece in pieces:
        for kind, number in _beside(piece, rest[: len(piece)]).items():
            total[kind] += number
        del rest[: len(piece)]
    return total


def _beside(requests: Sequence[Request], sent: Sequence[Sent]) -> dict[str, int]:
    spans = [(r.arrival_s + s.late_s, s) for r, s in zip(requests, sent, strict=True)]
    found = {"came_beside_others": 0, "came_when_others_had_ended": 0}
    for begun, one in spans:
        first = begun + one.ttft_s
        others = [(at + o.times_s[0], at + o.times_s[-1]) for at, o in spans if o is not one]
        if any(a < first - AROUND_S and b > first + AROUND_S / 2 for a, b in others):
            found["came_beside_others"] += 1
        elif any(begun + 2 * AROUND_S < b <= first for _, b in others):
            found["came_when_others_had_ended"] += 1
    return found


def drift(now: Sequence[Speed], then: Speed) -> dict[str, float]:
    """Percent by which first tokens and steps are slower than beside the profile."""
    return {
        name: round(100 * (statistics.mean(getattr(one, name) for one in now)
                           / getattr(then, name) - 1), 1)
        for name in ("first_s", "step_s")
    }  # fmt: skip


def line_of(request: Request, sent: Sent) -> str:
    """When it was to be sent, how late it was, tokens in and out, first and last token: seconds."""
    return (f"{request.arrival_s:.9f} {sent.late_s:.6f} {sent.prompt_tokens} {sent.output_tokens} "
            f"{sent.times_s[0]:.6f} {sent.times_s[-1]:.6f}")  # fmt: skip


def request_of(line: str) -> Request:
    """The request of such a line."""
    arrival_s, _, prompt, output, *_ = line.split()
    return Request(float(arrival_s), int(prompt), int(output))


def pieces_in(row: dict[str, Any]) -> list[list[Request]]:
    """The requests of a load as a file has them."""
    requests, found = [request_of(line) for line in row["first_round"]], []
    for size in row["pieces"]:
        found.append(requests[:size])
        del requests[:size]
    return found


def counted(setups: dict[str, Any]) -> dict[str, Any]:
    """How many predictions are within 15 %, and how many single rounds of the middle of all."""
    rows = [row for setup in setups.values() for row in setup["rows"]]
    found: dict[str, Any] = {}
    for cell in CELLS:
        errors = [abs(row[cell]["error_percent"]) for row in rows]
        repeats = [
            100 * abs(each / row[cell]["measured_ms"] - 1)
            for row in rows
            for each in row[cell]["rounds_ms"]
        ]
        found[cell] = {
            "predictions": len(errors),
            "within_15_percent": sum(error <= SAME for error in errors),
            "median_error_percent": round(statistics.median(errors), 1),
            "largest_error_percent": max(errors),
            "single_rounds": len(repeats),
            "single_rounds_within_15_percent": sum(error <= SAME for error in repeats),
        }
    found["all"] = {
        name: sum(found[cell][name] for cell in CELLS)
        for name in ("predictions", "within_15_percent", "single_rounds",
                     "single_rounds_within_15_percent")
    }  # fmt: skip
    return found


def table(figures: dict[str, Any]) -> str:
    """For the guide: milliseconds measured / predicted (error)."""
    lines = [
        "| | tokens in, out, requests/s | TTFT p50 | TTFT p90 | TPOT p50 | TPOT p90 |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for setup, found in figures["setups"].items():
        for row in found["rows"]:
            cells = [
                f"{cell['measured_ms']:.3g} / {cell['predicted_ms']:.3g} "
                f"({cell['error_percent']:+.0f} %)"
                for cell in (row[name] for name in CELLS)
            ]
            load = row["load"].replace(":", ", ")
            name = "P/D" if setup == "pd" else "no P/D"
            lines.append(f"| {name} | {load} | {' | '.join(cells)} |")
    return "\n".join(lines)
