"""Traffic that is planned for: traces, and what is made up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from baton.errors import TrafficRefused
from baton.plan.simulator import Request
from baton.plan.traffic import made_up, read_trace

if TYPE_CHECKING:
    from pathlib import Path

FORMS = {
    "own.jsonl": '{"arrival_s": 1, "prompt_tokens": 10, "output_tokens": 2}\n\n'
    '{"arrival_s": 3, "prompt_tokens": 20, "output_tokens": 4}\n',
    "own.csv": "arrival_s,prompt_tokens,output_tokens\n1,10,2\n3,20,4\n",
    "mooncake.jsonl": '{"timestamp": 1000, "input_length": 10, "output_length": 2}\n'
    '{"timestamp": 3000, "input_length": 20, "output_length": 4}\n',
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,2\n"
    "2023-11-16 18:15:48.6805900,20,4\n",
    "burstgpt.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,GPT,10,2,12,x\n7,GPT,20,4,24,x\n",
    "shuffled.csv": "arrival_s,prompt_tokens,output_tokens\n3,20,4\n1,10,2\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_read_in_order_of_arrival_from_zero(tmp_path: Path, name: str) -> None:
    """Our own, Mooncake's in milliseconds, BurstGPT's, Azure's with dates."""
    path = tmp_path / name
    path.write_text(FORMS[name])
    traffic = read_trace(path)
    assert traffic.requests == (Request(0.0, 10, 2), Request(pytest.approx(2.0), 20, 4))
    assert traffic.rate_rps == pytest.approx(0.5)
    assert (traffic.mean_prompt, traffic.mean_output, traffic.longest) == (15, 3, 24)


@pytest.mark.parametrize(
    ("rows", "fact"), [("0,1,1\n", "the trace holds 1 requests"), ("4,1,1\n4,1,1\n", "at once")]
)
def test_a_trace_that_has_no_rate_is_refused(tmp_path: Path, rows: str, fact: str) -> None:
    """What is wrong in a row itself, its reader says (`spec/trace.py`)."""
    path = tmp_path / "trace"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    with pytest.raises(TrafficRefused) as caught:
        read_trace(path)
    assert fact in caught.value.fact
    assert caught.value.place == str(path)


def test_requests_that_failed_when_they_were_recorded_are_left_out_and_told(tmp_path: Path) -> None:
    """BurstGPT's have 0 response tokens."""
    path = tmp_path / "burst.csv"
    path.write_text(FORMS["burstgpt.csv"] + "9,GPT,10,0,10,x\n")
    traffic = read_trace(path)
    assert len(traffic.requests) == 2
    assert traffic.source == "burst.csv: 2 requests (1 without an answer left out)"


@pytest.mark.parametrize(("isl", "osl", "rate"), [(0, 1, 1), (1, -1, 1), (1, 1, 0), (1, 1, 1e999)])
def test_numbers_that_make_no_traffic_are_refused(isl: int, osl: int, rate: float) -> None:
    """By name."""
    with pytest.raises(TrafficRefused, match=r"--(isl|osl|rate)"):
        made_up(prompt_tokens=isl, output_tokens=osl, rate_rps=rate)


def test_made_up_traffic_has_the_means_that_were_asked_for() -> None:
    """And is the same for the same seed."""
    first, again = (
        made_up(prompt_tokens=1000, output_tokens=100, rate_rps=50, spread=0.5, seed=3)
        for _ in range(2)
    )
    assert first.requests == again.requests
    assert first.mean_prompt == pytest.approx(1000, rel=0.05)
    assert first.mean_output == pytest.approx(100, rel=0.05)
    assert first.rate_rps == pytest.approx(50, rel=0.05)
