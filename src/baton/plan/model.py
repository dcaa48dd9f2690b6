"""A model's shape, from its config alone: parameters, FLOPs, bytes of weights, bytes of KV.

KV per token (GQA, MLA, windows, states) is `baton.spec.model_facts`' business; `published` fills in
what a config leaves to its class, and `parameters` counts. A folder and a bare `config.json` are
only read; a Hugging Face id is looked for in the local cache and then asked for by HTTP: two small
files, no weights.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baton.errors import ModelNotPlanned
from baton.plan.parameters import count_parameters
from baton.plan.published import as_its_class_reads, stored_as_float32
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
_NO_NETWORK = "give --model a folder or a config.json instead: nothing is downloaded for those"
_BYTE = 8
_FP4_BITS = 4
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
    split_evenly: tuple[int, ...] = ()
    """Counts beside heads that TP has to divide: state heads, blocks of quantised weights."""

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
        ModelNotPlanned: It is not there, cannot be read, or names no layers.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return shape_from_config(_read(path), source)
    folder = find_model(source)
    if folder is not None:
        return shape_from_config(_read(folder / "config.json"), source, size_of_weights(folder))
    if is_local(source) or source.endswith(".json"):
        raise ModelNotPlanned(
            f"there is no model at `{source}`", cure="name a config.json, or a folder with one"
        )
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "on", "yes", "true"}:
        raise ModelNotPlanned(
            f"`{source}` is not on this machine, and HF_HUB_OFFLINE is set", cure=_NO_NETWORK
        )
    try:
        config = get_json(source, "config.json")
        weights = fetch_facts(source).weights_bytes
    except Unreachable as exc:
        raise ModelNotPlanned(
            f"the config of `{source}` could not be read: {exc}",
            cure=_NO_NETWORK,
        ) from exc
    if not isinstance(config, dict):
        raise ModelNotPlanned(f"config.json of `{source}` is no mapping")
    return shape_from_config(config, source, weights)


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise ModelNotPlanned(f"the model's config cannot be read: {exc}", place=str(path)) from exc
    if not isinstance(config, dict):
        raise ModelNotPlanned("the model's config is no mapping", place=str(path))
    return config


def shape_from_config(config: dict[str, Any], source: str, weights: int = 0) -> ModelShape:
    """The shape that a `config.json` describes.

    Raises:
        ModelNotPlanned: It names no layers, heads or hidden size: it is no language model.
    """
    inner = as_its_class_reads(config, source)
    if stored_as_float32(config):
        weights //= 2
    facts = facts_from_config(inner, source, weights)
    hidden = count(inner, "hidden_size", "n_embd", "d_model")
    vocab = count(inner, "vocab_size")
    if not (hidden and vocab and facts.layers and (facts.attention_heads or facts.has_mamba)):
        raise ModelNotPlanned(
            "the config does not say the model's layers, heads, hidden size and vocabulary",
            place=source,
            cure="give the config.json of a language model",
        )
    layers = count_parameters(inner, facts, hidden)
    embedding = hidden * vocab * (1 if inner["tie_word_embeddings"] else 2)
    each = float(DTYPE_BYTES.get(facts.dtype, 2))
    method, per_weight, fp8 = _quantisation(inner, each)
    if method.endswith(NOT_READ) and weights > embedding * each:
        per_weight = (weights - embedding * each) / layers.total
    return ModelShape(
        name=str(config.get("_name_or_path") or source),
        source=source,
        facts=facts,
        hidden_size=hidden,
        vocab_size=vocab,
        parameters=layers.total + embedding,
        active_parameters=layers.active,
        expert_parameters=layers.experts_all,
        attention_width=_attention_width(inner, facts),
        experts=layers.experts,
        experts_per_token=layers.experts_per_token,
        bytes_per_weight=per_weight,
        embedding_bytes=embedding * each,
        computes_fp8=fp8,
        quantisation=method,
        split_evenly=_split_evenly(inner, layers.experts > 0),
    )


def _attention_width(config: Mapping[str, Any], facts: ModelFacts) -> int:
    if facts.is_mla:  # prefill computes with the keys unfolded
        names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        return sum(count(config, name) for name in names)
    return 2 * facts.head_dim


def _split_evenly(config: Mapping[str, Any], has_experts: bool) -> tuple[int, ...]:
    names = ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "linear_num_key_heads",
             "linear_num_value_heads")  # fmt: skip
    heads = [count(config, name) for name in names]
    found = config.get("quantization_config")
    block = 0
    if isinstance(found, dict):
        # FP8 in blocks of 128 x 128, AWQ and GPTQ in groups: a worker's part is whole blocks
        # (vLLM 0.29 `layers/quantization/fp8.py`, `utils/marlin_utils.py`).
        blocks = found.get("weight_block_size")
        block = blocks[0] if isinstance(blocks, list) and blocks else count(found, "group_size")
    widths = [count(config, "intermediate_size")]
    if has_experts:
        widths = [count(config, "moe_intermediate_size") or widths[0]]
    if not isinstance(block, int) or block <= 0:
        return tuple(heads)
    return (*heads, *(width // block for width in widths if width % block == 0))


def _quantisation(config: Mapping[str, Any], each: float) -> tuple[str, float, bool]:
    """(name, bytes a weight, whether products run in FP8)."""
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return "none", each, False
    method = str(found.get("quant_method") or "").lower()
    if method in _QUANTISED:
        return method, _QUANTISED[method], "fp8" in method
    bits = count(found, "bits", "w_bit")
    if method in _BY_BITS:
        bits = bits or (4 if found.get("load_in_4bit") else 8)
        return f"{method} {bits} bit", bits / _BYTE * _SCALES, False
    grouped = _grouped(found, method)
    if grouped is not None:
        return grouped
    algorithm = str(found.get("quant_algo", "")).lower()
    if "fp8" in algorithm or "fp4" in algorithm:
        fp8 = "fp8" in algorithm
        return f"{method} {algorithm}", 1.0 if fp8 else _QUANTISED["modelopt_fp4"], fp8
    return f"{method or 'unknown'}{NOT_READ}", each, False


def _grouped(found: Mapping[str, Any], method: str) -> tuple[str, float, bool] | None:
    """As compressed-tensors writes it; None for other methods."""
    groups = found.get("config_groups")
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict) or not (bits := count(weights, "num_bits")):
            continue
        if weights.get("type") != "float":
            return f"{method} {bits} bit", bits / _BYTE * _SCALES, False
        if bits == _FP4_BITS:
            return f"{method} FP4", _QUANTISED["modelopt_fp4"], False
        return f"{method} FP{bits}", bits / _BYTE, bits == _BYTE
    return None
