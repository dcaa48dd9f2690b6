"""A published `config.json` as its class reads it: names of today, and what is left to defaults.

Gemma 3 leaves its vocabulary out, LLaVA all of its Llama; MPT and DBRX call layers otherwise; Llama
4's windows are chunks. From the classes of transformers 5 (`models/*/configuration_*.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.errors import ModelNotPlanned
from baton.spec.model_layers import count

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT_KEYS = ("text_config", "language_config", "llm_config")
_LLAMA = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000,
}  # fmt: skip
# Of a text part that says nothing else. At the top of a file nobody leaves these out.
_INSIDE: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8},
    "qwen2": {**_LLAMA, "intermediate_size": 22016, "vocab_size": 151_936},
}
_ANYWHERE: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "vocab_size": 262_208, "max_position_embeddings": 131_072, "sliding_window": 4096,
    },
}  # fmt: skip
_TODAY = {
    "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "padded_vocab_size": "vocab_size",
}  # fmt: skip
_DBRX = {
    ("attn_config", "kv_n_heads"): "num_key_value_heads",
    ("ffn_config", "ffn_hidden_size"): "intermediate_size",
    ("ffn_config", "moe_num_experts"): "num_experts",
    ("ffn_config", "moe_top_k"): "num_experts_per_tok",
}
_MAMBA2 = {
    "num_heads": "mamba_num_heads", "head_dim": "mamba_head_dim", "state_size": "ssm_state_size",
}  # fmt: skip
_MOST_LAYERS = 10_000
# Classes whose head is their embedding unless the file says otherwise.
_TIED = frozenset(
    {
        "bloom", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "falcon", "falcon_mamba", "gpt2",
        "gpt_bigcode", "lfm2", "mamba", "mpt", "opt", "smollm3",
    }
)  # fmt: skip
_WRITES = ("CausalLM", "ConditionalGeneration", "LMHeadModel")


def as_its_class_reads(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The config of the language model in a file, flat, with nothing left to defaults that counts.

    Raises:
        ModelNotPlanned: It writes no text token by token, or has more layers than a model has.
    """
    text = _text_part(config)
    _check_writes(config, source)
    found = {key: value for key, value in config.items() if key not in TEXT_KEYS}
    found.update(text)
    kind = str(found.get("model_type") or "")
    if text:
        found = {**_INSIDE.get(kind, {}), **found}
    found = {**_ANYWHERE.get(kind, {}), **found}
    _rename(found, kind)
    if count(found, "num_hidden_layers", "n_layer", "num_layers") > _MOST_LAYERS:
        raise ModelNotPlanned(
            f"the config names more than {_MOST_LAYERS:,} layers", place=source,
            cure="give the config.json of a language model",
        )  # fmt: skip
    tied = config.get("tie_word_embeddings", found.get("tie_word_embeddings"))
    default = kind in _TIED or kind.startswith("gemma")
    found["tie_word_embeddings"] = default if tied is None else bool(tied)
    # vLLM 0.29 `_resolve_auto_dtype` serves float32 as bfloat16.
    found["dtype"] = "bfloat16" if stored_as_float32(config) else _named_dtype(config)
    return found


def stored_as_float32(config: Mapping[str, Any]) -> bool:
    """Whether the files of the weights are twice as large as what is served."""
    return _named_dtype(config) in {"float32", "float"}


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((config[key] for key in TEXT_KEYS if isinstance(config.get(key), dict)), {})


def _named_dtype(config: Mapping[str, Any]) -> str:
    text = _text_part(config)
    names = (part.get(key) for part in (config, text) for key in ("dtype", "torch_dtype"))
    return next((str(name) for name in names if name), "")


def _check_writes(config: Mapping[str, Any], source: str) -> None:
    names = config.get("architectures")
    named = [str(name) for name in names] if isinstance(names, list) else []
    encoder = config.get("is_encoder_decoder") is True or config.get("model_type") == "t5"
    writes = not named or any(part in name for name in named for part in _WRITES)
    if encoder or not writes:
        what = ", ".join(named) or str(config.get("model_type"))
        raise ModelNotPlanned(
            f"{what:.100} is no model that writes text from a prompt's KV alone", place=source,
            cure="give the config.json of a decoder: …ForCausalLM or …ForConditionalGeneration",
        )  # fmt: skip


def _rename(found: dict[str, Any], kind: str) -> None:
    for old, new in _TODAY.items():
        if not count(found, new) and count(found, old):
            found[new] = found[old]
    for (part, old), new in _DBRX.items():
        nested = found.get(part)
        if isinstance(nested, dict) and not count(found, new) and count(nested, old):
            found[new] = nested[old]
    if kind == "mamba2":
        for old, new in _MAMBA2.items():
            found.setdefault(new, found.get(old))
    chunk, layers = count(found, "attention_chunk_size"), count(found, "num_hidden_layers")
    if kind == "llama4_text" and chunk and 0 < layers <= _MOST_LAYERS:
        found.setdefault("sliding_window", chunk)
        if not found.get("layer_types"):  # every fourth layer sees everything
            found["layer_types"] = [
                "full_attention" if (layer + 1) % 4 == 0 else "chunked_attention"
                for layer in range(layers)
            ]
