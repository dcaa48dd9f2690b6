"""`baton profile` against simulated engines, whose times are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from baton.engine.simulated import LatencyProfile, SimulatedEngine
from baton.errors import MeasurementFailed
from baton.plan.measure import Grid, answer_tokens, measure, together_s, wake_line
from baton.plan.measure_mixed import schedules_ahead, third_waits
from baton.plan.measure_traffic import TrafficAsked
from baton.plan.profile_file import MixedPoint

if TYPE_CHECKING:
    from baton.plan.probe import Prober

GRID = Grid(
    lengths=(64, 256),
    decode_batches=(1, 2),
    rounds=1,
    pauses_s=(0.01,),
    warm=3,
    traffic=TrafficAsked(seconds=0.1, answers=(6, 6), rare=4, parts=2),
)


async def test_an_engine_and_a_handoff_are_measured_over_http() -> None:
    """The shape of what comes out; how long it took is a wall clock's business."""
    latency = LatencyProfile(tpot_s=0.001)
    async with (
        SimulatedEngine(
            role="prefill", engine_id="p", latency=latency, max_model_len=512, secret="s"
        ) as prefill,
        SimulatedEngine(
            role="decode", engine_id="d", latency=latency, max_model_len=512, secret="s"
        ) as decode,
    ):
        said: list[str] = []
        found = await measure(
            prefill.url, decode_url=decode.url, secret="s", grid=GRID, say=said.append
        )
    assert [p.tokens for p in found.prefill] == [64, 160, 256, 325, 394, 64]
    assert [(p.batch, p.samples) for p in found.prefill] == [*[(1, 2)] * 5, (4, 2)]
    assert {(p.batch, p.context > 200) for p in found.decode} == {
        (1, False), (1, True), (2, False), (2, True),
    }  # fmt: skip
    assert [p.tokens for p in found.handoff] == [64, 256, 394]
    assert found.versions["vllm"] == "0.29.0"
    assert found.engine.kv_capacity_tokens == 4096 * 16
    assert found.engine.kv_bytes_per_token == pytest.approx(147_456, rel=0.05)
    assert found.differences() == []
    assert [p.pause_s for p in found.wake] == [0.01]
    assert found.beside.samples > 0
    assert [p.tokens for p in found.mixed] == [64, 256, 394]
    assert found.calibration.answers == found.calibration_apart.answers == 2 * (3 + 3 + 2)
    assert len(said) == 23
    found.step_costs()


async def test_an_engine_that_refuses_or_is_not_there_is_an_error_with_its_place() -> None:
    """A wrong secret, and a port that nobody listens on."""
    async with SimulatedEngine(role="prefill", engine_id="p", secret="s") as engine:
        with pytest.raises(MeasurementFailed, match="answers 401"):
            await measure(engine.url, grid=GRID)
    with pytest.raises(MeasurementFailed, match="cannot be reached"):
        await measure(engine.url, grid=GRID)


def test_waking_is_told_apart_into_a_time_and_a_share() -> None:
    """By two lengths: exact where both are there, and never negative."""
    assert wake_line([0.01, 0.03], [0.017, 0.041]) == pytest.approx((0.005, 0.2))
    assert wake_line([0.01, 0.03], [0.015, 0.034]) == pytest.approx((0.0045, 0.0))
    assert wake_line([0.01, 0.03], [0.009, 0.029]) == (0.0, 0.0)


def test_a_step_is_timed_while_all_streams_write() -> None:
    """Prompts that are read one after the other, and a hang that brings five tokens at once."""
    early = [0.0, *(0.1 + 0.3 * n for n in range(3)), *(0.8 + 0.01 * n for n in range(1, 60))]
    late = [0.0, *(0.8 + 0.01 * n for n in range(60))]
    for number in range(30, 35):
        late[number] = late[35]
    assert together_s([early, late]) == pytest.approx(0.01, rel=0.02)
    assert together_s([early, [0.0, 1.38, 1.39]]) is None
    assert answer_tokens(4, 1000, 2048) == 64 + 4 + 2


def test_which_token_waits_for_a_prompt_says_how_steps_are_put_together() -> None:
    """The third with async scheduling, the second without; near gaps and short streams: neither."""
    assert third_waits([0.0, 0.1, 0.105, 0.145, 0.150]) == 1
    assert third_waits([0.0, 0.1, 0.140, 0.145, 0.150]) == -1
    assert third_waits([0.0, 0.1, 0.105, 0.111]) == 0
    assert third_waits([0.0, 0.1, 0.105]) == 0


class Streams:
    """Answers with a stream's times, and counts what it is asked."""

    def __init__(self, *times: float) -> None:
        self.times, self.asked = list(times), 0

    def near(self, tokens: int, _place: float) -> list[int]:
        return [7] * tokens

    def body(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        return {"prompt": prompt, "max_tokens": max_tokens}

    async def token_times(self, _body: dict[str, Any]) -> list[float]:
        self.asked += 1
        return self.times

    async def first_token(self, _prompt: list[int]) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("budget", "times", "told", "word"),
    [
        (2048, (0.0, 0.1, 0.105, 0.145), True, "async scheduling is on"),
        (2048, (0.0, 0.1, 0.140, 0.145), False, "async scheduling is off"),
        (2048, (0.0, 0.1, 0.105, 0.110), None, "no token waits"),
        (70, (0.0, 0.1, 0.105, 0.145), None, "no prompt fits 70 tokens"),
    ],
)
async def test_how_steps_are_put_together_is_told_or_said_to_be_unknown(
    budget: int, times: tuple[float, ...], told: bool | None, word: str
) -> None:
    """Where no prompt fits a step the engine is not even asked."""
    streams, said = Streams(*times), list[str]()
    points = [MixedPoint(tokens=64, seconds=0.001, samples=1)]
    found = await schedules_ahead(cast("Prober", streams), points, budget, 1, said.append)
    assert found is told
    assert word in said[0]
    assert streams.asked == (0 if budget < 100 else 3)


def test_lengths_are_those_that_the_engine_takes() -> None:
    """And nearly the longest of all, where that is much longer."""
    assert Grid().lengths_for(4096) == [64, 256, 1024, 2048, 3548]
    assert Grid().lengths_for(40960)[-1] == 32768
    assert Grid(longest=600).lengths_for(4096) == [64, 256, 471]
    assert Grid().lengths_for(80) == [14]
