"""profile.json: what was measured comes back as costs, and other versions are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton.errors import ModelFitsNowhere, ProfileRefused
from baton.plan.app_yaml import app_yaml
from baton.plan.bounds import Promise
from baton.plan.devices import find_hardware
from baton.plan.fits import ascending, least_squares
from baton.plan.judge import judge, measured_kind
from baton.plan.layouts import Group, lay_out
from baton.plan.model import shape_from_config
from baton.plan.profile_file import (
    BesideFound,
    Calibration,
    DecodePoint,
    EngineFacts,
    HandoffPoint,
    MixedPoint,
    PrefillPoint,
    Profile,
    read_profile,
)
from baton.plan.search import Search
from baton.plan.simulator import EngineLimits
from baton.plan.traffic import made_up
from tests.unit.plan.shapes import QWEN3_8B

if TYPE_CHECKING:
    from pathlib import Path

BYTES = 147_456.0


def profile(**more: Any) -> Profile:
    """An engine that behaves just as the model of it says."""
    prefill = tuple(
        PrefillPoint(tokens=n, batch=b, samples=3, seconds=0.012 + 2e-5 * b * n + 5e-10 * b * n * n)
        for n, b in ((128, 1), (512, 1), (2048, 1), (8192, 1), (512, 4))
    )
    decode = tuple(
        DecodePoint(batch=b, context=n, samples=3, step_s=0.005 + 1e-4 * b + 1e-7 * b * n)
        for b in (1, 4, 16)
        for n in (100, 1000)
    )
    handoff = tuple(
        HandoffPoint(tokens=n, samples=3, seconds=0.02 + n * BYTES / 1e10) for n in (512, 8192)
    )
    whole = {
        "format": 2, "measured_at": "2026-11-30", "versions": {"vllm": "0.29.0"},
        "engine": EngineFacts(
            model="m", kv_bytes_per_token=BYTES, kv_capacity_tokens=10_000,
            max_num_batched_tokens=8192,
        ),
        "prefill": prefill, "decode": decode, "handoff": handoff,
    }  # fmt: skip
    return Profile(**{**whole, **more})


def test_costs_fitted_to_exact_points_give_them_back() -> None:
    """Each point within a thousandth, whatever it measures."""
    for name, measured, fitted in profile().misfits():
        assert fitted == pytest.approx(measured, rel=1e-3), name


def test_what_a_request_takes_beside_its_steps_is_told_apart() -> None:
    """12 ms fixed, of which a step of one sequence is 5.1."""
    costs = profile().step_costs()
    assert costs.request_s == pytest.approx(0.012 - 0.0051, rel=1e-3)
    assert costs.decode_base_s(8) == pytest.approx(0.0058, rel=1e-3)
    assert costs.decode_base_s(32) == pytest.approx(0.0082, rel=1e-3)
    assert costs.kv_capacity_bytes == 10_000 * BYTES
    handoff = profile().handoff_cost()
    assert handoff is not None
    assert handoff.fixed_s == pytest.approx(0.02)
    assert handoff.bytes_per_s == pytest.approx(1e10)


def test_what_holds_the_engine_is_told_apart_from_what_holds_the_request() -> None:
    """Answers lose 4 ms beyond tokens and pairs to each prompt: of 12 ms fixed, 2.9 are left."""
    mixed = tuple(
        MixedPoint(tokens=n, samples=3, seconds=0.004 + 2e-5 * n + 5e-10 * n * n)
        for n in (128, 512)
    )
    costs = profile(mixed=mixed).step_costs()
    assert costs.request_s == pytest.approx(0.012 - 0.0051 - 0.004, rel=1e-3)
    assert costs.base(200, 0) == pytest.approx(0.0051 + 0.004 + 0.004, rel=1e-3)
    assert costs.base(200, 4) - costs.base(0, 4) == pytest.approx(0.004 + 0.004, rel=1e-3)
    assert profile().step_costs().base(200, 0) == pytest.approx(0.0051 + 0.004, rel=1e-3)


def test_noise_between_two_engines_is_no_cost() -> None:
    """A twentieth is, a fifth is not."""
    found = profile(beside=BesideFound(reading=0.05, writing=0.2)).step_costs().beside
    assert (found.reading, found.writing) == (0.0, 0.2)


@pytest.mark.parametrize("noise_s", [0.0, 1e-6])
def test_a_handoff_that_came_out_as_nothing_says_nothing_of_the_others(noise_s: float) -> None:
    """Its relative error is no measure: a difference of two times may well be 0, or nearly."""
    seconds = {64: noise_s, 1024: 0.01, 4096: 0.04}
    handoff = tuple(
        HandoffPoint(tokens=n, samples=3, seconds=s, busy_s=s) for n, s in seconds.items()
    )
    cost = profile(handoff=handoff).handoff_cost()
    assert cost is not None
    for tokens in (1024, 4096):
        size = tokens * BYTES
        assert cost.seconds(size) == pytest.approx(seconds[tokens], rel=0.05)
        assert cost.waits_s(size) == pytest.approx(seconds[tokens], rel=0.05)


def test_a_handoff_that_never_took_any_time_is_free() -> None:
    """Two engines on one fast machine: nothing is left of the difference."""
    handoff = tuple(HandoffPoint(tokens=n, samples=3, seconds=0.0) for n in (64, 1024))
    cost = profile(handoff=handoff).handoff_cost()
    assert cost is not None
    assert (cost.seconds(1024 * BYTES), cost.waits_s(1024 * BYTES)) == (0.0, 0.0)


def test_prompts_alone_take_no_longer_to_launch_than_a_first_token_does() -> None:
    """A step of decode may be slower than all that is fixed in a first token."""
    slow = tuple(
        DecodePoint(batch=b, context=n, samples=3, step_s=0.03 + 1e-7 * b * n)
        for b in (1, 4) for n in (100, 1000)
    )  # fmt: skip
    found = profile(decode=slow)
    said = {name: (real, fitted) for name, real, fitted in found.misfits()}
    real, fitted = said["prefill 1 x 128 tokens"]
    assert fitted == pytest.approx(real, rel=0.01)
    assert found.step_costs().base(200, 1) == pytest.approx(0.03 + 0.004, rel=1e-3)


def test_tokens_are_the_unit_where_bytes_are_not_known() -> None:
    """The same times come out."""
    known = profile()
    unknown = profile(engine=EngineFacts(model="m", max_num_batched_tokens=8192))
    for a, b in zip(known.misfits(), unknown.misfits(), strict=True):
        assert a[2] == pytest.approx(b[2])


def test_a_step_takes_its_launch_however_short_the_prompt_is() -> None:
    """48 ms up to 1,024 tokens, then 26 us a token: no straight line, as on an H200."""
    seconds = {256: 0.048, 1024: 0.0485, 2048: 0.0556, 4096: 0.1066, 8192: 0.2223}
    prefill = tuple(
        PrefillPoint(tokens=n, batch=1, samples=3, seconds=s) for n, s in seconds.items()
    )
    found = profile(prefill=prefill)
    assert {name: fitted for name, _, fitted in found.misfits() if name.startswith("prefill")} == {
        f"prefill 1 x {n} tokens": pytest.approx(s, rel=1e-6) for n, s in seconds.items()
    }
    costs = found.step_costs()
    assert costs.base(10, 0) == costs.base(256, 0)


def test_a_longer_prompt_never_takes_less() -> None:
    """Neighbours that fall, by noise, share their mean."""
    assert ascending([(1, 1.0), (2, 3.0), (4, 2.0), (8, 2.2), (16, 5.0)]) == [
        (1, 1.0), (2, pytest.approx(2.4)), (4, pytest.approx(2.4)), (8, pytest.approx(2.4)),
        (16, 5.0),
    ]  # fmt: skip


def test_what_answers_stand_still_for_is_part_of_what_a_busy_engine_takes_more() -> None:
    """Of 12 ms more, answers lose 5: the other 7 pass while they are written."""
    handoff = tuple(
        HandoffPoint(tokens=n, samples=3, seconds=0.02, busy_s=0.012, holds_s=0.005)
        for n in (512, 8192)
    )
    cost = profile(handoff=handoff).handoff_cost()
    assert cost is not None
    assert cost.held_s(1000 * BYTES) == pytest.approx(0.005, rel=1e-3)
    assert cost.waits_s(1000 * BYTES) == pytest.approx(0.007, rel=1e-3)


def test_a_pair_has_its_own_calibration() -> None:
    """Layouts of one engine and of two are played with what each was measured to take."""
    measured = profile(calibration_apart=Calibration(first=2.0, step=1.5))
    hardware = [find_hardware("H100")]
    shape = shape_from_config(QWEN3_8B, "m")
    traffic = made_up(prompt_tokens=500, output_tokens=100, rate_rps=1.0)
    kind, _ = measured_kind(measured, hardware, shape, traffic)
    assert kind.apart().costs.decode_base_s(1) == pytest.approx(1.5 * kind.costs.decode_base_s(1))
    assert kind.apart().costs.pair_s == pytest.approx(2.0 * kind.costs.pair_s)


def test_coefficients_are_never_negative() -> None:
    """Noise must not make long prompts free."""
    found = least_squares([[1, 1, 1], [1, 2, 3], [1, 4, 9]], [1.0, 1.5, 1.6])
    assert min(found) >= 0


def test_a_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Nothing is lost on the way."""
    path = tmp_path / "profile.json"
    path.write_text(profile().model_dump_json())
    assert read_profile(path) == profile()


def test_a_profile_of_other_versions_is_refused_with_what_differs(tmp_path: Path) -> None:
    """Unless it is asked for; then the plan says so."""
    path = tmp_path / "profile.json"
    path.write_text(profile(versions={"vllm": "0.24.0", "nixl": "1.3.2"}).model_dump_json())
    with pytest.raises(ProfileRefused, match=r"vllm 0\.24\.0 instead of 0\.29\.0") as caught:
        read_profile(path)
    assert "--any-versions" in caught.value.cure
    old = read_profile(path, any_versions=True)
    traffic = made_up(prompt_tokens=100, output_tokens=10, rate_rps=1)
    _, notes = measured_kind(old, [], shape_from_config(QWEN3_8B, "m"), traffic)
    assert any("another version: vllm 0.24.0" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("{", "no profile"), ("{}", "no profile: format"), ("[]", "no profile"),
        ('{"format": 2}', "no profile"),
    ],
)  # fmt: skip
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str, fact: str) -> None:
    """With what is wrong in it."""
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ProfileRefused, match=fact):
        read_profile(path)
    with pytest.raises(ProfileRefused, match="cannot be read"):
        read_profile(tmp_path / "missing.json")


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    """It may mean something else."""
    path = tmp_path / "profile.json"
    path.write_text(profile(format=3).model_dump_json())
    with pytest.raises(ProfileRefused, match="has format 3"):
        read_profile(path)


def test_a_profile_of_one_gpu_does_not_plan_another() -> None:
    """Nor a request that its KV has no room for, nor another model without a word."""
    traffic = made_up(prompt_tokens=100, output_tokens=10, rate_rps=1)
    shape = shape_from_config(QWEN3_8B, "m")
    measured = profile(engine=EngineFacts(model="m", gpu="H200", kv_bytes_per_token=9.0))
    with pytest.raises(ProfileRefused, match="measured on H200"):
        measured_kind(measured, [find_hardware("H100")], shape, traffic)
    kind, notes = measured_kind(measured, [find_hardware("H200")], shape, traffic)
    assert kind.hardware.gpu.name == "H200"
    assert any("is it of this model?" in note for note in notes)
    long = made_up(prompt_tokens=20_000, output_tokens=10, rate_rps=1)
    with pytest.raises(ModelFitsNowhere, match="10,000 tokens of KV"):
        measured_kind(profile(), [], shape, long)


def test_a_profile_that_names_its_gpu_is_planned_on_it() -> None:
    """With its instances, prices and fabric, though nobody named it again."""
    traffic = made_up(prompt_tokens=500, output_tokens=50, rate_rps=1)
    facts = EngineFacts(model="m", gpu="H200", kv_capacity_tokens=10_000)
    shape = shape_from_config(QWEN3_8B, "m")
    kind, notes = measured_kind(profile(engine=facts), [], shape, traffic)
    assert kind.hardware == find_hardware("H200")
    assert "an engine of `m`" in notes[0]


def test_without_a_handoff_and_a_gpu_p_d_is_not_judged() -> None:
    """An unknown fabric is unknown, and not a slow one; and a wide engine has a machine."""
    traffic = made_up(prompt_tokens=500, output_tokens=50, rate_rps=1, count=50)
    facts = EngineFacts(model="m", kv_capacity_tokens=10_000, tensor_parallel_size=16)
    shape = shape_from_config(QWEN3_8B, "m")
    kind, notes = measured_kind(profile(engine=facts, handoff=()), [], shape, traffic)
    assert any("P/D was not planned" in note for note in notes)
    plan = judge(Search(traffic, Promise(5.0, 0.5), [kind]), [], "measured", notes)
    assert plan.best is not None
    assert plan.best.layout is not None
    assert plan.best.layout.gpus == 16
    whys = [tried.why for tried in plan.layouts if tried.bound == "fabric"]
    assert len(whys) == 1
    assert "unknown" in whys[0]
    text = app_yaml(plan.best.layout, shape, Promise(5.0, 0.5), traffic.longest, plan.why)
    assert "accelerator_type" not in text


def test_what_lies_beyond_the_measured_context_is_said() -> None:
    """The engine took 400 tokens; a request has 600."""
    traffic = made_up(prompt_tokens=500, output_tokens=100, rate_rps=1)
    facts = EngineFacts(model="m", max_model_len=400, kv_capacity_tokens=10_000)
    _, notes = measured_kind(profile(engine=facts), [], shape_from_config(QWEN3_8B, "m"), traffic)
    assert any("took 400 tokens" in note for note in notes)


def test_the_context_of_the_file_has_room_on_its_engines() -> None:
    """Rounded up where that fits, and the longest request itself where it does not."""
    shape = shape_from_config(QWEN3_8B, "m")
    traffic = made_up(prompt_tokens=900, output_tokens=200, rate_rps=1, count=50)
    for capacity, context in ((10_000, 2048), (1_200, 1100)):
        facts = EngineFacts(model="m", kv_capacity_tokens=capacity)
        kind, _ = measured_kind(profile(engine=facts), [], shape, traffic)
        layout = lay_out((Group("both", kind, 1),), {})
        assert layout is not None
        text = app_yaml(layout, shape, Promise(5.0, 0.5), traffic.longest, "why")
        assert f"max_model_len: {context}\n" in text


@pytest.mark.parametrize(("ahead", "said"), [(True, False), (False, False), (None, True)])
def test_an_engine_is_planned_as_it_schedules_and_who_does_not_know_is_told(
    ahead: bool | None, said: bool
) -> None:
    """A profile from before it was measured does not say it."""
    traffic = made_up(prompt_tokens=100, output_tokens=10, rate_rps=1, count=5)
    facts = EngineFacts(model="m", async_scheduling=ahead)
    shape = shape_from_config(QWEN3_8B, "m")
    kind, notes = measured_kind(profile(engine=facts), [], shape, traffic)
    assert kind.limits.async_scheduling is bool(ahead)
    assert kind.within(512, 8).limits == EngineLimits(512, 8, bool(ahead))
    assert any("schedules ahead" in note for note in notes) is said
