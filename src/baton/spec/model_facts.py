"""What can be known of a model without downloading it: a folder, the hub cache, or `--online`.

Everything comes from `config.json` and the sizes of the weight files. Names are read as vLLM 0.29
reads them (`transformers_utils/model_arch_config_convertor.py`); what a config leaves to the
defaults of its class in transformers stays unknown here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from baton.spec.model_layers import count, layer_kinds, state_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "fp8_per_token_head": 1,
    "int8_per_token_head": 1, "int4_per_token_head": 0.5, "nvfp4": 0.5, "nvfp4_4over6": 0.5,
}  # fmt: skip
# Defaults of classes in transformers whose published configs leave them out (`Gemma3TextConfig`).
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
        "head_dim": 256, "max_position_embeddings": 131_072, "sliding_window": 4_096,
    },
}  # fmt: skip
# vLLM 0.29 `is_deepseek_mla`: only these run as MLA; others with a `kv_lora_rank` do not.
_MLA_TYPES = frozenset(
    {
        "axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots3_note",
        "glm_moe_dsa", "glm4_moe_lite", "kimi_k2", "kimi_linear", "longcat_flash",
        "longcat_flash_ngram", "pangu_ultra_moe", "bailing_hybrid", "hy_v4",
    }
)  # fmt: skip


@dataclass(frozen=True)
class ModelFacts:
    """Shape and size of a model. Sizes in bytes, lengths in tokens; 0 means unknown."""

    source: str
    model_type: str = ""
    layers: int = 0
    """Layers that keep KV or a state; one that keeps both counts twice."""
    attention_heads: int = 0
    kv_heads: int = 1
    head_dim: int = 0
    max_position_embeddings: int | None = None
    """The longest context that vLLM takes, RoPE scaling included."""
    weights_bytes: int = 0
    dtype: str = ""
    mla_dim: int = 0
    """Width of MLA's compressed KV (`kv_lora_rank` and the rope part); 0 without MLA."""
    sliding_window: int | None = None
    sliding_layers: int = 0
    """Layers that attend only to the last `sliding_window` tokens."""
    mamba_layers: int = 0
    """Layers with a state of fixed size instead of KV (Mamba, linear attention)."""
    state_bytes_per_layer: int = 0
    """Size of that state for one sequence, as far as the config tells."""

    @property
    def is_mla(self) -> bool:
        """Whether every TP worker holds the same compressed KV."""
        return self.mla_dim > 0

    @property
    def has_mamba(self) -> bool:
        """Whether some layers keep a state instead of KV."""
        return self.mamba_layers > 0

    @property
    def is_hybrid(self) -> bool:
        """Whether vLLM keeps more than one kind of KV cache for it."""
        return self.has_mamba or self.sliding_layers > 0

    @property
    def full_layers(self) -> int:
        """Layers that keep KV of every token."""
        return max(self.layers - self.sliding_layers - self.mamba_layers, 0)

    def kv_bytes_per_layer_token(self, kv_dtype: str = "auto") -> float:
        """Bytes of KV that one layer keeps for one token, over all TP workers."""
        each = DTYPE_BYTES.get(self.dtype if kv_dtype == "auto" else kv_dtype, 2)
        if self.is_mla:
            return self.mla_dim * each
        return 2 * self.kv_heads * self.head_dim * each

    def kv_bytes(self, tokens: int, kv_dtype: str = "auto") -> int:
        """Bytes that a sequence of so many tokens keeps, over all TP workers.

        Layers with a window keep its tokens only, layers with a state keep the state. vLLM rounds
        up to blocks and, for hybrid models, to groups of layers, so the real figure is a little
        higher.
        """
        windowed = min(tokens, self.sliding_window or tokens)
        kept = self.full_layers * tokens + self.sliding_layers * windowed
        states = self.mamba_layers * self.state_bytes_per_layer
        return int(kept * self.kv_bytes_per_layer_token(kv_dtype)) + states

    def kv_bytes_per_token(self, kv_dtype: str = "auto") -> int:
        """What each token adds while no window is full: the figure that a handoff moves."""
        layers = self.full_layers + self.sliding_layers
        return int(layers * self.kv_bytes_per_layer_token(kv_dtype))


def is_local(source: str) -> bool:
    """Whether a `model_source` can only mean a folder."""
    return source.startswith(("/", "~", "./", "../"))


def find_model(source: str, env: Mapping[str, str] | None = None) -> Path | None:
    """The folder of a model that is on this machine: a path, or a snapshot in the hub cache."""
    env = os.environ if env is None else env
    if "://" in source or not source.strip() or "\0" in source:
        return None
    try:
        folder = Path(source).expanduser()
        if (folder / "config.json").is_file():
            return folder
        return _in_hub_cache(source, env)
    except (OSError, RuntimeError, ValueError):
        return None


def _in_hub_cache(name: str, env: Mapping[str, str]) -> Path | None:
    home = env.get("HF_HOME") or str(Path("~/.cache/huggingface").expanduser())
    cache = Path(env.get("HF_HUB_CACHE") or Path(home) / "hub")
    repo = cache / ("models--" + name.replace("/", "--"))
    reference = repo / "refs" / "main"
    candidates = []
    if reference.is_file():
        candidates.append(repo / "snapshots" / reference.read_text(encoding="utf-8").strip())
    if (repo / "snapshots").is_dir():
        candidates.extend(sorted((repo / "snapshots").iterdir()))
    return next((c for c in candidates if (c / "config.json").is_file()), None)


def read_facts(folder: Path) -> ModelFacts | None:
    """The facts of the model in a folder, or None when its config cannot be read."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    return facts_from_config(config, str(folder), weights_bytes(folder))


def facts_from_config(config: dict[str, Any], source: str, weights: int = 0) -> ModelFacts:
    """Facts from what a `config.json` holds."""
    text = next(
        (config[k] for k in ("text_config", "language_config") if isinstance(config.get(k), dict)),
        None,
    )
    inner: dict[str, Any] = {**config, **text} if text else config
    kind = str(inner.get("model_type") or config.get("model_type") or "")
    inner = {**_DEFAULTS.get(kind, {}), **inner}
    heads = count(inner, "num_attention_heads", "n_head", "num_heads")
    kinds = layer_kinds(inner, kind, count(inner, "num_hidden_layers", "n_layer", "num_layers"))
    dtype = str(config.get("dtype") or config.get("torch_dtype") or inner.get("dtype") or "")
    compressed = count(inner, "kv_lora_rank") if kind in _MLA_TYPES else 0
    return ModelFacts(
        source=source,
        model_type=kind,
        layers=kinds.kept,
        attention_heads=heads,
        kv_heads=_kv_heads(inner, heads),
        head_dim=_head_dim(inner, heads),
        max_position_embeddings=_longest(inner, kind),
        weights_bytes=weights,
        dtype=dtype,
        mla_dim=compressed + count(inner, "qk_rope_head_dim") if compressed else 0,
        sliding_window=count(inner, "sliding_window") or None,
        sliding_layers=kinds.sliding,
        mamba_layers=kinds.states,
        state_bytes_per_layer=state_bytes(inner, kind, DTYPE_BYTES.get(dtype, 2), DTYPE_BYTES),
    )


def _kv_heads(config: Mapping[str, Any], heads: int) -> int:
    found = count(
        config, "n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num",
        "num_attention_groups",
    )  # fmt: skip
    if not found and config.get("multi_query") is True:
        return 1
    return found or max(heads, 1)


def _head_dim(config: Mapping[str, Any], heads: int) -> int:
    found = count(config, "head_dim", "hidden_size_per_head", "kv_channels")
    hidden = count(config, "hidden_size", "n_embd", "d_model")
    return found or (hidden // heads if heads else 0)


def _longest(config: Mapping[str, Any], kind: str) -> int | None:
    """The longest context, as vLLM 0.29 `_get_and_verify_max_len` derives it."""
    names = (
        "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
        "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len",
    )  # fmt: skip
    found = [count(config, name) for name in names if count(config, name)]
    longest = float(count(config, "model_max_length") or min(found, default=0))
    for rope in _ropes(config):
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        factor = rope.get("factor")
        if "gemma3" in kind or rope_type in {"su", "longrope", "llama3"}:
            continue
        if rope_type == "yarn":
            longest = float(count(rope, "original_max_position_embeddings") or longest)
        if isinstance(factor, (int, float)) and factor > 0:
            longest *= factor
            break
    return int(longest) or None


def _ropes(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, dict):
        return []
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return nested or [rope]


def weights_bytes(folder: Path) -> int:
    """Size of the weights, from the safetensors index or the files themselves."""
    index = folder / "model.safetensors.index.json"
    try:
        size = total_size(json.loads(index.read_text(encoding="utf-8"))) if index.is_file() else 0
        if size:
            return size
    except (OSError, ValueError):
        pass
    for pattern in ("*.safetensors", "*.bin", "*.gguf"):
        size = sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())
        if size:
            return size
    return 0


def total_size(index: Any) -> int:
    """`metadata.total_size` of a safetensors index, 0 when it is not there."""
    metadata = index.get("metadata") if isinstance(index, dict) else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return int(size) if isinstance(size, (int, float)) else 0
