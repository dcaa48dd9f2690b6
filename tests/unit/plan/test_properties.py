"""What must hold of every plan: asking for more never costs less, more to choose from never more.

Problems are fixed and small; each kind of question is asked of all of them.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from baton.plan.bounds import Promise, alone
from baton.plan.devices import find_all_hardware, find_hardware
from baton.plan.judge import Plan, engine_kinds, judge, modelled_notes, what_would
from baton.plan.layouts import Group, lay_out
from baton.plan.model import shape_from_config
from baton.plan.roofline import can_split, roofline
from baton.plan.search import BUDGETS, MAX_SEQS, PREFILL_BUDGET, Search
from baton.plan.simulator import EngineLimits, Request
from baton.plan.traffic import Traffic, made_up
from tests.unit.plan.shapes import LLAMA_70B, QWEN3_8B, QWEN3_30B_A3B
from tests.unit.plan.test_parameters import PUBLISHED

PRICES = {"H100": 4.0, "H200": 5.0, "L4": 0.8, "L40S": 1.9, "A10G": 1.0, "B200": 8.0}
PROBLEMS: list[dict[str, Any]] = [
    {"gpus": ["H100"], "isl": 2000, "osl": 100, "rate": 3, "ttft": 0.5, "tpot": 0.03},
    {"gpus": ["L40S", "A10G"], "isl": 1000, "osl": 50, "rate": 2, "ttft": 1.0, "tpot": 0.06},
    {"gpus": ["H200"], "isl": 8000, "osl": 100, "rate": 4, "ttft": 1.5, "tpot": 0.009},
    {"gpus": ["H200", "L40S"], "isl": 4000, "osl": 60, "rate": 5, "ttft": 2.0, "tpot": 0.02,
     "config": QWEN3_30B_A3B},
]  # fmt: skip


def search(
    *, gpus: list[str], isl: int, osl: int, rate: float, ttft: float, tpot: float,
    config: dict[str, Any] | None = None, percentile: float = 0.9, max_gpus: int = 16,
    traffic: Traffic | None = None,
) -> tuple[Search, Plan]:  # fmt: skip
    asked = traffic or made_up(
        prompt_tokens=isl, output_tokens=osl, rate_rps=rate, spread=0.3, count=60
    )
    shape = shape_from_config(config or QWEN3_8B, "m")
    kinds, refused = engine_kinds(shape, find_all_hardware(gpus), asked.longest)
    found = Search(asked, Promise(ttft, tpot, percentile), kinds, PRICES, max_gpus)
    return found, judge(found, refused, "modelled", [])


def price(**problem: Any) -> float:
    """Of the cheapest layout, P/D or not; infinite where none does."""
    found, _ = search(**problem)
    good = [found.best(disaggregated=apart) for apart in (False, True)]
    return min((found.order(t)[0] for t in good if t), default=float("inf"))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_asking_for_more_is_never_cheaper(problem: dict[str, Any]) -> None:
    """More traffic, sooner first tokens, faster answers, for more of the callers."""
    base = price(**problem)
    for more in (
        {"rate": 2 * problem["rate"]}, {"ttft": 0.6 * problem["ttft"]},
        {"tpot": 0.8 * problem["tpot"]}, {"percentile": 0.99}, {"isl": 2 * problem["isl"]},
    ):  # fmt: skip
        assert price(**{**problem, **more}) >= base


@pytest.mark.parametrize("problem", PROBLEMS)
def test_more_to_choose_from_is_never_dearer(problem: dict[str, Any]) -> None:
    """Another GPU on the list, or more GPUs that may be taken."""
    base = price(**problem)
    assert price(**{**problem, "gpus": [*problem["gpus"], "B200"]}) <= base
    assert price(**problem, max_gpus=64) <= base


@pytest.mark.parametrize("problem", PROBLEMS[:3])
def test_the_search_finds_what_trying_everything_finds(problem: dict[str, Any]) -> None:
    """All counts, TP sizes and budgets of up to four GPUs, with and without P/D."""
    found, _ = search(**problem, max_gpus=4)
    base = price(**problem, max_gpus=4)
    decoders = found._decoders()
    groups: list[tuple[Group, ...]] = [
        (Group("both", replace(kind, limits=EngineLimits(budget, MAX_SEQS)), count),)
        for kind, budget, count in itertools.product(found.kinds, BUDGETS, range(1, 5))
    ]
    groups += [
        (Group("prefill", replace(p, limits=EngineLimits(PREFILL_BUDGET, MAX_SEQS)), readers),
         Group("decode", d, writers))
        for p, d in itertools.product(found.kinds, decoders)
        for readers, writers in itertools.product(range(1, 4), range(1, 4))
    ]  # fmt: skip
    for one in groups:
        layout = lay_out(one, PRICES, by_price=True)
        if layout is None or layout.gpus > 4 or found.cost(layout)[0] >= base:
            continue
        tried, _ = found._simulated(layout)
        assert not tried.meets, tried.name


def test_what_a_layout_costs_is_reckoned_by_hand() -> None:
    """GPUs that are paid for by their price, over the tokens of an hour."""
    found, _ = search(**PROBLEMS[0])
    for tried in found.tried:
        if tried.layout is None:
            continue
        hourly = sum(b.count * b.instance.gpus * PRICES[b.instance.gpu]
                     for b in tried.layout.bought)  # fmt: skip
        traffic = found.traffic
        tokens = 3600 * traffic.rate_rps * (traffic.mean_prompt + traffic.mean_output)
        assert tried.layout.usd_per_hour == pytest.approx(hourly)
        assert tried.usd_per_million_tokens == pytest.approx(hourly / tokens * 1e6)


def test_dollars_decide_where_all_are_known() -> None:
    """Eight GPUs that cost less than one; without prices fewer GPUs are bought."""
    shape = shape_from_config(QWEN3_8B, "m")
    kinds, _ = engine_kinds(shape, [find_hardware("H100")], 1000)
    group = (Group("both", kinds[0], 1),)
    prices = {"p5.4xlarge": 50.0, "p5.48xlarge": 39.0}
    cheap, small = (lay_out(group, prices, by_price=known) for known in (True, False))
    assert cheap is not None
    assert small is not None
    assert (cheap.bought[0].instance.name, cheap.usd_per_hour) == ("p5.48xlarge", 39.0)
    assert (small.bought[0].instance.name, small.usd_per_hour) == ("p5.4xlarge", 50.0)


def test_roles_get_instances_of_their_own_where_that_costs_less() -> None:
    """Three prefill engines of one GPU and decode on eight: 11 GPUs instead of 16, over EFA."""
    shape = shape_from_config(QWEN3_8B, "m")
    kinds, _ = engine_kinds(shape, [find_hardware("H100")], 1000)
    layout = lay_out((Group("prefill", kinds[0], 3), Group("decode", kinds[3], 1)), {})
    assert layout is not None
    assert layout.gpus_bought == 11
    assert [(b.instance.name, b.count) for b in layout.bought] == [
        ("p5.4xlarge", 3), ("p5.48xlarge", 1),
    ]  # fmt: skip
    prefill, decode = layout.pools()
    assert len(set(prefill.nodes) | set(decode.nodes)) == 4
    assert prefill.nic_bytes_per_s == pytest.approx(0.5 * 100e9 / 8)
    assert decode.nic_bytes_per_s == pytest.approx(0.5 * 3200e9 / 8)


def test_a_burst_need_not_be_served_at_its_own_pace() -> None:
    """Twenty requests within a tenth of a second, and a promise of a minute: one engine."""
    burst = Traffic(tuple(Request(0.005 * n, 2000, 20) for n in range(20)), "burst")
    _, plan = search(**{**PROBLEMS[0], "ttft": 60.0, "tpot": 1.0}, traffic=burst)
    assert plan.best is not None
    assert plan.best.layout is not None
    assert plan.best.layout.gpus == 1
    at_once = Traffic((Request(0.0, 10, 5), Request(1e-300, 10, 5)), "two")
    _, plan = search(**PROBLEMS[0], traffic=at_once)
    assert plan.best is not None


def test_a_lone_request_is_in_time_where_any_is() -> None:
    """Bounds err in the layout's favour: at a low percentile long answers may be slow."""
    mixed = Traffic(
        tuple(Request(float(n), 100 if n % 5 else 100_000, 10) for n in range(50)), "mixed"
    )
    shape = shape_from_config(LLAMA_70B, "m")
    costs = roofline(shape, find_hardware("H200").gpu, 8)
    short, long = (alone(costs, costs, mixed, Promise(9, 9, p), 8192) for p in (0.5, 0.99))
    assert short.ttft_s < long.ttft_s
    assert short.tpot_s == costs.step_s(0, 0.0, 1, costs.kv.of(105))
    assert long.tpot_s == costs.step_s(0, 0.0, 1, costs.kv.of(100_005))


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (QWEN3_8B, [1, 2, 4, 8]),
        (PUBLISHED["falcon-7b"]["config"], [1]),  # 71 heads
        ({**QWEN3_8B, "num_attention_heads": 40, "num_key_value_heads": 10}, [1, 2]),
        ({**QWEN3_8B, "num_key_value_heads": 2}, [1, 2, 4, 8]),
        ({**QWEN3_30B_A3B, "quantization_config": {
            "quant_method": "fp8", "weight_block_size": [128, 128]}}, [1, 2]),  # 6 blocks
        ({**QWEN3_8B, "intermediate_size": 29568, "quantization_config": {
            "quant_method": "gptq", "bits": 4, "group_size": 128}}, [1]),  # 231 groups
        (PUBLISHED["deepseek-v2-lite"]["config"], [1, 2, 4, 8]),
    ],
)  # fmt: skip
def test_only_tp_sizes_that_vllm_takes_are_planned(
    config: dict[str, Any], sizes: list[int]
) -> None:
    """It divides heads, KV heads (or is divided by them), and blocks of quantised weights."""
    shape = shape_from_config(config, "m")
    assert [tp for tp in (1, 2, 4, 8) if can_split(shape, tp)] == sizes
    said = [note for note in modelled_notes([], shape) if "is not planned" in note]
    assert len(said) == (1 if len(sizes) < 4 else 0)


def test_a_large_model_on_eight_h100_stays_below_the_published_peaks() -> None:
    """Llama 3 70B: no faster than bandwidth and FLOP/s allow, and not far below."""
    shape = shape_from_config(LLAMA_70B, "m")
    costs = roofline(shape, find_hardware("H100").gpu, 8)
    # 141 GB over eight times 3.35 TB/s are 5.3 ms at the peak.
    assert 0.0053 < costs.step_s(0, 0.0, 1, costs.kv.of(1000)) < 0.015
    # 2 x 70.6e9 FLOPs a token over eight times 989e12 are 56,000 tokens/s at the peak.
    assert 15_000 < 8192 / costs.prefill_s(8192) < 56_000


def test_what_would_do_says_how_many_the_load_takes() -> None:
    """More traffic takes more of each; the same GPUs are in time."""
    shape = shape_from_config(QWEN3_8B, "m")
    few, many = (
        what_would(
            shape, made_up(prompt_tokens=2000, output_tokens=100, rate_rps=r), Promise(1, 0.05)
        )
        for r in (1.0, 400.0)
    )
    assert "TP1 on H100 (1 GPU at least for the load)" in few
    assert "TP1 on H100 (" in many
    assert few != many
