"""Factors make the simulator's requests those that were seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.observe.percentile import percentile
from baton.plan.calibrate import DRAWS, Seen, calibrated, joined, played
from baton.plan.measure_traffic import sample
from baton.plan.profile_file import BesideFound, Calibration, Profile, WakePoint
from tests.unit.plan.test_profile_file import profile

QUIET = sample((128, 4096), 2.0, 40, seed=1)
BUSY = sample((128, 4096), 12.0, 80, seed=2)


def waking(**more: float) -> Profile:
    """An engine that takes 30 ms longer after a pause."""
    return profile(
        wake=(WakePoint(pause_s=0.05, fixed_s=0.03, share=0.0),), calibration=Calibration(**more),
        calibration_apart=Calibration(**more),
    )  # fmt: skip


def seen(real: Profile, *, apart: bool) -> list[list[Seen]]:
    """Quiet and busy traffic on it."""
    return [
        [
            Seen(r.arrival_s, r.prompt_tokens, r.output_tokens, s.ttft_s, s.tpot_s or 0.0)
            for r, s in zip(those, played(real, those, apart=apart), strict=True)
        ]
        for those in (QUIET, BUSY)
    ]


def on_one_machine(**more: float) -> Profile:
    """Two engines that slow each other by half while both are busy."""
    return waking(**more).model_copy(update={"beside": BesideFound(reading=0.5, writing=0.5)})


@pytest.mark.parametrize("apart", [False, True])
def test_factors_of_another_machine_are_found(apart: bool) -> None:
    """Prompts take 1.5 times, steps 1.2 times and waking half as long as was measured."""
    real = waking(first=1.5, step=1.2, wake=0.5)
    found = calibrated(waking(), *seen(real, apart=apart), apart=apart)
    ours, theirs = found.calibration_apart, found.calibration
    if not apart:
        ours, theirs = theirs, ours
    assert (ours.first, ours.step) == pytest.approx((1.5, 1.2), rel=0.03)
    assert ours.wake == pytest.approx(0.5, rel=0.1)
    assert (ours.uneven_first, ours.uneven_step) == pytest.approx((0.0, 0.0), abs=0.02)
    assert ours.answers == len(QUIET) + len(BUSY)
    assert theirs == Calibration()
    assert found.prefill == profile().prefill


def test_what_every_request_takes_more_is_not_taken_for_slower_prompts() -> None:
    """10 ms each: a factor would make the longest prompts wrong."""
    found = calibrated(waking(), *seen(waking(first_s=0.01), apart=False)).calibration
    assert found.first_s == pytest.approx(0.01, rel=0.15)
    assert (found.first, found.step) == pytest.approx((1.0, 1.0), rel=0.03)


def test_long_pauses_have_a_factor_of_their_own() -> None:
    """As long as was measured after short pauses, and twice as long after long ones."""
    points = (WakePoint(pause_s=0.05, fixed_s=0.03, share=0.0),
              WakePoint(pause_s=0.5, fixed_s=0.06, share=0.0))  # fmt: skip
    measured = waking().model_copy(update={"wake": points})
    real = measured.model_copy(update={"calibration": Calibration(wake_long=2.0)})
    found = calibrated(measured, *seen(real, apart=False)).calibration
    assert (found.wake, found.wake_long) == pytest.approx((1.0, 2.0), rel=0.1)


def test_what_engines_of_one_machine_cost_each_other_is_found_in_busy_traffic() -> None:
    """Twice what was measured; with engines of their own machines nothing is looked for."""
    real = on_one_machine(beside_first=2.0)
    found = calibrated(on_one_machine(), *seen(real, apart=True), apart=True).calibration_apart
    assert found.beside_first == pytest.approx(2.0, rel=0.15)
    assert found.first == pytest.approx(1.0, rel=0.05)
    found = calibrated(waking(), *seen(waking(beside_first=2.0), apart=True), apart=True)
    assert found.calibration_apart.beside_first == 1.0


def test_parts_of_traffic_are_one_after_the_other() -> None:
    """Each begins when the last answer of those before has ended."""
    parts = [[Seen(0.5, 10, 11, 0.1, 0.02), Seen(0.6, 10, 2, 0.1, 0.02)],
             [Seen(0.2, 10, 2, 0.1, 0.02)], []]  # fmt: skip
    assert [one.arrival_s for one in joined(parts)] == pytest.approx([0.5, 0.6, 0.8 + 0.2])


def test_an_uneven_machine_is_found_to_be_one() -> None:
    """A fifth and a tenth of deviation, by requests that were as many as a profile sends."""
    found = calibrated(waking(), *seen(waking(uneven_first=0.2, uneven_step=0.1), apart=False))
    assert found.calibration.uneven_first == pytest.approx(0.2, rel=0.5)
    assert found.calibration.uneven_step == pytest.approx(0.1, rel=0.5)
    assert (found.calibration.first, found.calibration.step) == pytest.approx((1.0, 1.0), rel=0.1)


def test_hiccups_count_as_far_as_they_reach_upwards() -> None:
    """One answer in five takes half longer: none of it in the middle, all of it at the 90th."""
    quiet, busy = (
        [replace(one, tpot_s=one.tpot_s * (1.0 if turn % 5 else 1.5))
         for turn, one in enumerate(part)]
        for part in seen(waking(), apart=False)
    )  # fmt: skip
    found = calibrated(waking(), quiet, busy)
    assert found.calibration.step == pytest.approx(1.0, rel=0.02)
    again = played(found, QUIET, apart=False, draws=DRAWS)
    usual = played(waking(), QUIET, apart=False) * DRAWS
    ratios = [(a.tpot_s or 0.0) / (b.tpot_s or 1.0) for a, b in zip(again, usual, strict=True)]
    assert percentile(ratios, 0.9) == pytest.approx(1.5, rel=0.1)


def test_draws_are_one_after_the_other() -> None:
    """The first is what one draw is; the others are others only where an engine is uneven."""
    even, uneven = waking(), waking(uneven_first=0.2, uneven_step=0.2)
    one, three = played(uneven, QUIET, apart=False), played(uneven, QUIET, apart=False, draws=3)
    assert three[: len(QUIET)] == one
    assert three[len(QUIET) : 2 * len(QUIET)] != one
    assert played(even, QUIET, apart=False, draws=2) == played(even, QUIET, apart=False) * 2


def test_an_engine_that_does_something_else_is_not_hidden_behind_a_factor() -> None:
    """First tokens that take next to nothing: the factor stops where it no longer means one."""
    quick = [[Seen(s.arrival_s, s.prompt_tokens, s.output_tokens, 1e-4, s.tpot_s) for s in part]
             for part in seen(waking(), apart=False)]  # fmt: skip
    assert calibrated(waking(), *quick).calibration.first == 0.5


def test_a_profile_without_answers_stays_as_it_is() -> None:
    """Nothing is made up."""
    assert calibrated(profile(), [], []) == profile()
