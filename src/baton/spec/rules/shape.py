"""Keys and values that no layer knows: names, types, ranges, missing parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from baton.spec import catalog
from baton.spec.faults import Path, shown
from baton.spec.owners import belongs
from baton.spec.rules.registry import Finding, rule
from baton.spec.rules.serving import gone_argument
from baton.spec.schema import BatonBlock
from baton.spec.suggest import nearest
from baton.spec.typecheck import (
    check_fields,
    check_object,
    check_value,
    missing_key,
    unknown_key,
    wrong_type,
)
from baton.spec.view import AppView, RoleView, mapping

if TYPE_CHECKING:
    from collections.abc import Iterator

# Reported by a rule of its own, which knows more about it.
_OWN_RULE = {"baton"}
_CHECKED_BELOW = {
    "engine_kwargs",
    "deployment_config",
    "model_loading_config",
    "placement_group_config",
    "lora_config",
}


@rule("BTN-102", "error", "a key that nothing knows, or one that is missing")
def unknown_keys(app: AppView) -> Iterator[Finding]:
    """Ray Serve LLM's own models refuse extra keys, but only when the builder runs on the cluster.

    Source: ray 2.60 `ray/llm/_internal/common/base_pydantic.py`, `BaseModelExtended` has
    `extra="forbid"`; `PDServingArgs` and `LLMConfig` derive from it.
    """
    fields = catalog.objects()["PDServingArgs"]
    for key in app.args:
        if key not in fields and key not in _OWN_RULE and gone_argument(key) is None:
            if key == "llm_configs":
                yield _not_a_pair(app)
                continue
            yield unknown_key(key, [*fields, "baton"], (*app.args_path, key), "PDServingArgs")
    for key in ("ingress_cls_config", "ingress_deployment_config"):
        value = app.args.get(key)
        if value is not None and not isinstance(value, dict):
            yield wrong_type({"dict": "any"}, value, (*app.args_path, key))
    for role in app.roles:
        key = f"{role.role}_config"
        if key not in app.args:
            yield missing_key(key, app.args_path)
        elif not isinstance(app.args[key], dict):
            # Ray also takes the path of a YAML file here, which no check could follow.
            yield wrong_type({"dict": "any"}, app.args[key], role.path)
        else:
            yield from _role_shape(role)


def _not_a_pair(app: AppView) -> Finding:
    """The argument of Ray's `build_openai_app`, which serves models without P/D."""
    return Finding(
        (*app.args_path, "llm_configs"),
        "`llm_configs` belongs to `ray.serve.llm:build_openai_app`, which splits nothing",
        found="llm_configs",
        allowed="prefill_config, decode_config",
        cure="write its one entry twice, as prefill_config and as decode_config",
    )


def _role_shape(role: RoleView) -> Iterator[Finding]:
    fields = catalog.objects()["LLMConfig"]
    plain = {
        key: value
        for key, value in role.config.items()
        if key not in _CHECKED_BELOW and gone_argument(key) is None
    }
    yield from check_fields(fields, plain, role.path, "LLMConfig")
    if "model_loading_config" not in role.config:
        yield missing_key("model_loading_config", role.path)
    accelerator = role.config.get("accelerator_config")
    if isinstance(accelerator, dict) and "kind" not in accelerator:
        # Ray 2.60 `AnyAcceleratorConfig` is told apart by this key, default or not.
        yield missing_key("kind", role.at("accelerator_config"), "cpu, gpu or tpu")
    # Ray 2.60 `LLMConfig.validate_llm_engine`: its enum has one member.
    if isinstance(role.config.get("llm_engine"), str):
        yield from check_value(
            {"choice": ["vLLM"]}, role.config["llm_engine"], role.at("llm_engine")
        )
    for key, name in (
        ("model_loading_config", "ModelLoadingConfig"),
        ("placement_group_config", "PlacementGroupConfig"),
        ("lora_config", "LoraConfig"),
    ):
        value = role.config.get(key)
        if value is None and key != "model_loading_config":
            continue
        if key in role.config:
            yield from check_object(name, value, role.at(key))
    yield from _deployment_shape(role)
    yield from _runtime_env_shape(role)


def _runtime_env_shape(role: RoleView) -> Iterator[Finding]:
    env = role.config.get("runtime_env")
    env_vars = env.get("env_vars") if isinstance(env, dict) else None
    if env_vars is None:
        return
    path = role.at("runtime_env", "env_vars")
    yield from check_value({"dict": "str"}, env_vars, path)


def _deployment_shape(role: RoleView) -> Iterator[Finding]:
    if "deployment_config" not in role.config:
        return
    value, path = role.config["deployment_config"], role.at("deployment_config")
    if not isinstance(value, dict):
        yield wrong_type({"dict": "any"}, value, path)
        return
    options = catalog.deployment_options()
    for key, item in value.items():
        if key not in options:
            # `serve.deployment(cls, **deployment_config)` ends in a TypeError for any other key.
            near = nearest(key, options)
            yield Finding(
                (*path, key),
                f"`{key}` is not a deployment option of Ray Serve",
                found=str(key),
                allowed=", ".join(options),
                cure=f"did you mean `{near}`?" if near else belongs(key) or "remove it",
            )
        else:
            yield from _deployment_option(key, item, path)


def _deployment_option(key: str, item: Any, path: Path) -> Iterator[Finding]:
    fields = catalog.objects()["DeploymentConfig"]
    if key == "version":
        # Ray 2.60 `serve/api.py`: "`version` in `@serve.deployment` has been removed."
        yield Finding(
            (*path, key),
            "`version` has been removed from Ray Serve",
            found=shown(item),
            allowed="nothing",
            cure="remove it",
        )
    elif key in _DEPLOYMENT_TYPES:
        yield from check_value(_DEPLOYMENT_TYPES[key], item, (*path, key))
    elif key in fields:
        yield from check_fields({key: fields[key]}, {key: item}, path, "DeploymentConfig")


_POSITIVE = {"number": "int", "ge": 1}
# What Ray 2.60 checks in code rather than by type: `serve/_private/config.py`,
# `validate_max_queued_requests`, `logging_config_valid`, `_validate_max_replicas_per_node`.
_DEPLOYMENT_TYPES: dict[str, Any] = {
    "name": "str",
    "num_replicas": {"union": [{"choice": ["auto"]}, {"number": "int", "ge": 0}, "null"]},
    "ray_actor_options": {"object": "RayActorOptionsSchema"},
    "logging_config": {"union": [{"object": "LoggingConfig"}, "null"]},
    "max_replicas_per_node": {"union": [{"number": "int", "ge": 1, "le": 100}, "null"]},
    "max_queued_requests": {"union": [{"choice": [-1]}, _POSITIVE]},
}


@rule("BTN-106", "error", "an engine argument that vLLM does not have")
def engine_arguments(app: AppView) -> Iterator[Finding]:
    """Ray passes `engine_kwargs` to vLLM's engine and HTTP arguments and refuses any other key.

    It does so when a replica starts, so that a misspelt key shows minutes later in a worker's log.
    The list of names comes from the installed vLLM.

    Source: ray 2.60 `vllm_models.py`, `VLLMEngineConfig.from_llm_config`: "Unknown engine
    argument".
    """
    known = catalog.engine_kwargs()
    for role in app.roles:
        for key in role.engine:
            if key not in known:
                near = nearest(key, known)
                yield Finding(
                    role.engine_at(key),
                    f"vLLM {catalog.vllm()['version']} has no engine argument `{key}`",
                    found=str(key),
                    allowed="the arguments of vLLM's AsyncEngineArgs (`baton schema` lists them)",
                    cure=f"did you mean `{near}`?" if near else belongs(key) or "remove it",
                )


@rule("BTN-103", "error", "a value that vLLM or Ray cannot take")
def engine_values(app: AppView) -> Iterator[Finding]:
    """The engine checks the values of its arguments when it is built: type, range, choice.

    Source: vLLM 0.29 `vllm/config/*.py`; its config classes are pydantic dataclasses with
    `extra="forbid"` (`vllm/config/utils.py`). The snapshot keeps their types, limits and choices.
    """
    known = catalog.engine_kwargs()
    for role in app.roles:
        if role.engine.get("max_model_len") == 0:
            # vLLM 0.29 `ModelConfig`: "max_model_len must be a positive integer"
            yield Finding(
                role.engine_at("max_model_len"),
                "`max_model_len` must be positive, or -1 for the largest that fits",
                found="0",
                allowed="1 or more, or -1",
                cure="remove it, or set a number of tokens",
                at_value=True,
            )
        if "engine_kwargs" in role.config and not isinstance(role.config["engine_kwargs"], dict):
            yield wrong_type(
                {"dict": "any"}, role.config["engine_kwargs"], role.at("engine_kwargs")
            )
        for key, value in role.engine.items():
            entry = known.get(key) if isinstance(key, str) else None
            if entry is None or (value is None and catalog.takes_null(entry)):
                continue
            # vLLM lowers it as well: `LoadConfig._lowercase_load_format`.
            lowered = key == "load_format" and isinstance(value, str)
            meant = value.lower() if lowered else value
            yield from check_value(_with_registry(key, entry), meant, role.engine_at(key))


# Types that the snapshot cannot take from the annotations.
_KNOWN_TYPES: dict[str, Any] = {
    "hf_overrides": {"dict": "any"},
    "quantization_config": {"union": [{"dict": "any"}, "null"]},
    # The annotation has "auto" as well, which `MambaConfig.validate_backend` refuses.
    "mamba_backend": {
        "union": [
            {"choice": ["cpu", "flashinfer", "triton", "CPU", "FLASHINFER", "TRITON"]},
            "null",
        ]
    },
}
_REGISTRIES = {
    "quantization": "quantization_methods",
    "load_format": "load_formats",
    "tool_call_parser": "tool_parsers",
    "reasoning_parser": "reasoning_parsers",
}


def _with_registry(key: str, entry: dict[str, Any]) -> Any:
    """Names that vLLM keeps in registries rather than in types."""
    if key not in _REGISTRIES:
        return _KNOWN_TYPES.get(key, entry["type"])
    names = list(catalog.vllm()[_REGISTRIES[key]])
    if key == "reasoning_parser":
        names.append("")  # vLLM's own default
    kind = {"choice": names}
    nothing = entry["default"] is None or "null" in (mapping(entry["type"]).get("union") or ())
    return {"union": [kind, "null"]} if nothing else kind


@rule("BTN-190", "error", "a `baton` block that does not hold")
def baton_block(app: AppView) -> Iterator[Finding]:
    """The `baton` block is closed: a key that Baton does not know would have no effect at all.

    Source: `baton.spec.schema.BatonBlock`.
    """
    block = app.args.get("baton")
    if block is None:
        return
    if not isinstance(block, dict):
        yield wrong_type({"dict": "any"}, block, app.baton_path)
        return
    yield from block_findings(block, app.baton_path)


def block_findings(block: dict[Any, Any], path: Path) -> Iterator[Finding]:
    """What is wrong with a `baton` block by itself."""
    try:
        BatonBlock.model_validate(block)
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            yield _block_finding(error, block, path)


def _block_finding(error: Any, block: dict[Any, Any], path: Path) -> Finding:
    where = tuple(error["loc"])
    at: Path = (*path, *where)
    if error["type"] == "extra_forbidden":
        allowed = list(_fields_at(where[:-1]))
        near = nearest(where[-1], allowed)
        inside = ".".join(["baton", *map(str, where[:-1])])
        return Finding(
            at,
            f"`{where[-1]}` is not a key of `{inside}`",
            found=str(where[-1]),
            allowed=", ".join(allowed),
            cure=f"did you mean `{near}`?" if near else _part_of(where[-1]) or "remove it",
        )
    if error["type"] == "missing":
        return missing_key(str(where[-1]), at[:-1])
    found: Any = block
    for part in where:
        found = mapping(found).get(part)
    name = where[-1] if where else "baton"
    wanted = str(error["msg"]).removeprefix("Input should be ")
    cure = f"write {wanted}"
    if error["type"] == "literal_error":
        near = nearest(found, [part.strip("' ") for part in _choices(wanted)])
        cure = f"did you mean `{near}`?" if near else f"write {wanted}"
    elif error["type"] == "model_type":
        wanted = f"a mapping of {', '.join(_fields_at(where))}"
        cure = f"write {name}: {{{next(iter(_fields_at(where)))}: …}}, or remove it"
    elif error["type"].endswith("_parsing"):
        wanted = {"bool_parsing": "true or false", "int_parsing": "a whole number"}.get(
            error["type"], "a number"
        )
        cure = f"write {wanted}" + (", in seconds" if str(name).endswith("_s") else "")
    return Finding(
        at,
        f"`{name}` must be {wanted}",
        found=shown(found),
        allowed=wanted,
        cure=cure,
        at_value=True,
    )


def _part_of(key: Any) -> str | None:
    """The part of the block that a key belongs to, as a cure."""
    for name in BatonBlock.model_fields:
        if key in _fields_at((name,)):
            return f"it belongs in `baton.{name}`"
    return None


def _choices(message: str) -> list[str]:
    return message.replace(" or ", ", ").split(", ")


def _fields_at(where: Path) -> dict[str, Any]:
    model: Any = BatonBlock
    for part in where:
        field = model.model_fields.get(part)
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model = next((c for c in candidates if hasattr(c, "model_fields")), BatonBlock)
    fields: dict[str, Any] = model.model_fields
    return fields
