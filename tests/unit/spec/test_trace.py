"""Traces: four forms are read row by row, and what is wrong is refused with its line."""

from __future__ import annotations

import json
import os
import threading
from typing import TYPE_CHECKING

import pytest

from baton.errors import TraceRefused
from baton.spec.trace import TraceRow, trace_rows

if TYPE_CHECKING:
    from pathlib import Path

OWN = "arrival_s,prompt_tokens,output_tokens\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def mooncake(**row: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 600, "output_length": 1, **row}) + "\n"


def rows(tmp_path: Path, text: str | bytes) -> list[TraceRow]:
    path = tmp_path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(trace_rows(path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OWN + "1.5,10,2\n", TraceRow(2, 1.5, 10, 2)),
        ('\ufeff{"arrival_s": 1.5, "prompt_tokens": 10, "output_tokens": 2}\n',
         TraceRow(1, 1.5, 10, 2)),
        (mooncake(timestamp=1500, hash_ids=[7, 8]), TraceRow(1, 1.5, 600, 1, (7, 8))),
        (BURST + "5.5,GPT,20,0,20,x\r\n", TraceRow(2, 5.5, 20, 0)),
        (AZURE + "1970-01-01 00:00:02.5000000,10,2\n", TraceRow(2, 2.5, 10, 2)),
        (AZURE + "1970-01-01 01:00:02.5+01:00,10,2\n", TraceRow(2, 2.5, 10, 2)),
    ],
    ids=["own csv", "own json", "mooncake", "burstgpt", "azure", "azure with a zone"],
)  # fmt: skip
def test_each_form_says_when_and_how_long(tmp_path: Path, text: str, expected: TraceRow) -> None:
    """Seconds, whatever the file counts in; a failed request has no answer."""
    assert rows(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        (OWN + "0,1,1\n-1,1,1\n", 3, "arrival_s is -1"),
        (OWN + "nan,1,1\n", 2, "arrival_s is nan"),
        (OWN + "0,0,1\n", 2, "prompt_tokens is '0'"),
        (OWN + "0,1.5,1\n", 2, "prompt_tokens is '1.5'"),
        (OWN + "0,1,-3\n", 2, "output_tokens is '-3'"),
        (OWN + "0,1\n", 2, "output_tokens is None"),
        (OWN + f"0,1,{'9' * 200_000}\n", 2, "not CSV: field larger"),
        (BURST + "-3,GPT,10,5,15,x\n", 2, "Timestamp is -3"),
        (BURST + "3,GPT,ten,5,15,x\n", 2, "Request tokens is 'ten'"),
        (AZURE + "yesterday,1,1\n", 2, "TIMESTAMP is 'yesterday'"),
        ("when,what\n0,1\n", 1, "begins with 'when,what'"),
        ("<html>\n", 1, "begins with '<html>'"),
        (mooncake(timestamp=-1), 1, "timestamp is -1"),
        (mooncake() + mooncake(timestamp=float("inf")), 2, "timestamp is inf"),
        (mooncake(input_length="x"), 1, "input_length is 'x'"),
        (mooncake(input_length=float("inf")), 1, "input_length is inf"),
        (mooncake() + "\n" + '{"timestamp": 1}\n', 3, "a row has the keys timestamp"),
        (mooncake() + "[1]\n", 2, "no mapping"),
        (mooncake() + '{"timest\n', 2, "no JSON"),
        ("{}\n", 1, "a row has the keys none"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, fact: str
) -> None:
    """Fact and place; negative times above all."""
    with pytest.raises(TraceRefused) as refused:
        rows(tmp_path, text)
    assert fact in refused.value.fact
    assert refused.value.place == f"{tmp_path / 'trace'}:{line}"


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["no mark", "mark"])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["", OWN.strip(), "0,1,2", "1,3,4"], [3, 4]),
        (["  ", "\t", OWN.strip(), "", "0,1,2", " ", "1,3,4", "", "  "], [5, 7]),
        (["", mooncake().strip(), " ", mooncake().strip(), "", "\t"], [2, 4]),
    ],
    ids=["a blank first line", "csv among blanks", "json among blanks"],
)
def test_blank_lines_are_passed_over_and_counted(
    tmp_path: Path, lines: list[str], expected: list[int], mark: str, end: str
) -> None:
    """In front, between rows and behind; of spaces, too. The rows keep the file's numbers."""
    assert [row.line for row in rows(tmp_path, mark + end.join(lines) + end)] == expected


def test_a_wrong_row_behind_blank_lines_is_named_where_it_stands(tmp_path: Path) -> None:
    """The head as well."""
    for text, line in (("\n\nwhen,what\n", 3), (f"\n{OWN}\n0,{'9' * 200_000},1\n", 4)):
        with pytest.raises(TraceRefused) as refused:
            rows(tmp_path, text)
        assert refused.value.place == f"{tmp_path / 'trace'}:{line}"


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Nothing in it, no text, no file."""
    for text, fact in ((b"", "empty"), (b"\n\n", "empty"), (b'{"timestamp": \xff}\n', "UTF-8")):
        with pytest.raises(TraceRefused, match=fact):
            rows(tmp_path, text)
    with pytest.raises(TraceRefused, match="cannot read"):
        list(trace_rows(tmp_path / "not-there"))


def test_no_more_is_read_than_is_wanted(tmp_path: Path) -> None:
    """What is wrong further down is not met."""
    path = tmp_path / "trace"
    path.write_text(mooncake() * 3 + "{nothing\n")
    found = trace_rows(path)
    assert [next(found).line for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,prompt_tokens,output_tokens\n0,5,1\n1,6,2\n",
        mooncake(input_length=5) + "\n" + mooncake(timestamp=1000, input_length=6, output_length=2),
    ],
)
def test_a_trace_may_come_through_a_pipe(tmp_path: Path, text: str) -> None:
    """It is read once, from its begin to its end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    read = [(row.at_s, row.prompt_tokens, row.output_tokens) for row in trace_rows(pipe)]
    writer.join()
    assert read == [(0, 5, 1), (1, 6, 2)]
