"""Writes a plan down as a file for `baton validate` and `baton up`.

With P/D it is Baton's application. Without, it is Ray Serve LLM's own (`build_openai_app`), which
Baton passes on: its builder serves pairs.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from baton.plan.devices import all_gpus

if TYPE_CHECKING:
    from baton.plan.bounds import Promise
    from baton.plan.layouts import Group, Layout
    from baton.plan.model import ModelShape

_ROUND = 1024
# Ray finds both A100s as `A100` (ray 2.60 `_private/accelerators/nvidia_gpu.py`).
_RAY_NAMES = {"A100-40G": "A100"}


def app_yaml(layout: Layout, model: ModelShape, promise: Promise, longest: int, why: str) -> str:
    """The text of the file.

    Args:
        layout: What was planned.
        model: Its source becomes `model_source`.
        promise: Becomes `slo`.
        longest: Tokens of the longest request that was planned for.
        why: For the comment at its head.
    """
    context = -(-longest // _ROUND) * _ROUND
    if not all(group.kind.costs.fits(context) for group in layout.groups):
        context = longest  # vLLM starts only where one request of this length has room
    if model.longest_context is not None:
        context = min(context, model.longest_context)
    source = _folder(model.source)
    name = re.sub(r"[^a-z0-9.-]+", "-", source.rsplit("/", 1)[-1].lower()).strip("-.")
    name = name or "model"
    if layout.disaggregated:
        app = _pair(layout, model, promise, context, name)
    else:
        app = {
            "name": name,
            "import_path": "ray.serve.llm:build_openai_app",
            "route_prefix": "/",
            "args": {"llm_configs": [_config(layout.groups[0], model, context, name)]},
        }
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 100
    text = io.StringIO()
    yaml.dump({"applications": [app]}, text)
    head = [f"# Planned by `baton plan`: {layout.name}.", *(f"# {line}" for line in _lines(why))]
    return "\n".join(head) + "\n" + text.getvalue()


def _pair(
    layout: Layout, model: ModelShape, promise: Promise, context: int, name: str
) -> dict[str, Any]:
    nodes = {node for places in layout.places for node, _ in places}
    # Between instances KV goes over EFA, by NIXL's libfabric backend; within one over its links.
    across = len(nodes) > 1
    args: dict[str, Any] = {}
    for group, role in zip(layout.groups, ("kv_producer", "kv_consumer"), strict=True):
        config = _config(group, model, context, name)
        transfer: dict[str, Any] = {"kv_connector": "NixlConnector", "kv_role": role}
        if across:
            transfer["kv_connector_extra_config"] = {"backends": ["LIBFABRIC"]}
        config["engine_kwargs"]["kv_transfer_config"] = transfer
        args[f"{group.role}_config"] = config
    decode = layout.groups[1]
    args["baton"] = {
        "transport": {"require": "efa" if across else "any"},
        "admission": {
            "max_inflight": decode.replicas * decode.kind.limits.max_seqs
            + layout.groups[0].replicas,
        },
        "slo": {"ttft_s": promise.ttft_s, "tpot_s": promise.tpot_s},
    }
    return {
        "name": name,
        "import_path": "baton:build_pd_openai_app",
        "route_prefix": "/",
        "args": args,
    }


def _config(group: Group, model: ModelShape, context: int, name: str) -> dict[str, Any]:
    kind = group.kind
    engine: dict[str, Any] = {
        "max_model_len": context,
        "max_num_seqs": kind.limits.max_seqs,
        "max_num_batched_tokens": max(kind.limits.token_budget, kind.limits.max_seqs),
    }
    if kind.tp > 1:
        engine["tensor_parallel_size"] = kind.tp
    gpu = kind.hardware.gpu.name
    # A measured engine may be on what nobody named: Ray then places it on any GPU.
    where = {"accelerator_type": _RAY_NAMES.get(gpu, gpu)} if gpu in all_gpus() else {}
    return {
        "model_loading_config": {"model_id": name, "model_source": _folder(model.source)},
        **where,
        "engine_kwargs": engine,
        "deployment_config": {"num_replicas": group.replicas},
    }


def _folder(source: str) -> str:
    """Engines load a folder: the one that a bare config.json lies in."""
    path = Path(source).expanduser()
    if path.is_file() or source.endswith(".json"):
        return str(path.resolve().parent)
    # Engines start elsewhere: a folder's name from here is none there.
    return str(path.resolve()) if path.is_dir() else source


def _lines(text: str, width: int = 96) -> list[str]:
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
