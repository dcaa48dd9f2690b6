"""The policies: how many engines a pool should have."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.serve import scaling
from baton.serve.deployment_options import deployment_options
from baton.serve.scaling import (
    DecodePolicy,
    Pool,
    PrefillPolicy,
    Report,
    decide,
    decode_demand,
    prefill_demand,
)
from baton.spec.schema import BatonBlock

if TYPE_CHECKING:
    from pathlib import Path


def context(reports: list[dict[str, float]], *, running: int = 0, target: int = 0) -> Any:
    """What Ray hands to a policy, as far as ours read it."""
    names = {name for report in reports for name in report}
    return SimpleNamespace(
        running_replicas=list(range(running or len(reports))),
        current_num_replicas=running or len(reports),
        target_num_replicas=target or running or len(reports),
        aggregated_metrics={
            name: {i: report[name] for i, report in enumerate(reports) if name in report}
            for name in names
        },
    )


def prefill(**values: float) -> Report:
    return Report(**{"open_requests": 100, "prefill_tokens_per_s": 1000.0, **values})


def decode(**values: float) -> Report:
    return Report(**{"running": 50, "slots": 1000, **values})


def test_a_queue_that_takes_twice_its_part_of_ttft_wants_two_engines() -> None:
    """4,000 tokens at 1,000 a second, and two of four seconds of TTFT for the queue."""
    assert prefill_demand((prefill(queued_prompt_tokens=4000),), ttft_s=4.0) == pytest.approx(2.0)


def test_a_stricter_ttft_wants_more_engines() -> None:
    """Half the promise, twice the engines."""
    queue = (prefill(queued_prompt_tokens=4000),)
    assert prefill_demand(queue, ttft_s=2.0) == pytest.approx(4.0)


def test_engines_that_are_busy_all_the_time_want_help_before_a_queue_shows() -> None:
    """Three engines at full time are more than three at 80 %."""
    demand = prefill_demand((prefill(busy_share=1.0),) * 3, ttft_s=2.0)
    assert demand == pytest.approx(3.75)


def test_one_long_prompt_does_not_want_two_engines() -> None:
    """No second engine reads it faster."""
    one = prefill(queued_prompt_tokens=50_000, open_requests=1, busy_share=1.0)
    assert prefill_demand((one,), ttft_s=1.0) == 1


def test_a_queue_before_an_engine_of_unknown_speed_is_no_demand() -> None:
    """Unknown is not zero and not a lot: the pool stays as it is."""
    unknown = Report(open_requests=5, queued_prompt_tokens=0)
    assert prefill_demand((unknown,), ttft_s=1.0) is None
    assert decide(Pool(running=2, target=2, reports=(unknown,) * 2), None) == 2


def test_a_new_engine_is_taken_to_be_as_fast_as_the_others() -> None:
    """It has a queue and no rate yet."""
    fresh = Report(open_requests=100, queued_prompt_tokens=2000)
    both = (prefill(queued_prompt_tokens=2000), fresh)
    assert prefill_demand(both, ttft_s=4.0) == pytest.approx(2.0)


def test_decode_is_full_when_its_slots_its_kv_or_its_gaps_are() -> None:
    """Each of the three alone, at 80 %, is one engine's worth."""
    assert decode_demand((decode(running=800),), tpot_s=None) == pytest.approx(1.0)
    assert decode_demand((decode(kv_usage=0.8),), tpot_s=None) == pytest.approx(1.0)
    assert decode_demand((decode(tpot_s=0.04),), tpot_s=0.05) == pytest.approx(1.0)


def test_sequences_that_wait_for_room_count_as_the_kv_that_they_will_want() -> None:
    """As many wait as run in a full cache: twice the engines."""
    full = decode_demand((decode(kv_usage=1.0),), tpot_s=None)
    assert decode_demand((decode(kv_usage=1.0, waiting=50),), tpot_s=None) == pytest.approx(
        2 * full
    )


def test_gaps_are_measured_from_what_a_lone_sequence_needs() -> None:
    """Alone 10 ms, promised 50, now 42: four fifths of what is to be had."""
    one = decode(tpot_s=0.042, tpot_alone_s=0.010)
    assert decode_demand((one,), tpot_s=0.05) == pytest.approx(1.0)


def test_a_promise_that_a_lone_sequence_misses_starts_no_engines() -> None:
    """More engines would not make it true."""
    slow = decode(tpot_s=0.5, tpot_alone_s=0.06)
    assert decode_demand((slow,), tpot_s=0.05) == decode_demand((slow,), tpot_s=None)


def test_gaps_count_for_nothing_without_a_promise() -> None:
    """Then slots and KV decide."""
    assert decode_demand((decode(tpot_s=9.0),), tpot_s=None) == pytest.approx(0.0625)


def test_decode_never_wants_more_engines_than_there_are_sequences() -> None:
    """Two sequences with terrible gaps want two engines at most."""
    assert decode_demand((decode(running=2, tpot_s=9.0),), tpot_s=0.05) == 2


def test_decode_does_not_look_at_prefills_queue() -> None:
    """Nothing that a slow prefill does moves decode, and the other way round."""
    slow_prefill = {
        "baton_queued_prompt_tokens": 1e9, "baton_open_requests": 500.0, "baton_busy_share": 1.0,
        "baton_prefill_tokens_per_s": 10.0, "baton_running": 1.0, "baton_slots": 256.0,
    }  # fmt: skip
    assert DecodePolicy()(context([slow_prefill]))[0] == 1
    full_decode = {
        "baton_running": 256.0, "baton_waiting": 500.0, "baton_kv_usage": 1.0, "baton_slots": 256.0,
        "baton_tpot_s": 3.0,
    }  # fmt: skip
    assert PrefillPolicy()(context([full_decode]))[0] == 1


def test_a_pool_at_most_doubles_in_one_step() -> None:
    """A queue says how much is there, not how much will come."""
    pool = Pool(running=2, target=2, reports=(prefill(),) * 2)
    assert decide(pool, 50.0) == 4


def test_a_pool_does_not_grow_further_while_engines_start() -> None:
    """They will take part of the load; how much is not known yet."""
    pool = Pool(running=2, target=4, reports=(prefill(),) * 2)
    assert decide(pool, 50.0) == 4


def test_a_pool_is_not_made_smaller_while_an_engine_has_not_reported() -> None:
    """It may be busy."""
    pool = Pool(running=3, target=3, reports=(prefill(),) * 2)
    assert decide(pool, 0.5) == 3


def test_an_idle_pool_wants_one_engine() -> None:
    """Never none: nobody could send it a request to wake it."""
    assert decide(Pool(running=3, target=3, reports=(Report(),) * 3), 0.0) == 1


def test_a_rounding_error_starts_no_engine() -> None:
    """Ray rounds up, so 2.0000000001 would be three."""
    assert decide(Pool(running=2, target=2, reports=(prefill(),) * 2), 2.0000000001) == 2


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 20),
    st.one_of(st.none(), st.floats(0, 1e6)),
)
def test_a_decision_is_finite_and_within_a_step(
    running: int, target: int, reported: int, demand: float | None
) -> None:
    """Whatever is reported: not below one unless Ray aims there already, not above twice."""
    pool = Pool(running=running, target=target, reports=(Report(),) * min(reported, running))
    wanted = decide(pool, demand)
    assert min(1, target) <= wanted <= max(2 * running, target, 1)


def test_no_metrics_at_all_leave_the_pool_as_it_is() -> None:
    """Before the first report there is nothing to decide by."""
    empty = SimpleNamespace(
        running_replicas=[1], current_num_replicas=1, target_num_replicas=2,
        aggregated_metrics=None,
    )  # fmt: skip
    assert PrefillPolicy()(empty)[0] == 2
    assert DecodePolicy()(empty)[0] == 2


def test_the_policies_run_where_baton_cannot_be_imported(tmp_path: Path) -> None:
    """Ray pickles them by value, as here, and runs them in its controller."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(scaling)
    try:
        pickled = cloudpickle.dumps([PrefillPolicy, DecodePolicy])
    finally:
        cloudpickle.unregister_pickle_by_value(scaling)
    (tmp_path / "policies").write_bytes(pickled)
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(tmp_path / "policies")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == ["2.0", "1.0"], done.stderr


_ELSEWHERE = """
import subprocess
import sys
from types import SimpleNamespace
sys.modules["baton"] = None
from ray import cloudpickle
prefill, decode = cloudpickle.loads(open(sys.argv[1], "rb").read())
metrics = {
    "baton_open_requests": {"r": 9.0},
    "baton_queued_prompt_tokens": {"r": 2000.0},
    "baton_prefill_tokens_per_s": {"r": 1000.0},
}
ctx = SimpleNamespace(running_replicas=["r"], current_num_replicas=1, target_num_replicas=1,
                      aggregated_metrics=metrics)
print(prefill(ttft_s=2.0)(ctx)[0], decode(tpot_s=0.05)(ctx)[0])
"""


def test_a_scaled_role_gets_its_policy_and_its_promise() -> None:
    """The user's bounds and delays stay as they are."""
    block = BatonBlock.model_validate({"slo": {"ttft_s": 1.5, "tpot_s": 0.04}})
    user = {"autoscaling_config": {"max_replicas": 5, "upscale_delay_s": 7}}
    made = deployment_options(user, "prefill", block)["autoscaling_config"]
    assert made["policy"] == {
        "policy_function": "baton.serve.scaling:PrefillPolicy",
        "policy_kwargs": {"ttft_s": 1.5},
    }
    assert (made["max_replicas"], made["upscale_delay_s"]) == (5, 7)
    decode_policy = deployment_options(user, "decode", block)["autoscaling_config"]["policy"]
    assert decode_policy["policy_kwargs"] == {"tpot_s": 0.04}
    assert "policy" not in user["autoscaling_config"]


def test_a_policy_of_the_users_own_is_left_alone() -> None:
    """Baton's signals reach it all the same."""
    own = {"autoscaling_config": {"policy": {"policy_function": "mine:policy"}}}
    made = deployment_options(own, "decode", BatonBlock())
    assert made["autoscaling_config"] == own["autoscaling_config"]


def test_auto_is_scaled_and_a_fixed_number_is_not() -> None:
    """`num_replicas: auto` is Ray's short form of autoscaling up to a hundred."""
    assert "policy" in deployment_options({"num_replicas": "auto"}, "decode", BatonBlock())[
        "autoscaling_config"
    ]  # fmt: skip
    assert "autoscaling_config" not in deployment_options(
        {"num_replicas": 2}, "decode", BatonBlock()
    )


def test_serve_waits_longer_than_the_drain_may_take() -> None:
    """Serve's limit is raised, never lowered."""
    block = BatonBlock.model_validate({"engines": {"drain_timeout_s": 40}})
    assert deployment_options({}, "decode", block)["graceful_shutdown_timeout_s"] == 55
    long = {"graceful_shutdown_timeout_s": 500}
    assert deployment_options(long, "decode", block)["graceful_shutdown_timeout_s"] == 500
