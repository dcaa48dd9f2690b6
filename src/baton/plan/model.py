"""A model's shape, from its config alone: parameters, FLOPs, bytes of weights, bytes of KV.

KV per token (GQA, MLA, windows, states) is `baton.spec.model_facts`' business; parameters are
counted here, as the classes of transformers lay them out. A folder and a bare `config.json` are
only read; a Hugging Face id is looked for in the local cache and then asked for by HTTP: two small
files, no weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baton.errors import ModelUnavailable
from baton.spec.hub import Unreachable, fetch_facts, get_json
from baton.spec.model_facts import DTYPE_BYTES, ModelFacts, facts_from_config, find_model, is_local
from baton.spec.model_facts import weights_bytes as size_of_weights
from baton.spec.model_layers import count

if TYPE_CHECKING:
    from collections.abc import Mapping

# Bytes a weight by `quantization_config.quant_method`; scales and zero points are in it where they
# are a fixed share (MXFP4: one byte of scale for 32 weights; NVFP4: one for 16).
_QUANTISED = {"fp8": 1.0, "fbgemm_fp8": 1.0, "mxfp4": 0.53, "modelopt_fp4": 0.5625, "int8": 1.0}
_BY_BITS = frozenset({"awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round", "bitsandbytes"})
NOT_READ = " (taken as not quantised)"
_BYTE = 8
_SCALES = 1.06
"""Scales and zero points of groups of 128 weights, and layers that are left as they are."""


@dataclass(frozen=True)
class ModelShape:
    """What the roofline needs to know of a model. Counts are of parameters, not bytes."""

    name: str
    source: str
    facts: ModelFacts
    hidden_size: int
    vocab_size: int
    parameters: float
    """All of them, embeddings included."""
    active_parameters: float
    """Those of the layers that one token meets: without embeddings and head."""
    expert_parameters: float
    """Of all experts of all layers; 0 for a dense model."""
    attention_width: int
    """Of one head's query and value together: what a query over a key costs."""
    experts: int
    experts_per_token: int
    bytes_per_weight: float
    """Of the layers; embeddings and head stay in `embedding_bytes`."""
    embedding_bytes: float
    computes_fp8: bool
    """Whether its products run on FP8 tensor cores, where there are any."""
    quantisation: str

    @property
    def head_parameters(self) -> float:
        """The output head: read in every step, computed for sampled tokens only."""
        return float(self.hidden_size * self.vocab_size)

    @property
    def weights_bytes(self) -> float:
        """What all workers hold together: the files' size where it is known."""
        if self.facts.weights_bytes:
            return float(self.facts.weights_bytes)
        layers = self.parameters - self.embedding_parameters
        return layers * self.bytes_per_weight + self.embedding_bytes

    @property
    def embedding_parameters(self) -> float:
        """Embedding, and head where it has weights of its own."""
        each = DTYPE_BYTES.get(self.facts.dtype, 2)
        return self.embedding_bytes / each

    def layer_bytes_read(self, tokens: int) -> float:
        """Bytes of layer weights that a step of so many tokens reads: of experts, those it meets.

        Experts are taken as chosen evenly: `1 - (1 - k/E)^tokens` of them are met.
        """
        layers = self.parameters - self.embedding_parameters
        if self.experts and self.expert_parameters:
            missed = (1 - self.experts_per_token / self.experts) ** max(tokens, 1)
            layers -= self.expert_parameters * missed
        return layers * self.bytes_per_weight

    @property
    def attention_flops_per_pair(self) -> float:
        """FLOPs of one query over one key in all layers that keep KV: two products.

        Layers with a window count in full: for prompts beyond it this is too much.
        """
        facts = self.facts
        layers = facts.full_layers + facts.sliding_layers
        return 2.0 * layers * facts.attention_heads * self.attention_width

    @property
    def longest_context(self) -> int | None:
        """Tokens, or None when the config does not say."""
        return self.facts.max_position_embeddings


def load_model(source: str) -> ModelShape:
    """The shape of a folder, a config file, or a Hugging Face id.

    Raises:
        ModelUnavailable: It is not there, cannot be read, or names no layers.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return shape_from_config(_read(path), source)
    folder = find_model(source)
    if folder is not None:
        return shape_from_config(_read(folder / "config.json"), source, size_of_weights(folder))
    if is_local(source) or source.endswith(".json"):
        raise ModelUnavailable(
            f"there is no model at `{source}`", cure="name a config.json, or a folder with one"
        )
    try:
        config = get_json(source, "config.json")
        weights = fetch_facts(source).weights_bytes
    except Unreachable as exc:
        raise ModelUnavailable(
            f"the config of `{source}` could not be read: {exc}",
            cure="give --model a folder or a config.json instead: nothing is downloaded for those",
        ) from exc
    if not isinstance(config, dict):
        raise ModelUnavailable(f"config.json of `{source}` is no mapping")
    return shape_from_config(config, source, weights)


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelUnavailable(
            f"the model's config cannot be read: {exc}", place=str(path)
        ) from exc
    if not isinstance(config, dict):
        raise ModelUnavailable("the model's config is no mapping", place=str(path))
    return config


def shape_from_config(config: dict[str, Any], source: str, weights: int = 0) -> ModelShape:
    """The shape that a `config.json` describes.

    Raises:
        ModelUnavailable: It names no layers, heads or hidden size: it is no language model.
    """
    facts = facts_from_config(config, source, weights)
    text: dict[str, Any] = next(
        (config[k] for k in ("text_config", "language_config") if isinstance(config.get(k), dict)),
        {},
    )
    inner: dict[str, Any] = {**config, **text}
    hidden = count(inner, "hidden_size", "n_embd", "d_model")
    vocab = count(inner, "vocab_size")
    layers = count(inner, "num_hidden_layers", "n_layer", "num_layers") or facts.layers
    if not (hidden and vocab and layers and (facts.attention_heads or facts.has_mamba)):
        raise ModelUnavailable(
            "the config does not say the model's layers, heads, hidden size and vocabulary",
            place=source,
            cure="give the config.json of a language model",
        )
    attention = _attention_parameters(inner, facts, hidden)
    dense, expert, experts, active = _feed_forward(inner, hidden)
    moe_layers = _moe_layers(inner, layers) if experts else 0
    total = layers * attention + (layers - moe_layers) * dense[0] + moe_layers * dense[1]
    met = total + moe_layers * active * expert
    routed = float(moe_layers * experts * expert)
    tied = bool(config.get("tie_word_embeddings", inner.get("tie_word_embeddings", False)))
    embedding = hidden * vocab * (1 if tied else 2)
    each = float(DTYPE_BYTES.get(facts.dtype, 2))
    method, per_weight, fp8 = _quantisation(config, inner, each)
    return ModelShape(
        name=str(config.get("_name_or_path") or source),
        source=source,
        facts=facts,
        hidden_size=hidden,
        vocab_size=vocab,
        parameters=total + routed + embedding,
        active_parameters=met,
        expert_parameters=routed,
        attention_width=_attention_width(inner, facts),
        experts=experts,
        experts_per_token=active,
        bytes_per_weight=per_weight,
        embedding_bytes=embedding * each,
        computes_fp8=fp8,
        quantisation=method,
    )


def _attention_width(config: Mapping[str, Any], facts: ModelFacts) -> int:
    if facts.is_mla:  # prefill computes with the keys unfolded
        names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return sum(count(config, name) for name in names)
    return 2 * facts.head_dim


def _attention_parameters(config: Mapping[str, Any], facts: ModelFacts, hidden: int) -> float:
    heads = max(facts.attention_heads, 1)
    if facts.is_mla:
        compressed = count(config, "kv_lora_rank")
        rope = count(config, "qk_rope_head_dim")
        nope, value = count(config, "qk_nope_head_dim"), count(config, "v_head_dim")
        q_rank = count(config, "q_lora_rank")
        query = heads * (nope + rope)
        queries = hidden * q_rank + q_rank * query if q_rank else hidden * query
        keys = hidden * (compressed + rope) + compressed * heads * (nope + value)
        return float(queries + keys + heads * value * hidden)
    return float(hidden * facts.head_dim * (2 * heads + 2 * facts.kv_heads))


def _feed_forward(
    config: Mapping[str, Any], hidden: int
) -> tuple[tuple[float, float], float, int, int]:
    """(dense layer, what an MoE layer has beside its experts), one expert, experts, active."""
    inner = count(config, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
    gated = str(config.get("hidden_act") or config.get("hidden_activation") or "silu") not in {
        "gelu_new", "gelu", "relu",
    }  # fmt: skip
    products = 3 if gated else 2
    experts = count(config, "num_local_experts", "n_routed_experts", "num_experts")
    active = count(config, "num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")
    if experts <= 1 or not active:
        return (float(products * hidden * inner), 0.0), 0.0, 0, 0
    width = count(config, "moe_intermediate_size", "expert_ffn_hidden_size") or inner
    shared = count(config, "n_shared_experts", "num_shared_experts") * width
    shared = shared or count(config, "shared_expert_intermediate_size")
    beside = products * hidden * shared + hidden * experts
    return (
        (float(products * hidden * inner), float(beside)),
        float(products * hidden * width),
        experts,
        active,
    )


def _moe_layers(config: Mapping[str, Any], layers: int) -> int:
    first = count(config, "first_k_dense_replace")
    step = count(config, "decoder_sparse_step", "moe_layer_freq", "interleave_moe_layer_step") or 1
    only_dense = config.get("mlp_only_layers")
    left_out = len(only_dense) if isinstance(only_dense, list) else 0
    return max((layers - first - left_out) // step, 0)


def _quantisation(
    config: Mapping[str, Any], inner: Mapping[str, Any], each: float
) -> tuple[str, float, bool]:
    """(name, bytes a weight, whether products run in FP8)."""
    found = config.get("quantization_config") or inner.get("quantization_config")
    if not isinstance(found, dict):
        return "none", each, False
    method = str(found.get("quant_method") or "").lower()
    if method in _QUANTISED:
        return method, _QUANTISED[method], "fp8" in method
    bits = count(found, "bits", "w_bit")
    if method in _BY_BITS:
        bits = bits or (4 if found.get("load_in_4bit") else 8)
        return f"{method} {bits} bit", bits / 8 * _SCALES, False
    grouped = _grouped(found)
    if grouped is not None:
        bits, fp8 = grouped
        return f"{method} {bits} bit", bits / 8 * (1.0 if fp8 else _SCALES), fp8
    algorithm = str(found.get("quant_algo", "")).lower()
    if "fp8" in algorithm or "fp4" in algorithm:
        fp8 = "fp8" in algorithm
        return f"{method} {algorithm}", 1.0 if fp8 else _QUANTISED["modelopt_fp4"], fp8
    return f"{method or 'unknown'}{NOT_READ}", each, False


def _grouped(found: Mapping[str, Any]) -> tuple[int, bool] | None:
    """Bits and whether they are FP8, as compressed-tensors writes it; None for other methods."""
    groups = found.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        bits = count(weights, "num_bits") if isinstance(weights, dict) else 0
        if bits and isinstance(weights, dict):
            return bits, bits == _BYTE and weights.get("type") == "float"
    return None
