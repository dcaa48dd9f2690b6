"""The plan: whether P/D pays, the cheapest layout, and why each other is not it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from baton.errors import ModelFitsNowhere
from baton.plan.bounds import Promise
from baton.plan.costs import HandoffCost
from baton.plan.devices import find_hardware
from baton.plan.judge import Plan, engine_kinds, judge, what_would
from baton.plan.layouts import Group, lay_out
from baton.plan.model import shape_from_config
from baton.plan.search import Search
from baton.plan.simulator import Request
from baton.plan.traffic import Traffic, made_up
from tests.unit.plan.shapes import LLAMA_70B, QWEN3_8B

PRICES = {"H100": 4.0, "H200": 5.0, "L4": 0.8, "L40S": 1.9, "A10G": 1.0}


def planned(
    *gpus: str, config: dict[str, Any] | None = None, ttft_s: float = 1.0, tpot_s: float = 0.05,
    handoff: HandoffCost | None = None, max_gpus: int = 32, **traffic: Any,
) -> tuple[Plan, Search]:  # fmt: skip
    shape = shape_from_config(config or QWEN3_8B, "model")
    asked = made_up(**{"prompt_tokens": 2000, "output_tokens": 100, "rate_rps": 1.0,
                       "count": 250, **traffic})  # fmt: skip
    kinds, refused = engine_kinds(shape, [find_hardware(gpu) for gpu in gpus], asked.longest)
    search = Search(asked, Promise(ttft_s, tpot_s), kinds, PRICES, max_gpus, handoff)
    return judge(search, refused, "modelled", []), search


def test_a_model_that_fits_one_gpu_at_low_traffic_gets_dont() -> None:
    """One GPU, and nothing else is worth a second one."""
    plan, _ = planned("H100", rate_rps=0.5)
    assert plan.disaggregate is False
    assert plan.why.startswith("Don't. One GPU is enough")
    assert plan.best is not None
    assert plan.best.layout is not None
    assert plan.best.layout.gpus == 1


def test_p_d_is_chosen_where_it_takes_clearly_less() -> None:
    """Long prompts and a TPOT that steps with prompts in them break."""
    plan, search = planned(
        "H200",
        prompt_tokens=8000,
        output_tokens=200,
        rate_rps=10,
        ttft_s=1.5,
        tpot_s=0.0085,
        count=400,
    )
    together, apart = search.best(disaggregated=False), search.best(disaggregated=True)
    assert apart is not None
    assert apart.layout is not None
    assert together is None or search.cost(apart.layout) < search.cost(together.layout)
    assert plan.disaggregate is True
    assert plan.best is apart


def test_a_handoff_that_never_ends_never_wins() -> None:
    """The same plan with zero bandwidth is without P/D, and fabric is the reason."""
    plan, search = planned(
        "H200", prompt_tokens=8000, output_tokens=200, rate_rps=10, count=400, ttft_s=1.5,
        tpot_s=0.0085, handoff=HandoffCost(0.0, 0.0),
    )  # fmt: skip
    assert plan.disaggregate is False
    assert search.best(disaggregated=True) is None
    assert {t.bound for t in search.tried if t.disaggregated} <= {"fabric", "queueing"}
    assert any(t.bound == "fabric" for t in search.tried if t.disaggregated)


def test_every_layout_that_keeps_the_promise_does_so_in_its_own_figures() -> None:
    """And each other one names its bound and a reason."""
    plan, _ = planned("H100", "L4", rate_rps=8, ttft_s=0.3, tpot_s=0.03)
    for tried in plan.layouts:
        assert tried.why
        assert (tried.bound == "none") == tried.meets
        if tried.meets:
            assert tried.ttft_s is not None
            assert tried.ttft_s <= 0.3
            assert tried.tpot_s is not None
            assert tried.tpot_s <= 0.03
    assert {"none", "compute"} <= {tried.bound for tried in plan.layouts}


def test_a_promise_that_nothing_keeps_says_by_how_much_and_what_would() -> None:
    """TTFT of 10 ms for 8,000 tokens."""
    plan, search = planned("A10G", prompt_tokens=8000, ttft_s=0.5)
    assert plan.best is None
    assert plan.disaggregate is False
    assert "it misses TTFT by" in plan.why
    assert {t.bound for t in plan.layouts} == {"compute"}
    shape = shape_from_config(QWEN3_8B, "model")
    assert "TP1 on H100" in what_would(shape, search.traffic, search.promise)
    never = Promise(0.001, 0.001)
    assert "promise less" in what_would(shape, search.traffic, never)


def test_a_step_that_is_too_slow_alone_is_bound_by_bandwidth() -> None:
    """An L4 reads 15 GB of weights in 63 ms at best."""
    plan, _ = planned("g6.xlarge", tpot_s=0.03)
    assert {t.bound for t in plan.layouts} == {"bandwidth"}


def test_a_model_that_fits_nowhere_says_why_and_where_it_would() -> None:
    """70B in bfloat16 on one L4."""
    with pytest.raises(ModelFitsNowhere) as caught:
        planned("g6.xlarge", config=LLAMA_70B)
    assert "weights take 131.4 GiB" in caught.value.fact
    assert "H200" in caught.value.cure


def test_engines_without_efa_between_instances_make_no_pair() -> None:
    """g6.xlarge has one GPU and no EFA."""
    plan, _ = planned("g6.xlarge", ttft_s=3.0, tpot_s=0.2)
    assert plan.best is not None
    assert [t.bound for t in plan.layouts if t.disaggregated] == ["fabric"]


def test_too_much_load_for_the_gpus_that_are_allowed_is_said() -> None:
    """Before anything is simulated."""
    plan, search = planned("H100", rate_rps=500, max_gpus=2)
    assert plan.best is None
    assert search.simulations == 0
    assert "--max-gpus is 2" in plan.layouts[0].why


def test_instances_are_bought_whole_and_shared_by_both_roles() -> None:
    """Three prefill and five decode engines fill one p5.48xlarge and meet over its links."""
    shape = shape_from_config(QWEN3_8B, "model")
    (kind, *_), _ = engine_kinds(shape, [find_hardware("p5.48xlarge")], 4000)
    layout = lay_out((Group("prefill", kind, 3), Group("decode", kind, 5)), {})
    assert layout is not None
    assert (layout.short, layout.gpus, layout.gpus_bought) == ("3P5D", 8, 8)
    assert layout.usd_per_hour == 39.33
    assert {node for places in layout.places for node, _ in places} == {0}
    nine = lay_out((Group("prefill", kind, 3), Group("decode", kind, 6)), {"H100": 2.0})
    assert nine is not None
    assert (nine.gpus_bought, nine.usd_per_hour) == (16, 32.0)
    # Its 32 NICs: four for each engine, half of their bandwidth reckoned with.
    assert nine.pools()[0].nic_bytes_per_s == pytest.approx(0.5 * 400e9 / 8)


def test_usd_per_million_tokens_is_the_price_over_all_tokens() -> None:
    """Prompts and answers together, at the rate that was asked for."""
    plan, search = planned("H100", rate_rps=0.5)
    assert plan.best is not None
    traffic: Traffic = search.traffic
    tokens_an_hour = 3600 * traffic.rate_rps * (2000 + 100)
    assert plan.best.usd_per_million_tokens == pytest.approx(4.0 / tokens_an_hour * 1e6)


def test_an_unknown_price_stays_unknown() -> None:
    """And GPUs are compared instead."""
    plan, search = planned("H100", rate_rps=0.5)
    unpriced = replace(search, prices={}, tried=[], simulations=0)
    plan = judge(unpriced, [], "modelled", [])
    assert plan.best is not None
    assert plan.best.usd_per_million_tokens is None
    assert any("--price" in note for note in plan.notes)
    assert math.isfinite(unpriced.cost(plan.best.layout)[0])


def test_of_a_trace_every_request_counts_and_of_made_up_traffic_not_the_first() -> None:
    """A fleet that is empty at first flatters made-up traffic; a short trace would lose much."""
    trace = Traffic((Request(0.0, 30_000, 10), Request(1.0, 10, 10)), "two")
    shape = shape_from_config(QWEN3_8B, "model")
    kinds, _ = engine_kinds(shape, [find_hardware("L40S")], trace.longest)
    plan = judge(Search(trace, Promise(1.0, 0.1), kinds, PRICES), [], "modelled", [])
    assert plan.best is None
    assert made_up(prompt_tokens=1, output_tokens=1, rate_rps=1, count=99).warm_up_s > 0


def test_the_same_question_has_the_same_answer() -> None:
    """To the last figure."""
    first, again = (planned("H100", rate_rps=6)[0].as_dict() for _ in range(2))
    assert first == again
