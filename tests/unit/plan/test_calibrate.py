"""Two factors make the simulator's middle that of what was seen."""

from __future__ import annotations

import pytest

from baton.plan.calibrate import Seen, calibrated, played
from baton.plan.profile_file import Calibration
from baton.plan.simulator import Request
from tests.unit.plan.test_profile_file import profile

REQUESTS = [Request(0.4 * n, 300 + 40 * n, 20) for n in range(12)]


def test_factors_of_a_slower_machine_are_found() -> None:
    """Answers of an engine whose prompts take 1.5 times and whose steps take 1.2 times as long."""
    slow = profile().model_copy(update={"calibration": Calibration(first=1.5, step=1.2)})
    seen = [
        Seen(r.arrival_s, r.prompt_tokens, r.output_tokens, s.ttft_s, s.tpot_s or 0.0)
        for r, s in zip(REQUESTS, played(slow, REQUESTS, apart=False), strict=True)
    ]
    found = calibrated(profile(), seen)
    assert found.calibration.first == pytest.approx(1.5, rel=0.01)
    assert found.calibration.step == pytest.approx(1.2, rel=0.01)
    assert found.calibration.answers == 12
    assert found.prefill == profile().prefill


def test_a_profile_without_answers_stays_as_it_is() -> None:
    """Nothing is made up."""
    assert calibrated(profile(), []) == profile()
