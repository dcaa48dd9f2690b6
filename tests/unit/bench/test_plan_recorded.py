"""The simulator beside loads that were recorded on real engines, each with its profile.

No load was used for a profile. Whoever changes the simulator, or what a profile comes to, sees here
what real engines say to it; `bench/plan_validate.py --replay FILE` writes the file anew.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import plan_validate
import pytest
from plan_figures import CELLS, SAME

RESULTS = Path(__file__).resolve().parents[3] / "bench" / "results"


@pytest.mark.parametrize(
    "name",
    [
        "plan_h200.json",
        "plan_h200_one.json",
        "plan_real.json",
        "plan_real_held.json",
        "plan_real_pages.json",
    ],
)
def test_predictions_of_recorded_loads_are_those_of_the_file_and_nine_in_ten_are_right(
    name: str,
) -> None:
    """p50 and p90 of TTFT and TPOT: each as written down, and within 15 % of what was measured."""
    written = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    today = plan_validate.replayed(copy.deepcopy(written))
    errors = []
    for setup, found in written["setups"].items():
        for row, now in zip(found["rows"], today["setups"][setup]["rows"], strict=True):
            for cell in CELLS:
                said = now[cell]["predicted_rounds_ms"]
                assert said == pytest.approx(row[cell]["predicted_rounds_ms"], abs=0.011), (
                    row["load"], cell,
                )  # fmt: skip
                errors.append(abs(now[cell]["error_percent"]))
    assert len(errors) == written["counted"]["all"]["predictions"]
    assert sum(error <= SAME for error in errors) >= 0.9 * len(errors)
