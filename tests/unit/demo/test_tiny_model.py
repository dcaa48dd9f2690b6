"""The tiny model: made whole, made alike, and worth comparing answers of."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer

from baton.demo.tiny_model import EOS_ID, make_tiny_model
from baton.errors import ModelUnavailable

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = (
    "user: The committee read every page of the report twice, argued about the seventh table, and "
    "went home late; nobody had noticed that the last column was empty.\nassistant:"
)


def _digest(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    """Two machines that make the model serve the same model."""
    one, two = make_tiny_model(tmp_path / "a" / "one"), make_tiny_model(tmp_path / "two")
    assert _digest(one) == _digest(two)


def test_another_seed_gives_other_weights(tmp_path):
    """A second model for tests that must tell models apart."""
    one, two = make_tiny_model(tmp_path / "one"), make_tiny_model(tmp_path / "two", seed=1)
    assert _digest(one)["model.safetensors"] != _digest(two)["model.safetensors"]


def test_the_weights_are_the_pinned_ones(tmp_path):
    """A NumPy or an edit that changes the model is seen here, not in some other test's text."""
    weights = (make_tiny_model(tmp_path / "model") / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == (
        "0d0565b9fa1b5d064142d07b2e7cf4f104c14fff2f00b02e8bc8f40379ba691a"
    )


def test_makers_at_the_same_time_leave_one_whole_model_and_nothing_else(tmp_path):
    """Two engines that start side by side may both ask for the model."""
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: make_tiny_model(tmp_path / "model"), range(4)))
    assert made == [tmp_path / "model"] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert _digest(tmp_path / "model") == _digest(make_tiny_model(tmp_path / "again"))


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    """Nothing of the user's is overwritten, and no half-made model stays behind."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(ModelUnavailable, match="something else"):
        make_tiny_model(tmp_path / "mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


@pytest.mark.parametrize("kv_heads", [0, 3, 8])
def test_key_value_heads_that_do_not_divide_four_are_refused(tmp_path, kv_heads):
    """Attention of 4 heads can share 1, 2 or 4 key/value heads."""
    with pytest.raises(ValueError, match="must divide 4"):
        make_tiny_model(tmp_path / "model", kv_heads=kv_heads)


@pytest.mark.parametrize("text", ["Hello, world.\n", "naïve 東京 🎈", "\x00\x7f tab\t", "</x> <s"])
def test_tokens_are_the_bytes_of_the_text_and_come_back_as_it(tmp_path, text):
    """Byte-level: text to tokens to text is lossless, and prompt lengths are easy to choose."""
    folder = make_tiny_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = tokenizer.encode(text).ids
    assert tokens == list(text.encode())
    assert tokenizer.decode(tokens) == text


def test_special_tokens_have_their_ids(tmp_path):
    """The ids in config, generation config and tokenizer agree."""
    folder = make_tiny_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    assert tokenizer.encode("</s>").ids == [EOS_ID] == [config["eos_token_id"]]
    assert tokenizer.encode("<s>").ids == [config["bos_token_id"]]


class _Model:
    """Transformers' own Llama over the tiny weights."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)  # OpenMP threads that wait for each other starve on a busy machine
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def greedy(self, tokens: list[int], count: int) -> list[int]:
        with self._torch.no_grad():
            answer = self._model.generate(
                self._torch.tensor([tokens]), max_new_tokens=count, do_sample=False
            )
        return answer[0].tolist()[len(tokens) :]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return _Model(make_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))


def test_an_answer_is_plain_lowercase_text_of_the_asked_length(model):
    """It never ends by itself and never needs more than ASCII."""
    answer = bytes(model.greedy(list(PROMPT.encode()), 48)).decode("ascii")
    assert len(answer) == 48
    assert set(answer) <= set("abcdefghijklmnopqrstuvwxyz ,.\n")
    assert len(set(answer)) > 8


@pytest.mark.parametrize("place", [0, 1, 13, 60, 120, -1])
def test_one_changed_prompt_token_changes_the_answer(model, place):
    """A handoff that loses or mixes up KV cannot give the right text."""
    tokens = list(PROMPT.encode())
    changed = list(tokens)
    changed[place] = ord("q")
    assert model.greedy(tokens, 32) != model.greedy(changed, 32)


@pytest.mark.parametrize("sent", [1, 9, 20])
def test_prompt_plus_answer_so_far_continues_with_the_same_answer(model, sent):
    """What resuming a stream relies on: reading tokens gives what writing them gave."""
    tokens = list(PROMPT.encode())
    answer = model.greedy(tokens, 32)
    assert model.greedy(tokens + answer[:sent], 32 - sent) == answer[sent:]


def test_a_sliding_window_makes_a_hybrid_model_of_the_same_weights(tmp_path):
    """Two kinds of layers for vLLM, the same text: layer 1 looks back four tokens."""
    plain = make_tiny_model(tmp_path / "plain")
    hybrid = make_tiny_model(tmp_path / "hybrid", sliding_window=256)
    config = json.loads((hybrid / "config.json").read_text())
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["sliding_window"] == 256
    assert "layer_types" not in json.loads((plain / "config.json").read_text())
    assert _digest(plain)["model.safetensors"] == _digest(hybrid)["model.safetensors"]


def test_a_window_that_layer_1_does_not_fit_in_is_refused(tmp_path):
    """The text would be another."""
    with pytest.raises(ValueError, match="sliding_window"):
        make_tiny_model(tmp_path / "model", sliding_window=4)
