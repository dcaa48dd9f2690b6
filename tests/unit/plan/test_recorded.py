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
from baton.plan.calibrate import played
from baton.plan.profile_file import Profile
from baton.plan.simulator import Request

RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results"
MAX_SEQS = 64


@pytest.mark.parametrize("name", ["plan_h200.json"])
def test_predictions_of_recorded_loads_are_those_of_the_file_and_nine_in_ten_are_right(
    name: str,
) -> None:
    """p50 and p90 of TTFT and TPOT: each as written down, and within 15 % of what was measured."""
    figures = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    profile = Profile.model_validate(figures["profile"])
    errors: list[float] = []
    for setup, found in figures["setups"].items():
        for row in found["rows"]:
            requests = [_request(line) for line in row["first_round"]]
            said = played(profile, requests, apart=setup == "pd", max_seqs=MAX_SEQS)
            for cell, value in _cells(said).items():
                assert value == pytest.approx(row[cell]["predicted_ms"], abs=0.011), (row, cell)
                errors.append(abs(value / row[cell]["measured_ms"] - 1))
    assert len(errors) == figures["counted"]["all"]["predictions"]
    assert sum(error <= 0.15 for error in errors) >= 0.9 * len(errors)


def _request(line: str) -> Request:
    arrival_s, _, prompt, output, *_ = line.split()
    return Request(float(arrival_s), int(prompt), int(output))


def _cells(said: list[Any]) -> dict[str, float]:
    return {
        f"{what}_p{100 * share:.0f}": 1e3 * percentile(
            [getattr(one, f"{what}_s") for one in said], share
        )
        for what in ("ttft", "tpot")
        for share in (0.5, 0.9)
    }  # fmt: skip
