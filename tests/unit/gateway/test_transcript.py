"""What a stream has said is kept whole, whatever the pieces it came in."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.gateway import transcript as module
from baton.gateway.eligibility import why_decode_alone
from baton.gateway.resumable import continuation, held_back, means_of
from baton.gateway.routes import lookup
from baton.gateway.sources import find_places
from baton.gateway.transcript import Diverged, Replay, Transcript, parse_event, write_event

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
cuts = st.lists(st.integers(0, 30), max_size=6)


def event(text: str, ids: list[int] | None, **more: Any) -> bytes:
    choice = {
        "index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None,
        "token_ids": ids, **more,
    }  # fmt: skip
    document = {"id": "a", "object": "o", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def completion(text: str, ids: list[int]) -> bytes:
    choice = {
        "index": 0, "text": text, "logprobs": None, "finish_reason": None, "stop_reason": None,
        "prompt_token_ids": None, "token_ids": ids,
    }  # fmt: skip
    document = {"id": "a", "object": "o", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def pieces_of(text: str, at: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place for place in at if place <= len(text))})
    return [text[a:b] for a, b in itertools.pairwise(places)]


@given(
    st.lists(st.tuples(texts, st.lists(st.integers(0, 99_999), max_size=3)), max_size=12), st.data()
)
def test_ids_are_kept_and_taken_out_however_events_come_together(
    said: list[tuple[str, list[int]]], data: st.DataObject
) -> None:
    """One at a time takes a faster way than several at once; both say the same."""
    events = [event(text, ids) for text, ids in said]
    alone = Transcript(asks_ids=True, shows_ids=False)
    shown = b"".join([alone.feed(one) for one in events])
    together = Transcript(asks_ids=True, shows_ids=False)
    groups = pieces_of("x" * len(events), data.draw(cuts))
    left = list(events)
    shown_together = b""
    for group in groups:
        taken, left = left[: len(group)], left[len(group) :]
        shown_together += together.feed(b"".join(taken))
    assert shown == shown_together
    assert shown == b"".join(event(text, None) for text, _ in said)
    assert alone.written == together.written == [i for _, ids in said for i in ids]
    assert "".join(alone.said().values()) == "".join(text for text, _ in said)
    assert alone.said() == together.said()


def test_text_that_looks_like_ids_stays() -> None:
    """In a JSON string a quote is escaped, so the text cannot be taken for a key."""
    text = '","token_ids":[1,2],"x":"'
    transcript = Transcript(asks_ids=True, shows_ids=False)
    transcript.feed(event("a", [5]))
    assert transcript.feed(event(text, [7])) == event(text, None)
    assert transcript.written == [5, 7]


@given(st.lists(texts, max_size=8), st.booleans())
def test_texts_that_are_folded_together_are_those_of_each(said: list[str], chat: bool) -> None:
    """Whatever characters they have, and also where an event says more than its neighbours."""
    one_by_one: dict[Any, list[str]] = {}
    transcript = Transcript(asks_ids=True, shows_ids=False)
    for number, text in enumerate(said):
        raw = event(text, [number]) if chat else completion(text, [number])
        if number == 5:
            raw = raw.replace(b'","logprobs"', b'","x":"y","logprobs"').replace(
                b'"},"logprobs"', b'","reasoning":"why"},"logprobs"'
            )
        document = parse_event(transcript.feed(raw))
        assert document is not None
        for channel, piece, _ in module.pieces(document):
            one_by_one.setdefault(channel, []).append(piece)
    assert transcript.said() == {channel: "".join(of) for channel, of in one_by_one.items()}


def test_much_text_is_folded_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory holds the text and not the events around it."""
    monkeypatch.setattr(module, "FOLD_BYTES", 500)
    transcript = Transcript(asks_ids=True, shows_ids=False)
    for number in range(50):
        transcript.feed(event(f"{number} ", [number]))
    assert transcript._pending_size <= 500
    assert transcript.said() == {(0, "content"): "".join(f"{number} " for number in range(50))}


@given(texts, st.integers(0, 30), cuts)
def test_a_replay_lets_through_exactly_what_is_new(text: str, sent: int, at: list[int]) -> None:
    """Whatever the pieces in which another engine says it again."""
    sent = min(sent, len(text))
    replay = Replay({(0, "content"): text[:sent]} if sent else {})
    new = ""
    for piece in pieces_of(text, at):
        document = replay.new_in(parse_event(event(piece, None)) or {})
        new += document["choices"][0]["delta"]["content"] if document else ""
    assert new == text[sent:]
    assert replay.caught_up


@given(st.text("ab", min_size=1, max_size=12), st.text("ab", min_size=1, max_size=12), cuts)
def test_a_replay_that_says_something_else_is_noticed(sent: str, again: str, at: list[int]) -> None:
    """At the first character that differs, or at an end that comes too early."""
    replay = Replay({(0, "content"): sent})

    def run() -> None:
        for piece in pieces_of(again, at):
            replay.new_in(parse_event(event(piece, None)) or {})
        replay.new_in(parse_event(event("", None, finish_reason="stop")) or {})

    if again.startswith(sent):
        run()
    else:
        with pytest.raises(Diverged):
            run()


def test_a_tool_call_that_was_announced_keeps_its_id() -> None:
    """vLLM makes up ids; clients join what they get for one call."""
    call = {
        "index": 0, "id": "new", "type": "function",
        "function": {"name": "look", "arguments": '{"a": 1'},
    }  # fmt: skip
    said = {(0, "tool_calls", 0, "name"): "look", (0, "tool_calls", 0, "arguments"): '{"a"'}
    document = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
    new = Replay(said).new_in(document)
    assert new is not None
    assert new["choices"][0]["delta"]["tool_calls"] == [
        {"index": 0, "function": {"arguments": ": 1"}}
    ]


CHAT = lookup("/v1/chat/completions")[0]
COMPLETIONS = lookup("/v1/completions")[0]


def test_each_field_is_known_or_keeps_a_stream_from_being_continued() -> None:
    """A parameter that nobody has looked at is not carried over in silence."""
    plain = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    assert means_of(plain, CHAT, None).continues
    for field, value in {
        "seed": 1, "presence_penalty": 0.1, "tools": [{"type": "function"}], "logprobs": True,
        "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"},
        "bad_words": ["x"], "a_new_parameter": 3, "n": 2, "include_reasoning": False,
    }.items():  # fmt: skip
        asked = {**plain, field: value}
        means = means_of(asked, CHAT, why_decode_alone(asked, "never"))
        assert not means.continues, field
        assert means.why_not_continue
        assert field.split("_")[0] in means.why_not_continue or "one prompt" in means.why_not


def test_other_routes_are_not_resumed() -> None:
    """Their events carry ids and sequence numbers."""
    for path in ("/v1/responses", "/v1/messages"):
        means = means_of({"model": "m", "temperature": 0}, lookup(path)[0], None)
        assert (means.continues, means.replays) == (False, False)
        assert path in means.why_not


def test_limits_are_counted_down() -> None:
    """What was written is not written again; the context's end bounds a chat without a limit."""
    body = {"model": "m", "prompt": "x", "max_tokens": 10, "min_tokens": 5, "stop": ["a"]}
    new = continuation(body, COMPLETIONS, [1, 2], [3, 4, 5], max_model_len=100)
    assert new == {
        "model": "m", "stop": ["a"], "prompt": [1, 2, 3, 4, 5], "max_tokens": 7, "min_tokens": 2,
        "stream": True,
    }  # fmt: skip
    free = continuation({"messages": []}, CHAT, [1] * 10, [2] * 5, max_model_len=100)
    assert free is not None
    assert free["max_tokens"] == 85
    assert continuation({"messages": []}, CHAT, [1], [2], max_model_len=0) is None
    short = continuation({"prompt": "x"}, COMPLETIONS, [1], [2] * 6, max_model_len=100)
    assert short is not None
    assert short["max_tokens"] == 10


@pytest.mark.parametrize(
    ("stop", "kept_in_text", "expected"),
    [(None, False, (0, True)), (["abc", "x"], False, (2, True)), ("ab", True, (1, False))],
)
def test_what_vllm_holds_back(stop: Any, *, kept_in_text: bool, expected: tuple[int, bool]) -> None:
    """One character less than the longest stop string."""
    assert held_back({"stop": stop, "include_stop_str_in_output": kept_in_text}) == expected


def test_a_place_lies_behind_whole_characters_only() -> None:
    """A token without text has begun a character, or stands behind held-back text."""
    transcript = Transcript(asks_ids=True, shows_ids=False)
    for text, ids in (("a", [1]), ("b", [2]), ("", [3]), ("", [4])):
        transcript.feed(event(text, ids))
    places = list(find_places(transcript, {}, greedy=True))
    assert [(p.kept, p.repeated, p.sure) for p in places] == [(2, "", True), (1, "b", True)]
    sampled = list(find_places(transcript, {}, greedy=False))
    assert [p.kept for p in sampled] == [2]


def test_a_place_lies_before_what_a_stop_string_may_still_cut() -> None:
    """Text lags two characters behind the tokens here."""
    transcript = Transcript(asks_ids=True, shows_ids=False)
    for text, ids in (("", [1]), ("", [2]), ("a", [3]), ("b", [4]), ("cd", [5])):
        transcript.feed(event(text, ids))
    places = list(find_places(transcript, {"stop": ["xyz"]}, greedy=True))
    # After token 4 the engine knew "abcd", and "abcd" was sent: nothing is said twice.
    assert [(p.kept, p.repeated) for p in places] == [(4, ""), (3, "d")]


def test_reasoning_is_not_continued() -> None:
    """A parser's state lies between the tokens and what was said."""
    transcript = Transcript(asks_ids=True, shows_ids=False)
    transcript.feed(
        b'data: {"choices":[{"index":0,"delta":{"reasoning":"hm"},"finish_reason":null,'
        b'"token_ids":[5]}]}\n\n'
    )
    assert list(find_places(transcript, {}, greedy=True)) == []
    assert write_event({"a": 1}) == b'data: {"a":1}\n\n'


def test_behind_a_resume_places_count_from_where_the_new_engine_began() -> None:
    """It holds text back anew: what was sent before it began is not held back by anybody."""
    body = {"stop": ["xyz"]}
    transcript = Transcript(asks_ids=True, shows_ids=False)
    for text, ids in (("", [1]), ("", [2]), ("a", [3]), ("b", [4]), ("cd", [5])):
        transcript.feed(event(text, ids))
    transcript.rewind(4, 4)  # "abcd" was sent, and is what four tokens spell
    assert [(p.kept, p.repeated, p.chars) for p in find_places(transcript, body, greedy=False)] == [
        (4, "", 4)
    ]
    for text, ids in (("", [5]), ("", [6]), ("e", [7])):
        transcript.feed(event(text, ids))
    # Behind token 7 the engine knows "abcdefg", two characters more than was sent.
    assert [(p.kept, p.repeated) for p in find_places(transcript, body, greedy=True)] == [(4, "e")]
    assert list(find_places(transcript, body, greedy=False)) == []


def test_an_engine_that_dies_while_it_repeats_has_not_said_everything() -> None:
    """The next one has to repeat up to what was sent, not to what the last one came to."""
    transcript = Transcript(asks_ids=True, shows_ids=False)
    for text, ids in (("a", [1]), ("b", [2]), ("c", [3])):
        transcript.feed(event(text, ids))
    transcript.rewind(1, 1)
    transcript.keep(event("b", [2]))  # repeated, and so not shown
    places = list(find_places(transcript, {}, greedy=True))
    assert [(p.kept, p.repeated) for p in places] == [(2, "c"), (1, "bc")]
