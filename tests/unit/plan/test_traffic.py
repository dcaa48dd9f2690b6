"""Traces: three forms are read, and what is wrong is refused with its line."""

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
    "shuffled.csv": "arrival_s,prompt_tokens,output_tokens\n3,20,4\n1,10,2\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_read_in_order_of_arrival_from_zero(tmp_path: Path, name: str) -> None:
    """Our own, Mooncake's in milliseconds, Azure's with dates."""
    path = tmp_path / name
    path.write_text(FORMS[name])
    traffic = read_trace(path)
    assert traffic.requests == (Request(0.0, 10, 2), Request(pytest.approx(2.0), 20, 4))
    assert traffic.rate_rps == pytest.approx(0.5)
    assert (traffic.mean_prompt, traffic.mean_output, traffic.longest) == (15, 3, 24)


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n-1,1,1\n", 3, "arrival_s is -1"),
        ("arrival_s,prompt_tokens,output_tokens\nnan,1,1\n", 2, "arrival_s is nan"),
        ("arrival_s,prompt_tokens,output_tokens\n0,0,1\n", 2, "prompt_tokens is `0`"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1.5,1\n", 2, "prompt_tokens is `1.5`"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1\n", 2, "output_tokens is `None`"),
        ("when,what\n0,1\n", 2, "a line has the keys when, what"),
        ('{"arrival_s": 0,\n', 1, "no JSON"),
        ("{}\n", 1, "a line has the keys none"),
        ("", None, "the trace is empty"),
        ("arrival_s,prompt_tokens,output_tokens\n0,1,1\n", None, "the trace holds 1 requests"),
        ("arrival_s,prompt_tokens,output_tokens\n4,1,1\n4,1,1\n", None, "arrive at once"),
    ],
)
def test_a_wrong_line_is_refused_with_its_place(
    tmp_path: Path, text: str, line: int | None, fact: str
) -> None:
    """Negative times above all."""
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TrafficRefused) as caught:
        read_trace(path)
    assert fact in caught.value.fact
    assert caught.value.place == (str(path) if line is None else f"{path}:{line}")


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
