"""The arithmetic of bench/engines.py."""

from __future__ import annotations

import pytest
from engines_load import body_of, prompts
from engines_stats import Answer, figures_of, same_beginning, stages_of, transfers_of


def answer(*chunks: tuple[float, int], began_s: float = 10.0) -> Answer:
    """An answer whose chunks came so many seconds behind its request."""
    at = [(began_s + after_s, tokens) for after_s, tokens in chunks]
    return Answer(began_s, at, ended_s=at[-1][0] + 0.01)


def test_time_to_the_first_token_and_gaps_are_those_of_the_chunks_as_they_came() -> None:
    """Three chunks after 100, 110 and 140 ms: gaps of 10 and 30."""
    found = figures_of([answer((0.1, 1), (0.11, 1), (0.14, 1))])
    assert found["ttft_ms_p50"] == pytest.approx(100)
    assert found["itl_ms_p50"] == pytest.approx(10)
    assert found["itl_ms_p99"] == pytest.approx(30)
    assert found["tpot_ms_p50"] == pytest.approx(20)


def test_a_burst_is_one_long_pause_of_the_reader_and_many_short_ones_of_its_tokens() -> None:
    """Five tokens in one chunk after 50 ms: the reader waited 50, a token took 10."""
    found = figures_of([answer((0.1, 1), (0.15, 5))])
    assert found["itl_ms_p99"] == pytest.approx(50)
    assert found["itl_per_token_ms_p99"] == pytest.approx(10)
    assert found["tokens_per_chunk"] == 3


def test_tokens_of_the_first_chunk_do_not_shorten_the_time_per_token() -> None:
    """Four tokens at once, then one each 20 ms: 20 ms a token, not 40 / 5."""
    found = figures_of([answer((0.1, 4), (0.12, 1), (0.14, 1))])
    assert found["tpot_ms_p50"] == pytest.approx(20)


def test_requests_a_second_count_from_the_first_request_to_the_last_answer() -> None:
    """Two answers in one second of window."""
    found = figures_of([answer((0.1, 1), (0.49, 1)), answer((0.1, 1), (0.49, 1), began_s=10.5)])
    assert found["requests_per_s"] == pytest.approx(2)


def test_an_answer_without_tokens_makes_no_figures() -> None:
    """A window that lost something is no measurement."""
    with pytest.raises(ValueError, match="token"):
        figures_of([Answer(1.0)])


@pytest.mark.parametrize(
    ("one", "other", "common"), [("abc", "abd", 2), ("ab", "abc", 2), ("", "a", 0)]
)
def test_texts_are_the_same_up_to_where_they_part(one: str, other: str, common: int) -> None:
    """A shorter one parts at its end."""
    assert same_beginning(one, other) == common


def test_transfers_are_counted_in_vllms_own_page_and_in_what_ray_exports() -> None:
    """The same counter under both names, over all engines; buckets and sums are not it."""
    page = """
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_bucket{engine="0",le="0.005"} 90.0
vllm:nixl_xfer_time_seconds_count{engine="0",model_name="tiny"} 101.0
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="tiny"} 0.4
ray_vllm_nixl_xfer_time_seconds_count{Component="core_worker",engine="0"} 40.0
"""
    assert transfers_of(page) == 141
    assert transfers_of("vllm:num_requests_running 1.0") == 0


def test_stages_are_medians_of_those_who_had_them() -> None:
    """A stage that some requests do not have is the median of the others."""
    found = stages_of([
        {"stages": {"prefill_s": 0.02, "handoff_s": 0.01}, "first_token": "early: from_prefill"},
        {"stages": {"prefill_s": 0.04}, "first_token": None},
    ])  # fmt: skip
    assert found["prefill"] == 20
    assert found["handoff"] == 10
    assert found["first_tokens"] == {"early: from_prefill": 1, "None": 1}


def test_prompts_are_as_long_as_asked_and_begin_differently() -> None:
    """A KV block of 128 tokens is never shared; the same seed gives the same prompts."""
    made = prompts("0 c8 baton", 64, 512, 12)
    assert all(500 <= len(prompt) <= 524 for prompt in made)
    assert len({prompt[:128] for prompt in made}) == 64
    assert made == prompts("0 c8 baton", 64, 512, 12)
    assert made != prompts("0 c8 ray_default", 64, 512, 12)


def test_every_setup_is_asked_the_same_way() -> None:
    """Greedy, 32 tokens whatever the model says; nothing that only one of them knows."""
    assert body_of("p", stream=True) == (
        b'{"model":"tiny","prompt":"p","max_tokens":32,"temperature":0,"ignore_eos":true,"stream":true}'
    )
