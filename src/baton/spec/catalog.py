"""What the pinned vLLM and Ray accept, from the snapshots in `data/`.

`tools/snapshot_engine_args.py` writes them from the installed packages, so that a check needs to
import neither: vLLM alone takes ten seconds.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

TypeSpec = Any
"""One type in the snapshot's small language; see `tools/snapshot_engine_args.py`."""

Fields = dict[str, dict[str, Any]]


@cache
def vllm() -> dict[str, Any]:
    """The snapshot of vLLM."""
    return _read("vllm.json")


@cache
def ray() -> dict[str, Any]:
    """The snapshot of Ray."""
    return _read("ray.json")


def _read(name: str) -> dict[str, Any]:
    text = (resources.files("baton.spec") / "data" / name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def takes_null(entry: dict[str, Any]) -> bool:
    """Whether a field may be written as `null` because that is its default."""
    return entry["default"] is None and not entry.get("required") and not entry.get("made")


def engine_args() -> Fields:
    """What `AsyncEngineArgs` of vLLM takes."""
    fields: Fields = vllm()["engine_args"]
    return fields


@cache
def engine_kwargs() -> Fields:
    """Everything that `engine_kwargs` may hold.

    Ray sorts the keys into vLLM's `FrontendArgs` and `AsyncEngineArgs`, in this order, and refuses
    the rest (ray 2.60 `vllm_models.py`, `VLLMEngineConfig.from_llm_config`).
    """
    return {**engine_args(), **vllm()["frontend_args"]}


def objects() -> dict[str, Fields]:
    """Nested objects of both snapshots by class name."""
    return _objects()


@cache
def _objects() -> dict[str, Fields]:
    return {**vllm()["objects"], **ray()["objects"]}


def is_closed(name: str) -> bool:
    """Whether an object refuses keys that it does not know."""
    if name == "RayActorOptionsSchema":
        # The schema ignores them, Ray's actor options do not (ray 2.60 `ReplicaConfig`).
        return True
    return name in vllm()["closed_objects"] or name in ray()["closed_objects"]


def is_open(name: str) -> bool:
    """Whether an object keeps keys that it does not know (Ray's custom resources)."""
    return name in ray()["open_objects"]


def deployment_options() -> list[str]:
    """The keyword arguments of `@serve.deployment`, which `deployment_config` becomes."""
    options: list[str] = ray()["deployment_options"]
    return options


def connectors() -> list[str]:
    """The KV connectors that vLLM's factory knows."""
    names: list[str] = vllm()["connectors"]
    return names
