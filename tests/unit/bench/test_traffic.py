"""What is sent and when, by chance and from traces; what cannot be replayed is refused."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from baton.bench import trace
from baton.bench.traffic import Block, Class, Lengths, Planned, faster, fitted, poisson
from baton.errors import LoadRefused

if TYPE_CHECKING:
    from pathlib import Path

BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def mooncake(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def row(at_ms: object, inputs: object = 600, outputs: object = 8, **more: object) -> dict:
    return {"timestamp": at_ms, "input_length": inputs, "output_length": outputs, **more}


def write(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_same_seed_makes_the_same_arrivals_and_another_makes_others() -> None:
    """Both sides of a comparison get the same traffic."""
    classes = [Class(5.0, Lengths.of("100-200"), Lengths.of("8"))]
    first, again, other = (poisson(classes, duration_s=20, seed=s) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_process() -> None:
    """Gaps are exponential: their deviation is their mean."""
    planned = poisson([Class(50.0, Lengths.of("1"), Lengths.of("1"))], duration_s=200, seed=3)
    gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(planned)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / 50, rel=0.05)
    assert deviation == pytest.approx(mean, rel=0.05)


def test_classes_arrive_among_each_other_with_their_own_lengths() -> None:
    """In the order of time, each with the name of its kind."""
    planned = poisson(
        [
            Class(4.0, Lengths.of("64"), Lengths.of("48"), name="chat"),
            Class(1.0, Lengths.of("4000"), Lengths.of("8"), name="long"),
        ],
        duration_s=30,
        seed=1,
    )
    assert [r.at_s for r in planned] == sorted(r.at_s for r in planned)
    assert {(r.kind, r.input_tokens) for r in planned} == {("chat", 64), ("long", 4000)}


def test_shared_prefixes_are_the_same_block_and_the_rest_is_nobody_elses() -> None:
    """As many different beginnings as were asked for, at most."""
    one = Class(20.0, Lengths.of("100"), Lengths.of("1"), prefix_tokens=60, prefixes=3)
    planned = poisson([one], duration_s=20, seed=1)
    assert len({r.blocks[0] for r in planned}) == 3
    assert len({r.blocks[1] for r in planned}) == len(planned)
    assert {r.input_tokens for r in planned} == {100}


@pytest.mark.parametrize("text", ["", "0", "-5", "many", "900-100", "5~", "1.5"])
def test_lengths_that_mean_nothing_are_refused(text: str) -> None:
    """With what may be written."""
    with pytest.raises(LoadRefused):
        Lengths.of(text)


def test_too_much_and_nothing_at_all_are_refused_before_anything_is_drawn() -> None:
    """A typing error must not fill the memory."""
    for rate, duration_s in ((1e9, 60.0), (1e-9, 1.0)):
        with pytest.raises(LoadRefused):
            poisson([Class(rate, Lengths.of("1"), Lengths.of("1"))], duration_s=duration_s, seed=1)
    with pytest.raises(LoadRefused, match="prompt tokens"):
        poisson([Class(90.0, Lengths.of("99999"), Lengths.of("1"))], duration_s=9, seed=1)


def test_requests_that_do_not_fit_the_context_are_left_out_and_counted() -> None:
    """The answer's tokens count as well."""
    planned = [Planned(0, (Block("a", 90),), 10), Planned(1, (Block("b", 90),), 11)]
    assert fitted(planned, 100) == (planned[:1], 1)
    assert fitted(planned, None) == (planned, 0)
    assert [r.at_s for r in faster(planned, 2)] == [0, 0.5]


def test_mooncakes_rows_keep_their_times_and_share_their_blocks(tmp_path: Path) -> None:
    """Milliseconds since the first row; 512 tokens for each hash id."""
    path = write(
        tmp_path,
        mooncake(row(5000, hash_ids=[1, 2]), row(6500, hash_ids=[1, 3]), row(6500, hash_ids=[])),
    )
    planned = trace.read(path).planned
    assert [r.at_s for r in planned] == [0.0, 1.5, 1.5]
    assert planned[0].blocks == (Block("hash1", 512), Block("hash2", 88))
    assert planned[0].blocks[0] == planned[1].blocks[0]
    assert planned[2].input_tokens == 600


def test_burstgpts_failures_are_left_out_and_told(tmp_path: Path) -> None:
    """0 response tokens are a request that failed when it was recorded."""
    path = write(tmp_path, f"{BURST}3,GPT,10,5,15,x\n4,GPT,10,0,10,x\n5.5,GPT,20,6,26,x\n")
    found = trace.read(path)
    assert [(r.at_s, r.input_tokens, r.output_tokens) for r in found.planned] == [
        (0.0, 10, 5),
        (2.5, 20, 6),
    ]
    assert "1 rows" in found.notes[0]


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        (mooncake(row(9000), row(8000)), 2, "goes back"),
        (mooncake(row(0), row(3_600_000)), 2, "nothing happens for 3,600 s"),
    ],
)
def test_times_that_cannot_be_replayed_are_refused_with_their_line(
    tmp_path: Path, text: str, line: int, fact: str
) -> None:
    """Fact and place; what is wrong in a row itself, its reader says (`spec/trace.py`)."""
    path = write(tmp_path, text)
    with pytest.raises(LoadRefused) as refused:
        trace.read(path)
    assert fact in refused.value.fact
    assert refused.value.place == f"{path}:{line}"


def test_a_trace_without_requests_is_no_load(tmp_path: Path) -> None:
    """Only failures, or only a head."""
    for text in (BURST, f"{BURST}4,GPT,10,0,10,x\n"):
        with pytest.raises(LoadRefused, match="no request"):
            trace.read(write(tmp_path, text))


def test_azures_dates_can_be_replayed(tmp_path: Path) -> None:
    """As every form that `baton plan` takes."""
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    rows = "2023-11-16 18:15:46.6805900,10,2\n2023-11-16 18:15:48.1805900,20,4\n"
    planned = trace.read(write(tmp_path, head + rows)).planned
    assert [(round(r.at_s, 6), r.input_tokens) for r in planned] == [(0.0, 10), (1.5, 20)]


def test_pauses_are_shortened_when_that_is_wanted_and_kept_when_that_is(tmp_path: Path) -> None:
    """What was done to the trace is told."""
    path = write(tmp_path, mooncake(row(0), row(1000), row(3_601_000), row(3_602_000)))
    short = trace.read(path, max_pause_s=5)
    assert [r.at_s for r in short.planned] == [0, 1, 6, 7]
    assert short.notes == ["1 pauses were shortened to 5 s"]
    kept = trace.read(path, max_pause_s=float("inf"))
    assert kept.planned[-1].at_s == 3602
    fast = trace.read(path, speed=3600)
    assert fast.planned[-1].at_s == pytest.approx(3602 / 3600)


def test_of_ten_million_rows_no_more_are_read_than_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a number it is refused at the limit; memory stays that of what was asked for."""
    monkeypatch.setattr(trace, "MAX_REQUESTS", 2000)
    path = tmp_path / "big"
    with path.open("w", encoding="utf-8") as file:
        for number in range(60_000):  # a part of them: all of it is never read
            file.write(f'{{"timestamp": {number}, "input_length": 8, "output_length": 1}}\n')
    tracemalloc.start()
    assert len(trace.read(path, requests=100).planned) == 100
    with pytest.raises(LoadRefused, match="more than 2,000") as refused:
        trace.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "--requests N" in (refused.value.cure or "")
    assert peak < path.stat().st_size
    with pytest.raises(LoadRefused, match="more than 2,000"):
        trace.read(path, requests=50_000)


def test_prompts_that_no_memory_holds_are_refused_while_they_are_read(tmp_path: Path) -> None:
    """With how many of them could be taken."""
    path = write(tmp_path, mooncake(*(row(at, inputs=4_000_000) for at in range(9))))
    with pytest.raises(LoadRefused) as refused:
        trace.read(path)
    assert refused.value.cure == "--requests 2 takes those"
    assert len(trace.read(path, requests=2).planned) == 2
