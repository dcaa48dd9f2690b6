"""Events are the same however their bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.conformance.sse import SseReader

_STREAM = (
    'data: {"a": "ž 🎈"}\n\n: a comment\n\nevent: x\ndata: one\ndata: two\r\n\r\n'
    "id: 7\ndata:three\r\rdata: [DONE]\n\n"
).encode()
_EVENTS = ['{"a": "ž 🎈"}', "one\ntwo", "three", "[DONE]"]


def events(body: bytes, *cuts: int) -> list[str]:
    """All events of a body that is cut at these offsets."""
    reader, places = SseReader(), sorted({0, *cuts, len(body)})
    return [event for a, b in pairwise(places) for event in reader.feed(body[a:b])]


def test_lines_end_with_any_of_the_three_endings() -> None:
    """CR, LF and CRLF; comments and other fields give no event."""
    assert events(_STREAM) == _EVENTS


def test_a_stream_reads_the_same_cut_at_any_byte() -> None:
    """Also in the middle of a character, and between CR and LF."""
    assert all(events(_STREAM, at) == _EVENTS for at in range(len(_STREAM) + 1))
    assert events(_STREAM, *range(len(_STREAM))) == _EVENTS


@given(st.lists(st.integers(0, len(_STREAM)), max_size=12))
def test_a_stream_reads_the_same_cut_at_any_bytes(cuts: list[int]) -> None:
    """Any number of cuts."""
    assert events(_STREAM, *cuts) == _EVENTS


def test_what_never_ends_is_told_at_the_close() -> None:
    """A stream that breaks off in an event has said something that counts for nothing."""
    reader = SseReader()
    assert reader.feed(b"data: half") == []
    assert reader.close() == b"data: half"


def test_half_a_character_is_no_text() -> None:
    """An event that is not UTF-8 is an error, not a replacement character."""
    with pytest.raises(UnicodeDecodeError):
        events(b"data: \xf0\x9f\n\n")
