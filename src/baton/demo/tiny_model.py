"""Makes the tiny model: a real Llama checkpoint of 2 MB, written in under a second.

Tests, drills and benchmarks need engines that are real in everything but size. The weights are not
trained; they are built so that the greedy answer is worth comparing:

- Layer 1 looks at the last few tokens (its keys and queries are constants that RoPE turns into
  "one back", "two back" …) and its MLP hashes them, so that every n-gram gets a code of its own.
- Layer 2 averages these codes over the whole context, and its MLP lets the last few tokens pick
  what of that average speaks. One changed token anywhere in a prompt of a few hundred, or one wrong
  KV block in any prompt, changes the text within a few tokens.
- The output knows only a small alphabet, so the best logit stands clear of the next one: what
  engines round differently does not change the text, a wrong KV cache does.

The tokenizer has one token for each byte, plus `<s>`, `</s>`, `<think>` and `</think>`; the model
never says any of these, so an answer always runs to its `max_tokens` or to a stop string, and with
a reasoning parser that looks for them all of it is thinking.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from baton.errors import ModelUnavailable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

BOS_ID = 256
EOS_ID = 257

_HIDDEN = 128
_INTERMEDIATE = 256
_LAYERS = 2
_HEADS = 4
_HEAD_DIM = 32
_VOCAB = 512
_MAX_LEN = 8192
_ROPE_THETA = 100.0
_SAMPLE = (
    b"user: There is a way to answer what people ask. It begins with reading all of it at once.\n"
    b"assistant: Reading is heavy work for the machine; writing, one word after another, is not.\n"
    b"user: So the two should live apart? Then one of them hands over what it has understood.\n"
    b"assistant: Yes. How fast that goes must be measured, machine by machine, 2048 words or 12.\n"
)
_ALPHABET = b"abcdefghijklmnopqrstuvwxyz ,.\n"

# Found by trying; tests/unit/demo/test_tiny_model.py holds what they must achieve.
_LOOK_BACK_SHARPNESS = 12.0
_HASH_GAIN = 3.0
_MILD_GAIN = 1.0
_HEAD_GAIN = 128.0
_EVEN = 0.5


class _Part(NamedTuple):
    """Places `start` to `stop` of a vector of length `of`."""

    start: int
    stop: int
    of: int = _HIDDEN

    @property
    def size(self) -> int:
        return self.stop - self.start


def _all(size: int) -> _Part:
    return _Part(0, size, size)


# The hidden vector, by what its places hold.
_TOKEN = _Part(0, 24)  # which token stands here
_BEFORE = _Part(24, 48)  # which tokens stand before it (layer 1's attention)
_LOCAL = _Part(0, 48)
_CODE = _Part(48, 72)  # a code of these few tokens together (layer 1's MLP)
_AVERAGE = _Part(72, 96)  # the average of the codes of the whole context (layer 2's attention)
_ANSWER = _Part(96, 128)  # what the output reads (layer 2's MLP)

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def make_tiny_model(
    folder: Path, *, seed: int = 0, kv_heads: int = 2, sliding_window: int | None = None
) -> Path:
    """Write the tiny model into `folder` and return it. A folder that is complete is left alone.

    The same arguments give the same bytes on every machine. The files are written beside
    `folder` and moved there whole, so that a reader never sees half a model.

    Args:
        folder: Where the checkpoint goes; its parents are made.
        seed: Other seeds give models that answer differently.
        kv_heads: Key/value heads, a divisor of 4; tensor parallelism needs as many.
        sliding_window: Tokens that layer 1 sees. It looks back `_HEADS` tokens only, so the text
            stays what it is; but vLLM now serves a hybrid model, with two groups of KV layers.

    Raises:
        ValueError: `kv_heads` does not divide 4, or the window is too small for layer 1.
        ModelUnavailable: `folder` holds something else.
    """
    if kv_heads < 1 or _HEADS % kv_heads:
        raise ValueError(f"kv_heads is {kv_heads} and must divide {_HEADS}")
    if sliding_window is not None and sliding_window <= _HEADS:
        raise ValueError(f"sliding_window is {sliding_window} and must be more than {_HEADS}")
    if (folder / "model.safetensors").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        half.chmod(0o755)
        _write(half, seed, kv_heads, sliding_window)
        try:
            os.rename(half, folder)  # noqa: PTH104 - Path.rename says no more, os.rename is the fact
        except OSError as exc:
            if not (folder / "model.safetensors").is_file():  # else a twin was faster: just as good
                raise ModelUnavailable(
                    "the tiny model cannot be put in its folder: something else is there",
                    place=str(folder),
                    cure="name an empty or a new folder",
                ) from exc
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return folder


def _write(folder: Path, seed: int, kv_heads: int, sliding_window: int | None) -> None:
    documents: dict[str, dict[str, Any]] = {
        "config.json": _config(kv_heads, sliding_window),
        "generation_config.json": {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": _MAX_LEN,
            "chat_template": _CHAT_TEMPLATE,
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1, ensure_ascii=True))
    (folder / "model.safetensors").write_bytes(_safetensors(_weights(seed, kv_heads)))


def _config(kv_heads: int, sliding_window: int | None) -> dict[str, Any]:
    hybrid: dict[str, Any] = {}
    if sliding_window is not None:
        # vLLM 0.29 reads both for any Llama (model_executor/models/llama.py).
        hybrid = {
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": sliding_window,
        }
    return {
        **hybrid,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": _HEAD_DIM,
        "vocab_size": _VOCAB,
        "max_position_embeddings": _MAX_LEN,
        "rms_norm_eps": 1e-6,
        "rope_theta": _ROPE_THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": "float32",
        "use_cache": True,
    }


def _tokenizer() -> dict[str, Any]:
    added = [
        {
            "id": token_id,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": special,
        }
        for token_id, text, special in (
            (BOS_ID, "<s>", True),
            (EOS_ID, "</s>", True),
            (EOS_ID + 1, "<think>", False),
            (EOS_ID + 2, "</think>", False),
        )
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {sign: byte for byte, sign in enumerate(_byte_signs())},
            "merges": [],
        },
    }


def _byte_signs() -> list[str]:
    """The printable sign that byte-level tokenizers write for each byte, in byte order.

    The table of GPT-2: printable Latin-1 stands for itself, the rest for signs from U+0100 on.
    Token ids are then the bytes themselves.
    """
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


def _weights(seed: int, kv_heads: int) -> dict[str, Matrix]:
    rng = np.random.Generator(np.random.PCG64(seed))

    def normal(writes: _Part, reads: _Part, gain: float = 1.0) -> Matrix:
        """A random matrix that reads one part of its input and writes one part of its output."""
        matrix = np.zeros((writes.of, reads.of), dtype=np.float32)
        drawn = rng.standard_normal((writes.size, reads.size)) * (gain / np.sqrt(reads.size))
        matrix[writes.start : writes.stop, reads.start : reads.stop] = drawn
        return matrix

    ones = np.ones(_HIDDEN, dtype=np.float32)
    embedding = np.zeros((_VOCAB, _HIDDEN), dtype=np.float32)
    embedding[:, : _TOKEN.stop] = np.where(rng.random((_VOCAB, _TOKEN.stop)) < _EVEN, -1.0, 1.0)
    embedding[:, 0] = 1.0  # the constant that layer 1 makes its queries and keys of
    head = np.zeros((_VOCAB, _HIDDEN), dtype=np.float32)
    spoken = _Part(0, len(_ALPHABET), len(_ALPHABET))
    head[list(_ALPHABET)] = normal(spoken, _ANSWER, _HEAD_GAIN)
    heads, units = _all(_HEADS * _HEAD_DIM), _all(_INTERMEDIATE)
    kv = _all(kv_heads * _HEAD_DIM)
    mild = normal(heads, _LOCAL, _MILD_GAIN).reshape(_HEADS, _HEAD_DIM, _HIDDEN)
    mild[::2] = 0.0  # even heads weigh all tokens alike, odd ones a little by their content
    first, second = "model.layers.0", "model.layers.1"
    values_of_code = normal(kv, _CODE)
    weights: dict[str, Matrix] = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": ones,
        "lm_head.weight": head,
        f"{first}.self_attn.q_proj.weight": _look_back_queries(),
        f"{first}.self_attn.k_proj.weight": _constant_keys(kv_heads),
        f"{first}.self_attn.v_proj.weight": normal(kv, _TOKEN),
        f"{first}.self_attn.o_proj.weight": normal(_BEFORE, heads),
        f"{first}.mlp.gate_proj.weight": normal(units, _LOCAL, _HASH_GAIN),
        f"{first}.mlp.up_proj.weight": normal(units, _LOCAL),
        f"{first}.mlp.down_proj.weight": normal(_CODE, units),
        f"{second}.self_attn.q_proj.weight": mild.reshape(-1, _HIDDEN),
        f"{second}.self_attn.k_proj.weight": normal(kv, _CODE),
        f"{second}.self_attn.v_proj.weight": values_of_code,
        f"{second}.self_attn.o_proj.weight": normal(_AVERAGE, heads),
        # What stands here picks (gate) what of the average speaks (up): no answer is favoured.
        f"{second}.mlp.gate_proj.weight": normal(units, _LOCAL, _HASH_GAIN),
        f"{second}.mlp.up_proj.weight": normal(units, _AVERAGE),
        f"{second}.mlp.down_proj.weight": normal(_ANSWER, units),
    }
    for layer in (first, second):
        weights[f"{layer}.input_layernorm.weight"] = ones
        weights[f"{layer}.post_attention_layernorm.weight"] = ones
    # What all codes have in common would drown the average: it is taken off again, by way of the
    # constant at place 0.
    values_of_code[:, 0] = np.round(-values_of_code @ _usual_code(weights), 4)
    return weights


def _usual_code(weights: dict[str, Matrix]) -> NDArray[np.float64]:
    """What layer 1 leaves in the hidden vector for ordinary text, on average, code places only.

    Rounded, so that two machines whose matrix products differ in the last bit agree on it.
    """
    wide = {name: matrix.astype(np.float64) for name, matrix in weights.items()}
    first = "model.layers.0"
    tokens = wide["model.embed_tokens.weight"][list(_SAMPLE)]
    values = _normed(tokens) @ wide[f"{first}.self_attn.v_proj.weight"].T
    by_head = values.reshape(len(_SAMPLE), -1, _HEAD_DIM)
    kv_heads = by_head.shape[1]
    seen = [  # as _look_back_queries arranges it
        np.roll(by_head[:, number * kv_heads // _HEADS], number + 1, axis=0)
        for number in range(_HEADS)
    ]
    hidden = tokens + np.hstack(seen) @ wide[f"{first}.self_attn.o_proj.weight"].T
    normed = _normed(hidden)
    gate = normed @ wide[f"{first}.mlp.gate_proj.weight"].T
    units = gate / (1 + np.exp(-gate)) * (normed @ wide[f"{first}.mlp.up_proj.weight"].T)
    codes = units @ wide[f"{first}.mlp.down_proj.weight"].T
    usual: NDArray[np.float64] = np.round(codes.mean(axis=0), 4)
    return usual


def _normed(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = vectors / np.sqrt((vectors**2).mean(axis=-1, keepdims=True))
    return normed


def _constant_keys(kv_heads: int) -> Matrix:
    """Every token has the same key, (1, 0) in each RoPE plane, times the sharpness."""
    keys = np.zeros((kv_heads, _HEAD_DIM, _HIDDEN), dtype=np.float32)
    keys[:, : _HEAD_DIM // 2, 0] = _LOOK_BACK_SHARPNESS
    return keys.reshape(-1, _HIDDEN)


def _look_back_queries() -> Matrix:
    """Head h asks for the token h + 1 back.

    RoPE turns the planes of query and key by angle x position. Turned back by `distance` turns
    beforehand, query and key point the same way exactly at that distance.
    """
    half = _HEAD_DIM // 2
    angles = _ROPE_THETA ** (-np.arange(half) / half)
    queries = np.zeros((_HEADS, _HEAD_DIM, _HIDDEN), dtype=np.float32)
    for number in range(_HEADS):
        distance = number + 1
        queries[number, :half, 0] = _LOOK_BACK_SHARPNESS * np.cos(angles * distance)
        queries[number, half:, 0] = -_LOOK_BACK_SHARPNESS * np.sin(angles * distance)
    return queries.reshape(-1, _HIDDEN)


def _safetensors(weights: dict[str, Matrix]) -> bytes:
    """The safetensors file: header length, JSON header, then the tensors end to end.

    https://github.com/huggingface/safetensors#format
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name in sorted(weights):
        data = weights[name].astype("<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(weights[name].shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + bytes(body)
