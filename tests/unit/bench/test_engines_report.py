"""The report of bench/engines.py: its shape, and what is compared with what."""

from __future__ import annotations

from collections import Counter

import pytest
from engines_report import Turn, report


def turn(ttft_ms: float, per_s: float, *, text: str = "some words here") -> Turn:
    """A turn with the same figures at both loads."""
    figures = {
        "ttft_ms_p50": ttft_ms, "itl_ms_p99": 20.0, "tpot_ms_p50": 10.0, "requests_per_s": per_s,
    }  # fmt: skip
    return Turn(
        figures={"c1": dict(figures), "c8": dict(figures)},
        cpu_ms_per_request={"c1": {"decode": 100.0}, "c8": {"decode": 90.0}},
        checks=[text],
        routes=Counter({"pd": 84}),
        transfers=84,
        asked=84,
    )


ROUNDS = [
    {"no_pd": turn(100, 2.0), "baton": turn(120, 6.0), "ray_default": turn(180, 3.0)},
    {"no_pd": turn(200, 1.0), "baton": turn(240, 3.0), "ray_default": turn(280, 2.0)},
    {"no_pd": turn(100, 2.0), "baton": turn(110, 6.0), "ray_default": turn(200, 2.0)},
]


def test_the_file_has_the_shape_that_its_readers_expect() -> None:
    """A setup's loads hold the figures; ratios, rounds and failures stand beside the setups."""
    found = report(ROUNDS, {})
    assert found["rounds"] == 3
    assert {"ttft_ms_p50", "itl_ms_p99", "requests_per_s"} <= found["baton"]["c8"].keys()
    assert found["ray_default"]["c1"]["ttft_ms_p50"] == 200
    assert found["baton"]["spread"]["c1"]["ttft_ms_p50"] == [110, 240]


def test_what_a_setup_adds_is_taken_from_no_pd_of_the_same_round() -> None:
    """20, 40 and 10 ms, whatever the rounds' own level."""
    found = report(ROUNDS, {})
    assert found["baton"]["c1"]["added_ttft_ms"] == 20
    assert found["baton"]["spread"]["c1"]["added_ttft_ms"] == [10, 40]
    assert "added_ttft_ms" not in found["no_pd"]["c1"]


def test_ratios_are_taken_round_by_round() -> None:
    """2, 1.5 and 3 times the requests: their median, not the ratio of medians."""
    found = report(ROUNDS, {})["ratios"]["baton"]["ray_default"]["c8"]
    assert found["requests_per_s"] == {"median": 2, "low": 1.5, "high": 3}
    assert found["added_ttft_ms"] == {"median": 0.25, "low": 0.1, "high": 0.5}


def test_a_round_in_which_a_peer_is_missing_makes_no_ratio_with_it() -> None:
    """What failed once is compared in the other rounds only, and said."""
    rounds = [ROUNDS[0], {name: ROUNDS[1][name] for name in ("no_pd", "baton")}]
    found = report(rounds, {"ray_default": ["round 2: it did not start"]})
    ratio = found["ratios"]["baton"]["ray_default"]["c1"]["requests_per_s"]
    assert ratio == {"median": 2, "low": 2, "high": 2}
    assert found["failed"] == {"ray_default": ["round 2: it did not start"]}


def test_a_peer_that_adds_nothing_to_ttft_is_no_measure_for_what_others_add() -> None:
    """No ratio to zero, and none to a negative time."""
    rounds = [{"no_pd": turn(100, 2), "baton": turn(120, 2), "vllm_router": turn(90, 2)}]
    assert "added_ttft_ms" not in report(rounds, {})["ratios"]["baton"]["vllm_router"]["c1"]


def test_without_no_pd_nothing_is_said_of_added_time() -> None:
    """`--only baton,ray_default` still has figures and ratios."""
    found = report([{name: ROUNDS[0][name] for name in ("baton", "ray_default")}], {})
    assert "added_ttft_ms" not in found["baton"]["c1"]
    assert found["ratios"]["baton"]["ray_default"]["c1"]["requests_per_s"]["median"] == 2


def test_another_text_is_counted_and_said_whose_it_is() -> None:
    """Texts are compared with those of no P/D, whole and in their first tokens."""
    rounds = [
        {
            "no_pd": turn(1, 1),
            "baton": turn(1, 1),
            "ray_direct": turn(1, 1, text="some other"),
            "vllm_router": turn(1, 1, text="some words herd"),
        }
    ]
    assert report(rounds, {})["answers"] == {
        "compared": 3,
        "identical": 1,
        "shortest_common_beginning_of_others": 5,
        "other_within_first_tokens": {"ray_direct": 1},
    }


def test_whether_kv_was_handed_over_is_in_the_report() -> None:
    """Counts of all rounds; None where nobody could be asked, which is not zero."""
    found = report(ROUNDS, {})["baton"]["pd"]
    assert found == {"answers": 252, "routes": {"pd": 252}, "kv_transfers": 252}
    unknown = turn(1, 1)
    unknown.transfers = None
    assert report([{"ray_default": unknown}], {})["ray_default"]["pd"]["kv_transfers"] is None


def test_no_round_at_all_is_a_report_too() -> None:
    """Everything failed: then that is what it says."""
    found = report([{}], {"baton": ["round 1: no"]})
    assert found["failed"] == {"baton": ["round 1: no"]}
    assert found["ratios"] == {}


@pytest.mark.parametrize(("load", "decode_ms"), [("c1", 100), ("c8", 90)])
def test_cpu_is_a_median_for_each_part(load: str, decode_ms: float) -> None:
    """Parts that were not there in a round count as nothing."""
    turns = [turn(1, 1) for _ in range(3)]
    turns[0].cpu_ms_per_request[load]["proxy"] = 8.0
    turns[1].cpu_ms_per_request[load]["proxy"] = 4.0
    found = report([{"baton": one} for one in turns], {})["baton"]["cpu_ms_per_request"]
    assert found[load] == {"decode": decode_ms, "proxy": 4}
