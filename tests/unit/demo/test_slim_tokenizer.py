"""A tokenizer that was rewritten to load faster cuts every text as before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from baton.demo.slim_tokenizer import SAMPLES, check_same, slim

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small byte-level BPE with real merges, written as `tokenizers` writes it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<bos>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(SAMPLES) * 3, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"), pretty=True)
    config = {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_the_slim_tokenizer_is_smaller_and_cuts_alike(folder: Path) -> None:
    """Also texts that were no sample."""
    path = folder / "tokenizer.json"
    before, size = Tokenizer.from_file(str(path)), path.stat().st_size
    slim(folder)
    after = Tokenizer.from_file(str(path))
    assert path.stat().st_size < size / 2
    text = "Another text: the runner's baton — прощай, 世界!"
    assert after.encode(text).ids == before.encode(text).ids
    assert all(isinstance(pair, str) for pair in json.loads(path.read_text())["model"]["merges"])


def test_the_class_becomes_the_plain_one_and_the_rest_stays(folder: Path) -> None:
    """Only what names transformers' own class changes."""
    slim(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config == {"tokenizer_class": "TokenizersBackend", "bos_token": "<bos>"}


def test_merges_with_a_space_within_stay_as_they_are(folder: Path) -> None:
    """`["a b", "c"]` and `["a", "b c"]` would become the same string."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["model"]["vocab"] |= {"a b": 900, "a bc": 901}
    data["model"]["merges"].append(["a b", "c"])
    path.write_text(json.dumps(data), encoding="utf-8")
    slim(folder)
    assert json.loads(path.read_text(encoding="utf-8"))["model"]["merges"][-1] == ["a b", "c"]


def test_a_tokenizer_that_cuts_otherwise_is_not_taken() -> None:
    """A merge less is another tokenizer."""
    vocab = {"a": 0, "b": 1, "ab": 2, "t": 3, "h": 4, "th": 5}
    whole = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("t", "h")], unk_token="a"))
    less = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")], unk_token="a"))
    with pytest.raises(ValueError, match="otherwise"):
        check_same(whole, less)
    other = Tokenizer(models.BPE(vocab=vocab | {"x": 6}, merges=[], unk_token="a"))
    with pytest.raises(ValueError, match="another vocabulary"):
        check_same(whole, other)
