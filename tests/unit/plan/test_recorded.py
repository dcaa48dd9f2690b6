"""The simulator beside loads that were recorded on real engines, each with its profile.

No load was used for a profile. Whoever changes the simulator, or what a profile comes to, sees here
what real engines say to it; `bench/plan_validate.py --replay FILE` writes the file anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton.observe.percentile import percentile
from baton.plan.calibrate import DRAWS, played
from baton.plan.profile_file import Calibration, Profile
from baton.plan.simulator import Request

RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results"
MAX_SEQS = 64


@pytest.mark.parametrize("name", ["plan_h200.json", "plan_real.json", "plan_real_pages.json"])
def test_predictions_of_recorded_loads_are_those_of_the_file_and_nine_in_ten_are_right(
    name: str,
) -> None:
    """p50 and p90 of TTFT and TPOT: each as written down, and within 15 % of what was measured."""
    figures = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    profile = Profile.model_validate(figures["profile"])
    errors: list[float] = []
    for setup, found in figures["setups"].items():
        for row in found["rows"]:
            requests, pieces = [_request(line) for line in row["first_round"]], []
            for size in row["pieces"]:
                pieces.append(requests[:size])
                del requests[:size]
            for turn, one in enumerate(row["rounds"]):
                there = _with(profile, setup, one["calibration"])
                said = [
                    answer
                    for piece in pieces
                    for answer in played(
                        there, piece, apart=setup == "pd", max_seqs=MAX_SEQS, draws=DRAWS
                    )
                ]
                for cell, value in _cells(said).items():
                    written = row[cell]["predicted_rounds_ms"][turn]
                    assert value == pytest.approx(written, abs=0.011), (row["load"], cell)
            errors += [abs(row[cell]["error_percent"]) for cell in _cells([])]
    assert len(errors) == figures["counted"]["all"]["predictions"]
    assert sum(error <= 15 for error in errors) >= 0.9 * len(errors)


def _with(profile: Profile, setup: str, factors: dict[str, Any]) -> Profile:
    name = "calibration_apart" if setup == "pd" else "calibration"
    return profile.model_copy(update={name: Calibration.model_validate(factors)})


def _request(line: str) -> Request:
    arrival_s, _, prompt, output, *_ = line.split()
    return Request(float(arrival_s), int(prompt), int(output))


def _cells(said: list[Any]) -> dict[str, float]:
    return {
        f"{what}_p{100 * share:.0f}": 1e3 * percentile(
            [getattr(one, f"{what}_s") for one in said] or [0.0], share
        )
        for what in ("ttft", "tpot")
        for share in (0.5, 0.9)
    }  # fmt: skip
