"""Checks a value against a type of the snapshot.

As lenient as pydantic is by default (that is how vLLM and Ray read their configs): a number may
come as text, `1` may stand for true. What the snapshot calls `any` is never refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from baton.spec import catalog
from baton.spec.faults import Path, shown
from baton.spec.owners import belongs
from baton.spec.rules.registry import Finding
from baton.spec.suggest import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.spec.catalog import Fields, TypeSpec

TRUE_WORDS = frozenset({"true", "yes", "on", "t", "y", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "f", "n", "0"})


def check_value(kind: TypeSpec, value: Any, path: Path) -> Iterator[Finding]:
    """Yields what is wrong with `value`, nothing when it fits."""
    if isinstance(kind, str):
        if kind != "any" and not _fits_plain(kind, value):
            yield wrong_type(kind, value, path)
        return
    for name, check in _CHECKS.items():
        if name in kind:
            yield from check(kind[name] if name != "number" else kind, value, path)


def _check_list(items: TypeSpec, value: Any, path: Path) -> Iterator[Finding]:
    if not isinstance(value, list):
        yield wrong_type({"list": items}, value, path)
        return
    for index, item in enumerate(value):
        yield from check_value(items, item, (*path, index))


def _check_dict(values: TypeSpec, value: Any, path: Path) -> Iterator[Finding]:
    if not isinstance(value, dict):
        yield wrong_type({"dict": values}, value, path)
        return
    for key, item in value.items():
        yield from check_value(values, item, (*path, key))


def check_object(name: str, value: Any, path: Path) -> Iterator[Finding]:
    """Checks a mapping against a named object: unknown keys, missing keys, values."""
    if not isinstance(value, dict):
        yield wrong_type({"dict": "any"}, value, path)
        return
    fields = catalog.objects()[name]
    yield from check_fields(fields, value, path, name)
    if name in _EXTRA_CHECKS:
        yield from _EXTRA_CHECKS[name](value, path)
    for key, entry in fields.items():
        if entry.get("required") and key not in value:
            yield missing_key(key, path)


def _bundle(value: dict[Any, Any], path: Path) -> Iterator[Finding]:
    """Ray 2.60 `BundleConfig.validate_extra_resources`: any resource, as a number."""
    for key, item in value.items():
        if key not in {"CPU", "GPU"} and isinstance(item, str | list | dict | None):
            yield wrong_type("float", item, (*path, key))
        elif isinstance(item, (int, float)) and item < 0:
            yield from _check_number({"number": "float", "ge": 0}, item, (*path, key))


def _logging(value: dict[Any, Any], path: Path) -> Iterator[Finding]:
    """Ray 2.60 `LoggingConfig.validate_encoding_format` and `validate_log_level`."""
    encoding, level = value.get("encoding"), value.get("log_level")
    if isinstance(encoding, str):
        yield from _check_choice(["TEXT", "JSON"], encoding, (*path, "encoding"))
    if isinstance(level, str):
        names = ["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "FATAL", "WARN", "NOTSET"]
        yield from _check_choice(names, level.upper(), (*path, "log_level"))


def check_fields(fields: Fields, value: dict[Any, Any], path: Path, name: str) -> Iterator[Finding]:
    """Checks the keys that are there."""
    for key, item in value.items():
        entry = fields.get(key) if isinstance(key, str) else None
        if entry is None:
            if not catalog.is_open(name):
                yield unknown_key(key, list(fields), (*path, key), name)
            continue
        if item is None and catalog.takes_null(entry):
            continue
        yield from check_value(entry["type"], item, (*path, key))


def unknown_key(key: Any, allowed: list[str], path: Path, name: str) -> Finding:
    """An unknown key: refused by a closed object or when it is a near miss, else a warning."""
    near = nearest(key, allowed)
    closed = catalog.is_closed(name)
    cure = f"did you mean `{near}`?" if near else belongs(key) or "remove it"
    if closed or near:
        return Finding(
            path,
            f"`{key}` is not a key of {_called(name)}",
            found=str(key),
            allowed=_listed(allowed),
            cure=cure,
        )
    return Finding(
        path,
        f"`{key}` is not a key of {_called(name)}; Ray ignores it",
        found=str(key),
        allowed=_listed(allowed),
        severity="warning",
        cure="remove it",
    )


def missing_key(key: str, path: Path, allowed: str | None = None) -> Finding:
    """A key that must be there."""
    return Finding(
        (*path, key),
        f"`{key}` is missing",
        found="nothing",
        allowed=allowed or "this key is required",
        cure=f"add `{key}:`" + (f" with {allowed}" if allowed else ""),
    )


def wrong_type(kind: TypeSpec, value: Any, path: Path) -> Finding:
    """A value of another type than is wanted."""
    wanted = describe_type(kind)
    name = path[-1] if path else "the file"
    cure = f"write {wanted}"
    if value is None:
        cure = "give it a value, or remove the key"
    elif isinstance(value, str) and kind in ("int", "float"):
        cure = _human_number(value) or cure
    elif kind == "str" and isinstance(value, list) and len(value) == 1:
        cure = f"remove the brackets: {shown(value[0])}"
    elif kind == "str" and not isinstance(value, (list, dict)):
        cure = f'quote it: "{shown(value)}"'
    return Finding(
        path,
        f"`{name}` must be {wanted}, not {_type_name(value)}",
        found=shown(value),
        allowed=wanted,
        cure=cure,
        at_value=value is not None,
    )


def _human_number(value: str) -> str | None:
    """`4k` is for vLLM's command line; its Python API, which Ray uses, does not."""
    units = {
        "k": 1_000,
        "m": 1_000_000,
        "g": 1_000_000_000,
        "K": 1_024,
        "M": 1_024**2,
        "G": 1_024**3,
    }
    number, unit = value[:-1], value[-1:]
    if unit in units and number.replace(".", "", 1).isdigit():
        return f"write {int(float(number) * units[unit])}"
    if unit == "%" and number.strip().replace(".", "", 1).isdigit():
        return f"write {float(number) / 100:g}"
    for read in (_c_like, float):
        # `0o17` and `1e3` are numbers in YAML 1.2, and text in the YAML 1.1 that Ray reads.
        try:
            plain = read(value)
        except (ValueError, OverflowError):
            continue
        if math.isfinite(plain):
            return f"write {plain:.15g}: Ray reads {value} as text"
    return None


def _c_like(value: str) -> float:
    return int(value, 0)


def fits(kind: TypeSpec, value: Any) -> bool:
    """Whether a value fits a type."""
    return next(check_value(kind, value, ()), None) is None


def _check_union(kinds: list[TypeSpec], value: Any, path: Path) -> Iterator[Finding]:
    if any(fits(kind, value) for kind in kinds):
        return
    real = [kind for kind in kinds if kind != "null"]
    if len(real) == 1:
        yield from check_value(real[0], value, path)
        return
    if isinstance(value, dict):
        objects = [kind for kind in real if isinstance(kind, dict) and "object" in kind]
        if objects:
            yield from check_value(objects[0], value, path)
            return
    choices = [c for k in real if isinstance(k, dict) and "choice" in k for c in k["choice"]]
    only_choices = all(isinstance(k, dict) and "choice" in k for k in real)
    if choices and isinstance(value, str) and (only_choices or nearest(value, choices)):
        yield from _check_choice(choices, value, path)
        return
    yield wrong_type({"union": kinds}, value, path)


def _check_choice(allowed: list[Any], value: Any, path: Path) -> Iterator[Finding]:
    if any(value == item and type(value) is type(item) for item in allowed):
        return
    near = nearest(value, allowed) if isinstance(value, (str, int)) else None
    fallback = "use the only value there is" if len(allowed) == 1 else "use one of these values"
    name = path[-1] if path else "value"
    yield Finding(
        path,
        f"`{name}` is `{shown(value)}`, which is not one of its values",
        found=shown(value),
        allowed=_listed([str(item) for item in allowed if item != ""]),
        cure=f"did you mean `{near}`?" if near else fallback,
        at_value=True,
    )


def _check_number(kind: dict[str, Any], value: Any, path: Path) -> Iterator[Finding]:
    if not _fits_plain(kind["number"], value):
        yield wrong_type(kind["number"], value, path)
        return
    number = float(value)
    wrong = (
        ("ge" in kind and number < kind["ge"])
        or ("gt" in kind and number <= kind["gt"])
        or ("le" in kind and number > kind["le"])
        or ("lt" in kind and number >= kind["lt"])
        or math.isnan(number)
    )
    if wrong:
        limits = describe_type(kind)
        yield Finding(
            path,
            f"`{path[-1] if path else 'value'}` is {shown(value)}, out of its range",
            found=shown(value),
            allowed=limits,
            cure=f"write {limits}",
            at_value=True,
        )


def _fits_plain(kind: str, value: Any) -> bool:
    return _FITS[kind](value)


def _is_bool(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() in TRUE_WORDS | FALSE_WORDS
    return isinstance(value, (bool, int, float)) and value in (0, 1)


def _is_int(value: Any) -> bool:
    if isinstance(value, str):
        return _number_of("int", value) is not None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
    if isinstance(value, str):
        return _number_of("float", value) is not None
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_FITS: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "str": lambda value: isinstance(value, str),
    "bool": _is_bool,
    "int": _is_int,
    "float": _is_float,
}


def _number_of(kind: str, value: str) -> float | int | None:
    """A number that came as text, as pydantic reads it."""
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        return None


def number_from_text(kind: str, value: str) -> float | int | None:
    """The number that a piece of text stands for, or None."""
    return _number_of(kind, value)


def describe_type(kind: TypeSpec) -> str:
    """A type in words."""
    if isinstance(kind, str):
        return {
            "bool": "true or false",
            "int": "a whole number",
            "float": "a number",
            "str": "text",
            "null": "null",
            "any": "anything",
        }[kind]
    if "number" in kind:
        signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
        limits = " and ".join(f"{sign} {kind[key]:g}" for key, sign in signs.items() if key in kind)
        return f"{describe_type(kind['number'])} {limits}"
    if "choice" in kind:
        return "one of " + _listed([str(item) for item in kind["choice"]])
    if "list" in kind:
        return "a list"
    if "dict" in kind or "object" in kind:
        return "a mapping"
    return " or ".join(dict.fromkeys(describe_type(part) for part in kind["union"]))


def _type_name(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, (int, float)):
        return f"the number {shown(value)}"
    return f"the text {shown(value)}" if isinstance(value, str) else f"a {type(value).__name__}"


def _listed(names: list[str], limit: int = 24) -> str:
    if len(names) <= limit:
        return ", ".join(names)
    return ", ".join(names[:limit]) + f", … ({len(names)} in all)"


def _called(name: str) -> str:
    plain = {
        "PDServingArgs": "`args` of a P/D application",
        "LLMConfig": "Ray's LLMConfig",
        "ModelLoadingConfig": "`model_loading_config`",
        "KVTransferConfig": "`kv_transfer_config`",
        "ServeDeploySchema": "a Serve config",
        "ServeApplicationSchema": "an application",
        "PlacementGroupConfig": "`placement_group_config`",
        "HTTPOptionsSchema": "`http_options`",
        "AutoscalingConfig": "`autoscaling_config`",
    }
    return plain.get(name, f"`{name}`")


_EXTRA_CHECKS: dict[str, Callable[[dict[Any, Any], Path], Iterator[Finding]]] = {
    "BundleConfig": _bundle,
    "LoggingConfig": _logging,
}
_CHECKS: dict[str, Callable[[Any, Any, Path], Iterator[Finding]]] = {
    "number": _check_number,
    "choice": _check_choice,
    "list": _check_list,
    "dict": _check_dict,
    "object": check_object,
    "union": _check_union,
}
