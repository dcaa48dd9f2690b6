"""What can be known of a model without downloading it: a folder, the hub cache, or `--online`.

Everything comes from `config.json` and the headers of the weight files.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAMBA_TYPES = ("mamba", "ssm", "linear_attention", "gdn", "kda", "recurrent", "conv")


@dataclass(frozen=True)
class ModelFacts:
    """Shape and size of a model. Sizes in bytes, lengths in tokens."""

    source: str
    model_type: str = ""
    architectures: tuple[str, ...] = ()
    layers: int = 0
    attention_heads: int = 0
    kv_heads: int = 1
    head_dim: int = 0
    max_position_embeddings: int | None = None
    weights_bytes: int = 0
    dtype: str = ""
    mla_dim: int = 0
    """Width of the compressed KV of MLA (kv_lora_rank + rope part), 0 without MLA."""
    sliding_window: int | None = None
    sliding_layers: int = 0
    """Layers that attend only to the last `sliding_window` tokens."""
    mamba_layers: int = 0
    """Layers with a state of fixed size instead of KV."""

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


def facts_from_config(config: dict[str, Any], source: str, weights: int) -> ModelFacts:
    """Facts from the text of a `config.json`, for any architecture that names things as most do."""
    text = config.get("text_config")
    inner: dict[str, Any] = {**config, **text} if isinstance(text, dict) else config
    heads = _count(inner, "num_attention_heads", "n_head", "num_heads")
    kv_heads = _count(inner, "num_key_value_heads", "multi_query_group_num", "n_head_kv") or heads
    if inner.get("multi_query") is True and "num_key_value_heads" not in inner:
        kv_heads = 1
    hidden = _count(inner, "hidden_size", "n_embd", "d_model")
    head_dim = _count(inner, "head_dim", "kv_channels") or (hidden // heads if heads else 0)
    layers = _count(inner, "num_hidden_layers", "n_layer", "num_layers")
    sliding, mamba = _layer_kinds(inner, layers)
    architectures = config.get("architectures")
    return ModelFacts(
        source=source,
        model_type=str(config.get("model_type", "")),
        architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
        layers=layers,
        attention_heads=heads,
        kv_heads=max(kv_heads, 1),
        head_dim=head_dim,
        max_position_embeddings=_longest(inner),
        weights_bytes=weights,
        dtype=str(config.get("dtype") or config.get("torch_dtype") or inner.get("dtype") or ""),
        mla_dim=_count(inner, "kv_lora_rank") + _count(inner, "qk_rope_head_dim")
        if _count(inner, "kv_lora_rank")
        else 0,
        sliding_window=_count(inner, "sliding_window") or None,
        sliding_layers=sliding,
        mamba_layers=mamba,
    )


def _count(config: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _longest(config: Mapping[str, Any]) -> int | None:
    """The model's own limit as vLLM derives it: `_get_and_verify_max_len` reads the same names."""
    longest = _count(
        config,
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "model_max_length",
        "max_target_positions",
    )
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if isinstance(scaling, dict):
        kind = scaling.get("rope_type", scaling.get("type"))
        factor = scaling.get("factor")
        if kind == "yarn" and "original_max_position_embeddings" in scaling:
            longest = _count(scaling, "original_max_position_embeddings") or longest
        if kind in {"linear", "dynamic", "yarn"} and isinstance(factor, (int, float)):
            longest = int(longest * float(factor))
    return longest or None


def _layer_kinds(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """How many layers slide a window, and how many keep a state."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(kinds, list) and kinds:
        names = [str(kind).lower() for kind in kinds]
        sliding = sum("sliding" in name or "local" in name for name in names)
        mamba = sum(any(word in name for word in _MAMBA_TYPES) for name in names)
        return sliding, mamba
    interval = _count(config, "full_attention_interval")
    if interval > 1 and _count(config, "linear_num_value_heads"):
        return 0, layers - layers // interval
    pattern = _count(config, "sliding_window_pattern")
    if pattern > 1 and config.get("sliding_window"):
        return layers - layers // pattern, 0
    slides = config.get("sliding_window") and config.get("use_sliding_window", True)
    return (layers if slides else 0), 0


def weights_bytes(folder: Path) -> int:
    """Size of the weights, from the safetensors index or the files themselves."""
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            total = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
            if isinstance(total, int) and total > 0:
                return total
    except (OSError, ValueError, KeyError, TypeError):
        pass
    for suffix in ("*.safetensors", "*.bin", "*.gguf"):
        size = sum(path.stat().st_size for path in folder.glob(suffix) if path.is_file())
        if size:
            return size
    return 0
