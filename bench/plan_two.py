"""Two requests, the second one some milliseconds after the first, beside what the simulator says.

A load says that a prediction is wrong, and two requests say where: each overlap of reading, handing
over and writing comes by itself. Two engines are started and profiled, and pairs of requests are
sent to the first alone and to both as a P/D pair, in turn, each round in another order. Nothing is
calibrated and nothing is uneven: medians stand beside one play. What counts is by what factor a
first token is later than that of the same request when the two do not overlap, measured and said:
a machine drifts, and an engine reads lengths faster that it has seen.

    python bench/plan_two.py --json bench/results/plan_two.json
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from output import write
from plan_figures import SAME
from plan_load import hurry, probers
from plan_validate import BUDGET, LENGTHS, LONGEST, MAX_SEQS, engines, model_of, say

from baton.plan.calibrate import Seen, played
from baton.plan.measure import Grid, measure
from baton.plan.measure_traffic import TrafficAsked, send
from baton.plan.probe import SPREAD
from baton.plan.simulator import Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from baton.plan.profile_file import Profile

FIRST, SECONDS = 512, (128, 512, 1000)
"""Tokens of the prompts."""
AFTER_MS = (0, 4, 8, 12, 16, 20, 30, 40)
APART_MS = AFTER_MS[-1]
"""The first one's answer is whole by then."""
ANSWER, WRITING = 2, 96
"""Tokens of an answer, and of one that is being written when the second request comes."""
WRITING_MS = 80
REST_S = 0.1


@dataclass(frozen=True)
class Case:
    """One of them."""

    setup: str
    """`without_pd` or `pd`."""
    first: tuple[int, int]
    """Tokens in and out."""
    second: int
    after_ms: int


def cases() -> Iterator[Case]:
    """Of both setups."""
    for setup in ("without_pd", "pd"):
        for second, after_ms in itertools.product(SECONDS, AFTER_MS):
            yield Case(setup, (FIRST, ANSWER), second, after_ms)
        for second in SECONDS:
            yield Case(setup, (64, WRITING), second, WRITING_MS)


def requests_of(case: Case, chance: random.Random) -> list[Request]:
    """Both, each of about its length: an engine reads lengths faster that it has just seen."""
    first, answer = case.first
    asked = [(0.0, first, answer), (case.after_ms / 1e3, case.second, ANSWER)]
    return [
        Request(at, round(tokens * (1 + SPREAD * chance.uniform(-1, 1))), out)
        for at, tokens, out in asked
    ]


async def rounds_of(urls: Sequence[str], model: str, rounds: int) -> dict[Case, list[list[Seen]]]:
    """Each case once in a round: both answers, with the times that they were asked at."""
    chance = random.Random(5)
    found: dict[Case, list[list[Seen]]] = {case: [] for case in cases()}
    async with probers(urls, model) as both:
        for number in range(rounds):
            order = list(found)
            chance.shuffle(order)
            for case in order:
                await asyncio.sleep(REST_S)
                requests = requests_of(case, chance)
                sent = await send(both if case.setup == "pd" else both[:1], requests)
                found[case].append(Seen.of(requests, sent))
            say(f"round {number + 1} of {rounds}")
    return found


def row(profile: Profile, case: Case, rounds: Sequence[Sequence[Seen]]) -> dict[str, Any]:
    """Medians of both requests' first tokens, measured and said."""
    measured: tuple[list[float], list[float]] = ([], [])
    said: tuple[list[float], list[float]] = ([], [])
    for both in rounds:
        order = sorted(range(2), key=lambda which: both[which].arrival_s)
        trace = [
            Request(both[which].arrival_s, both[which].prompt_tokens, both[which].output_tokens)
            for which in order
        ]
        outcome = played(profile, trace, apart=case.setup == "pd", max_seqs=MAX_SEQS)
        for which, served in zip(order, outcome, strict=True):
            measured[which].append(1e3 * both[which].ttft_s)
            said[which].append(1e3 * served.ttft_s)
    found: dict[str, Any] = {
        "setup": case.setup, "first_tokens": list(case.first), "second_tokens": case.second,
        "after_ms": case.after_ms,
    }  # fmt: skip
    for which, name in enumerate(("first", "second")):
        a, b = statistics.median(measured[which]), statistics.median(said[which])
        found[name] = {"measured_ms": round(a, 2), "said_ms": round(b, 2),
                       "error_percent": round(100 * (b / a - 1), 1)}  # fmt: skip
    return found


def counted(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By what factors first tokens are later for the other request: how many are said nearly so."""
    found = {}
    for setup in ("without_pd", "pd"):
        those = [one for one in rows if one["setup"] == setup]
        apart = {one["second_tokens"]: one for one in those if one["after_ms"] == APART_MS}
        errors = []
        for one in those:
            names = ("first", "second") if one["first_tokens"] == [FIRST, ANSWER] else ("second",)
            for name in names if one["after_ms"] != APART_MS else ():
                usual = apart[one["second_tokens"]][name]
                measured, said = (one[name][key] / usual[key] for key in ("measured_ms", "said_ms"))
                errors.append(abs(100 * (said / measured - 1)))
        found[setup] = {
            "factors": len(errors),
            "within_15_percent": sum(error <= SAME for error in errors),
            "median_error_percent": round(statistics.median(errors), 1),
            "largest_error_percent": round(max(errors), 1),
        }
    return found


def main() -> None:
    """Profile, then pairs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    grid = Grid(lengths=LENGTHS, longest=LONGEST, traffic=TrafficAsked(seconds=0.0))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls, facts = stack.enter_context(engines(folder, hold=True))
        facts |= hurry()
        profile = asyncio.run(
            measure(urls[0], decode_url=urls[1], grid=grid, say=say, max_num_batched_tokens=BUDGET)
        )
        seen = asyncio.run(rounds_of(urls, asyncio.run(model_of(urls[0])), given.rounds))
    rows = [row(profile, case, those) for case, those in seen.items()]
    write(
        {"cores": os.cpu_count(), "rounds": given.rounds, **facts, "counted": counted(rows),
         "rows": rows, "profile": profile.model_dump(mode="json")},
        given.json,
    )  # fmt: skip


if __name__ == "__main__":
    main()
