"""Where answers end, and what text comes when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.engine.simulated.sequence import Sampling, Sequence
from baton.engine.simulated.text import Context, encode

CONTEXT = Context().read(encode("user: tell me more\nassistant:"))


def _run(sampling: Sampling, *, answer_tokens: int = 0):
    sequence = Sequence(CONTEXT, sampling, answer_tokens=answer_tokens)
    steps = [sequence.step()]
    while steps[-1].finish_reason is None:
        steps.append(sequence.step())
    return steps


def _text(steps) -> str:
    return "".join(step.text for step in steps)


LONG = _text(_run(Sampling(max_tokens=300)))


def test_an_answer_ends_at_max_tokens_with_length():
    """Every token has a step."""
    steps = _run(Sampling(max_tokens=7))
    assert len(steps) == 7
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("length", None)


@given(st.integers(1, 250), st.integers(1, 12), st.booleans())
def test_a_stop_string_ends_the_answer_where_it_first_ends(place, size, include):
    """The text is cut before it, or behind it where that is wanted; nothing is sent twice."""
    stop = LONG[place : place + size]
    steps = _run(Sampling(max_tokens=300, stop=(stop,), include_stop_str_in_output=include))
    end = LONG.index(stop) + (len(stop) if include else 0)
    assert _text(steps) == LONG[:end]
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("stop", stop)


def test_of_several_stop_strings_the_one_that_ends_first_wins():
    """Whatever their order in the request."""
    early, late = LONG[20:23], LONG[40:43]
    steps = _run(Sampling(max_tokens=300, stop=(late, early)))
    assert steps[-1].stop_reason == early


def test_text_that_may_become_a_stop_string_is_held_back():
    """A stream never has to take text back."""
    stop = LONG[30:40]
    steps = _run(Sampling(max_tokens=300, stop=(stop,)))
    sent = ""
    for step in steps:
        sent += step.text
        assert LONG[: LONG.index(stop)].startswith(sent)


def test_a_stop_string_that_never_comes_costs_no_text():
    """What was held back comes with the last token."""
    assert _text(_run(Sampling(max_tokens=300, stop=("@@@@",)))) == LONG


def test_min_tokens_lets_stop_strings_pass():
    """They are looked for in the text behind."""
    steps = _run(Sampling(max_tokens=300, min_tokens=50, stop=("e",)))
    assert len(steps) > 50
    assert steps[-1].finish_reason == "stop"


def test_a_stop_token_ends_the_answer_and_is_not_in_it():
    """As vLLM has it: the token counts, its text does not come."""
    token = LONG.encode()[10]
    steps = _run(Sampling(max_tokens=300, stop_token_ids=frozenset({token})))
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("stop", token)
    assert _text(steps) == LONG[: LONG.encode().index(token)]


def test_an_answer_may_end_by_itself():
    """Then `finish_reason` is stop and `stop_reason` null."""
    steps = _run(Sampling(max_tokens=5000), answer_tokens=100)
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == ("stop", None)
    assert len(steps) < 5000


def test_ignore_eos_writes_on():
    """Benchmarks want the length that they asked for."""
    steps = _run(Sampling(max_tokens=1000, ignore_eos=True), answer_tokens=100)
    assert (len(steps), steps[-1].finish_reason) == (1000, "length")
