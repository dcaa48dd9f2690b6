"""The JSON Schema of the whole file, for editors.

Ray's part (the Serve config, `LLMConfig`) and vLLM's part (`engine_kwargs`) come from the snapshots
of the installed packages, the `baton` block from its own models. It says what `baton validate`
checks of shape and type; rules that look across keys are not in it.
"""

from __future__ import annotations

from typing import Any

from baton.spec import catalog
from baton.spec.rules.connector import TRANSFER_BACKENDS
from baton.spec.schema import BatonBlock
from baton.spec.view import PD_IMPORT_PATHS

_PLAIN: dict[str, dict[str, Any]] = {
    "any": {},
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "null": {"type": "null"},
}
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def file_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a Serve config that Baton checks."""
    definitions: dict[str, Any] = {}
    for name in catalog.objects():
        definitions[name] = _object(name)
    role = definitions["LLMConfig"]
    role["properties"].update(
        model_loading_config={"$ref": "#/$defs/ModelLoadingConfig"},
        engine_kwargs={"$ref": "#/$defs/EngineKwargs"},
        placement_group_config={"$ref": "#/$defs/PlacementGroupConfig"},
        deployment_config={"$ref": "#/$defs/DeploymentOptions"},
    )
    definitions["EngineKwargs"] = {
        "type": "object",
        "description": f"Engine arguments of vLLM {catalog.vllm()['version']}",
        "properties": {
            key: _entry(entry) for key, entry in sorted(catalog.engine_kwargs().items())
        },
        "additionalProperties": False,
    }
    definitions["DeploymentOptions"] = _deployment_options(definitions)
    _connector(definitions["KVTransferConfig"])
    args = definitions["PDServingArgs"]
    for key in ("prefill_config", "decode_config"):
        args["properties"][key] = {"$ref": "#/$defs/LLMConfig"}
    args["properties"]["baton"] = {"$ref": "#/$defs/BatonBlock"}
    block = BatonBlock.model_json_schema(ref_template="#/$defs/{model}")
    definitions.update(block.pop("$defs", {}))
    for name, part in block["properties"].items():
        # `recovery:` with nothing below it has the defaults.
        block["properties"][name] = {"anyOf": [part, {"type": "null"}]}
    definitions["BatonBlock"] = block
    app = definitions["ServeApplicationSchema"]
    app["properties"]["import_path"] = {
        "type": "string",
        "description": "Module and builder of the application",
        "examples": list(PD_IMPORT_PATHS),
    }
    app["if"] = {"properties": {"import_path": {"enum": list(PD_IMPORT_PATHS)}}}
    app["then"] = {"properties": {"args": {"$ref": "#/$defs/PDServingArgs"}}}
    schema = definitions.pop("ServeDeploySchema")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Ray Serve config with prefill/decode applications",
        **schema,
        "$defs": dict(sorted(definitions.items())),
    }


def _connector(schema: dict[str, Any]) -> None:
    """VLLM's own names, unless a module says where another class is; NIXL's settings by name."""
    schema["if"] = {"not": {"required": ["kv_connector_module_path"]}}
    schema["then"] = {"properties": {"kv_connector": {"enum": [*catalog.connectors(), None]}}}
    schema["properties"]["kv_connector_extra_config"] = {
        "type": "object",
        "properties": {
            **{name: {} for name in catalog.vllm()["nixl_extra_config"]},
            "backends": {
                "type": "array",
                "items": {"type": "string", "examples": list(TRANSFER_BACKENDS)},
                "minItems": 1,
            },
        },
    }


def _object(name: str) -> dict[str, Any]:
    fields = catalog.objects()[name]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {key: _entry(entry) for key, entry in fields.items()},
    }
    required = [key for key, entry in fields.items() if entry.get("required")]
    if required:
        schema["required"] = required
    if catalog.is_closed(name):
        schema["additionalProperties"] = False
    return schema


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    schema = dict(_schema_of(entry["type"]))
    if "description" in entry:
        schema["description"] = entry["description"]
    if entry.get("default") is not None:
        schema["default"] = entry["default"]
    return schema


def _schema_of(kind: Any) -> dict[str, Any]:
    if isinstance(kind, str):
        return _PLAIN[kind]
    if "number" in kind:
        limits = {_LIMITS[key]: kind[key] for key in _LIMITS if key in kind}
        return {**_PLAIN[kind["number"]], **limits}
    if "choice" in kind:
        return {"enum": [item for item in kind["choice"] if item != ""]}
    if "object" in kind:
        return {"$ref": f"#/$defs/{kind['object']}"}
    if "union" in kind:
        return {"anyOf": [_schema_of(part) for part in kind["union"]]}
    return _container(kind)


def _container(kind: dict[str, Any]) -> dict[str, Any]:
    if "list" in kind:
        return {"type": "array", "items": _schema_of(kind["list"])}
    return {"type": "object", "additionalProperties": _schema_of(kind["dict"])}


def _deployment_options(definitions: dict[str, Any]) -> dict[str, Any]:
    known = definitions["DeploymentConfig"]["properties"]
    properties = {key: known.get(key, {}) for key in catalog.deployment_options()}
    properties["num_replicas"] = {"anyOf": [{"const": "auto"}, known["num_replicas"]]}
    properties["ray_actor_options"] = {"$ref": "#/$defs/RayActorOptionsSchema"}
    return {
        "type": "object",
        "description": "Options of @serve.deployment",
        "properties": properties,
        "additionalProperties": False,
    }
