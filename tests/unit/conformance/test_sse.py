"""Events are the same however their bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.conformance.sse import SseReader, read_bytewise, read_split, read_whole

_STREAM = (
    'data: {"a": "ž 🎈"}\n\n: a comment\n\nevent: x\ndata: one\ndata: two\r\n\r\n'
    "id: 7\ndata:three\r\rdata: [DONE]\n\n"
).encode()
_EVENTS = ['{"a": "ž 🎈"}', "one\ntwo", "three", "[DONE]"]


def test_lines_end_with_any_of_the_three_endings() -> None:
    """CR, LF and CRLF; comments and other fields give no event."""
    assert read_whole(_STREAM) == _EVENTS


def test_a_stream_reads_the_same_cut_at_any_byte() -> None:
    """Also in the middle of a character, and between CR and LF."""
    assert all(read_split(_STREAM, at) == _EVENTS for at in range(len(_STREAM) + 1))
    assert read_bytewise(_STREAM) == _EVENTS


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12))
def test_a_stream_reads_the_same_cut_at_any_bytes(cuts: list[int]) -> None:
    """Any number of cuts."""
    reader, places = SseReader(), sorted({0, *cuts, len(_STREAM)})
    found = [e for a, b in pairwise(places) for e in reader.feed(_STREAM[a:b])]
    assert found == _EVENTS
    assert not reader.close()


def test_what_never_ends_is_told_at_the_close() -> None:
    """A stream that breaks off in an event has said something that counts for nothing."""
    reader = SseReader()
    assert reader.feed(b"data: half") == []
    assert reader.close() == b"data: half"


def test_half_a_character_is_no_text() -> None:
    """An event that is not UTF-8 is an error, not a replacement character."""
    with pytest.raises(UnicodeDecodeError):
        read_whole(b"data: \xf0\x9f\n\n")
