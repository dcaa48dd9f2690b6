"""Tokens, text and the next token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.simulated.text import (
    BOS_ID,
    EOS_ID,
    VOCAB_SIZE,
    Context,
    Detokenizer,
    Writer,
    decode,
    encode,
    signs,
)

TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=60)


def _write(context: Context, count: int) -> list[int]:
    writer = Writer(context)
    return [writer.next_token() for _ in range(count)]


@given(TOKENS, TOKENS)
def test_reading_in_two_parts_is_reading_at_once(head, tail):
    """Any prefix that an engine has KV of can be continued anywhere."""
    assert Context().read(head).read(tail) == Context().read(head + tail)


@given(TOKENS, st.integers(0, 20))
def test_prompt_plus_answer_so_far_continues_with_the_same_answer(prompt, sent):
    """A stream that another engine goes on with has the text that the first would have written."""
    answer = _write(Context().read(prompt), 40)
    assert _write(Context().read(prompt + answer[:sent]), 40 - sent) == answer[sent:]


@given(st.lists(st.integers(0, 255), min_size=1, max_size=300), st.data())
def test_one_changed_token_changes_the_answer(prompt, data):
    """Wrong KV shows as other text, wherever it is wrong."""
    place = data.draw(st.integers(0, len(prompt) - 1))
    changed = list(prompt)
    changed[place] = (changed[place] + data.draw(st.integers(1, 255))) % 256
    one, other = Context().read(prompt), Context().read(changed)
    assert one.fingerprint != other.fingerprint
    assert _write(one, 64) != _write(other, 64)


def test_tokens_that_change_places_far_apart_change_the_context():
    """The fingerprint has no short period."""
    for distance in (1, 8, 127, 254, 1016):
        prompt = list(range(200)) * 8
        moved = list(prompt)
        moved[3], moved[3 + distance] = moved[3 + distance], moved[3]
        assert Context().read(prompt) != Context().read(moved)


def test_leading_zero_tokens_count():
    """Byte 0 is a token like others."""
    assert Context().read([0, 0, 65]) != Context().read([65])


def test_answers_are_text_with_characters_of_several_bytes():
    """What tests of streaming need: characters that fall across tokens."""
    answer = _write(Context().read(encode("user: go on\nassistant:")), 4000)
    text = bytes(answer).decode()
    assert encode(text) == answer
    assert any(len(sign.encode()) == 2 for sign in text)
    assert any(len(sign.encode()) == 4 for sign in text)


def test_an_answer_ends_by_itself_only_where_that_is_wanted():
    """`answer_tokens` gives ends after a full stop; without it there are none."""
    context = Context().read(encode("go on"))
    writer = Writer(context, answer_tokens=50)
    answer = [writer.next_token() for _ in range(2000)]
    assert EOS_ID in answer
    assert answer[answer.index(EOS_ID) - 1] == ord(".")
    assert EOS_ID not in _write(context, 2000)


@given(st.text())
def test_text_to_tokens_to_text_is_lossless(text):
    """Nothing is lost on the way, special tokens included."""
    assert decode(encode(text)) == text


def test_special_tokens_are_single_tokens():
    """As in a Hugging Face tokenizer."""
    assert encode("a<s>b</s>") == [97, BOS_ID, 98, EOS_ID]
    assert decode([97, EOS_ID], skip_special=True) == "a"


def test_half_a_surrogate_pair_is_no_text():
    """JSON can hold what UTF-8 cannot."""
    with pytest.raises(UnicodeEncodeError):
        encode("\ud800")


@given(st.text())
def test_characters_come_with_their_last_byte(text):
    """No chunk has half a character, and none is lost."""
    feed = Detokenizer().feed
    parts = [feed(byte) for byte in text.encode()]
    assert "".join(parts) == text
    assert all(len(part) <= 1 for part in parts)


def test_token_signs_are_those_of_byte_level_tokenizers():
    """As a real engine spells them under `return_token_strs`."""
    assert signs(encode("Hé \n")) == ["H", "Ã", "©", "Ġ", "Ċ"]
