r"""\"Did you mean\": the nearest of the names that would be right."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CUTOFF = 0.72


def nearest(word: object, allowed: Iterable[object], cutoff: float = _CUTOFF) -> str | None:
    """The allowed name closest to `word`, or None when nothing is close.

    Case, hyphens and underscores count for nothing; a known abbreviation (`bf16`) counts as its
    name.
    """
    wanted = _plain(_ALIASES.get(_plain(word), str(word)))
    best, best_score = None, 0.0
    for name in allowed:
        candidate = _plain(name)
        if candidate == wanted:
            return str(name)
        score = SequenceMatcher(None, wanted, candidate).ratio()
        if score > best_score:
            best, best_score = str(name), score
    return best if best_score >= cutoff else None


def _plain(word: object) -> str:
    return str(word).lower().replace("-", "").replace("_", "").replace(" ", "")


# Names that people use and that no spelling distance would find.
_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "fp32": "float32",
    "f32": "float32",
    "fp8e4m3": "fp8_e4m3",
    "tp": "tensor_parallel_size",
    "tpsize": "tensor_parallel_size",
    "tensorparallel": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "ppsize": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "maxlen": "max_model_len",
    "maxseqlen": "max_model_len",
    "contextlength": "max_model_len",
    "gpumemory": "gpu_memory_utilization",
    "producer": "kv_producer",
    "consumer": "kv_consumer",
    "both": "kv_both",
    "nixl": "NixlConnector",
    "automatic": "auto",
}
