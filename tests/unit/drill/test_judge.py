"""What counts as lost."""

from __future__ import annotations

import pytest

from baton.drill.judge import Judged, is_beginning, judge, recovered_at
from tests.unit.drill.answers import TEXT, USAGE, case, seen


def test_the_same_answer_is_right():
    """Text, usage and finish reason."""
    assert judge(case(), seen()).verdict == "right"


@pytest.mark.parametrize("status", [0, 400, 404, 429, 500, 502, 503, 504])
def test_any_status_but_200_is_an_error(status):
    """A 429 as well: a drill stays below every limit."""
    assert judge(case(), seen(status=status, fault="x")).verdict == "error"


def test_a_200_that_is_not_whole_is_a_broken_stream_whatever_its_text():
    """Counted once, and not as a mismatch."""
    judged = judge(case(), seen(fault="the stream ended without [DONE]", text="the"))
    assert judged.verdict == "broken"
    assert "DONE" in judged.detail


@pytest.mark.parametrize(
    "changes",
    [
        {"text": TEXT[:-1]},
        {"text": TEXT + "n"},
        {"reasoning": "let me see"},
        {"text": TEXT.replace("hands", "hannds")},
        {"finish_reason": "stop"},
        {"usage": {**USAGE, "completion_tokens": 7}},
        {"usage": {**USAGE, "prompt_tokens": 4}},
        {"usage": None},
    ],
)
def test_a_lost_or_doubled_token_another_reason_or_other_usage_is_a_mismatch(changes):
    """Nothing is nearly right."""
    judged = judge(case(), seen(**changes))
    assert judged.verdict == "mismatch"
    assert judged.detail


def test_a_mismatch_says_where_the_texts_part():
    """So that a person can see what happened."""
    assert "character 4" in judge(case(), seen(text="the baton")).detail


def test_what_was_read_before_a_hang_up_must_be_the_beginning():
    """Not more, not other."""
    assert is_beginning(seen(), seen(text="the runner"))
    assert is_beginning(seen(), seen(text=""))
    assert not is_beginning(seen(), seen(text="the runer"))
    assert not is_beginning(seen(), seen(text=TEXT + "!"))
    assert is_beginning(seen(reasoning="let me see"), seen(reasoning="let", text=""))
    assert not is_beginning(seen(reasoning="let me see"), seen(reasoning="lt", text=""))


def _at(sent_at, ended_at, verdict="right"):
    return Judged(case(), seen(sent_at=sent_at, ended_at=ended_at), verdict, "")


def test_recovery_ends_with_the_first_right_answer_to_a_request_sent_after_the_fault():
    """What was sent before says nothing about the service afterwards."""
    assert recovered_at([_at(1, 11), _at(10.5, 12), _at(10.2, 13)], fault_at=10) == 12


def test_recovery_waits_for_the_last_request_that_was_lost():
    """An answer between two losses is no recovery."""
    judged = [_at(10.1, 10.5), _at(11, 11.1, "error"), _at(12, 13)]
    assert recovered_at(judged, fault_at=10) == 13


@pytest.mark.parametrize("judged", [[], [_at(1, 11)], [_at(10.5, 11), _at(11, 12, "broken")]])
def test_without_such_an_answer_there_is_no_recovery(judged):
    """Unknown is never a number."""
    assert recovered_at(judged, fault_at=10) is None
