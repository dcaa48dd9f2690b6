"""Random mutations of good files: what a tired person, an editor or a copy can do to one."""

from __future__ import annotations

import copy
import io
import json
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from baton.spec import catalog
from tests.unit.spec.files import BASE

if TYPE_CHECKING:
    import random

_WORDS: list[Any] = [
    None, "", 0, -1, 1, 2, 3, 16, 2.5, True, False, "x", "auto", [], {}, [1], ["UCX"], {"a": 1},
    "4k", "yes", "1e9", "2", 10**12, float("nan"), float("inf"), "${UNSET}", "ü", "a: b", "bf16",
    "null", -0.5, [None], {"": ""}, "kv_producer", "kv_consumer", "NixlPushConnector", "float16",
]  # fmt: skip

LAPTOP_FILE = BASE.replace("{backends: [LIBFABRIC]}", "{backends: [UCX]}").replace(
    "require: efa", "require: any"
).replace(
    "      deployment_config: {num_replicas: 1}\n",
    "      placement_group_config: {bundles: [{CPU: 1}]}\n"
    "      runtime_env: {env_vars: {VLLM_CPU_KVCACHE_SPACE: '1'}}\n"
    "      deployment_config: {num_replicas: 2, ray_actor_options: {num_cpus: 1}}\n",
)  # fmt: skip
RAY_FILE = BASE.split("    baton:")[0].replace(
    "baton:build_pd_openai_app", "ray.serve.llm:build_pd_openai_app"
)
GOOD_FILES = (BASE, LAPTOP_FILE, RAY_FILE)


def load(text: str) -> Any:
    """Plain values of a YAML text."""
    return YAML(typ="safe", pure=True).load(text)


def dump(document: Any) -> str:
    """YAML of plain values, or JSON (which is YAML as well) where YAML cannot be written."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    out = io.StringIO()
    try:
        yaml.dump(document, out)
    except Exception:  # noqa: BLE001 - odd keys
        return json.dumps(document, default=str)
    return out.getvalue()


def _containers(node: Any) -> list[Any]:
    found = []
    if isinstance(node, (dict, list)):
        found.append(node)
        for child in node.values() if isinstance(node, dict) else node:
            found.extend(_containers(child))
    return found


def mutate_values(document: Any, rng: random.Random) -> Any:
    """One to three changes to the values of a good file."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_MUTATIONS)(document, rng)
    return document


def _mapping(document: Any, rng: random.Random) -> Any:
    return rng.choice([c for c in _containers(document) if isinstance(c, dict) and c] or [{"_": 0}])


def _delete(document: Any, rng: random.Random) -> None:
    holder = _mapping(document, rng)
    holder.pop(rng.choice(list(holder)), None)


def _rename(document: Any, rng: random.Random) -> None:
    holder = _mapping(document, rng)
    key = rng.choice(list(holder))
    holder[_typo(str(key), rng)] = holder.pop(key)


def _replace(document: Any, rng: random.Random) -> None:
    holder = _mapping(document, rng)
    holder[rng.choice(list(holder))] = copy.deepcopy(rng.choice(_WORDS))


def _misspell(document: Any, rng: random.Random) -> None:
    holder = _mapping(document, rng)
    key = rng.choice(list(holder))
    if isinstance(holder[key], str):
        holder[key] = _typo(holder[key], rng)


def _move(document: Any, rng: random.Random) -> None:
    holder, target = _mapping(document, rng), _mapping(document, rng)
    key = rng.choice(list(holder))
    value = holder.pop(key)
    if target not in _containers(value):
        target[key] = value


def _wrap(document: Any, rng: random.Random) -> None:
    holder = _mapping(document, rng)
    key = rng.choice(list(holder))
    holder[key] = rng.choice(([holder[key]], {str(key): holder[key]}, str(holder[key])))


def _engine_argument(document: Any, rng: random.Random) -> None:
    engines = [c for c in _containers(document) if isinstance(c, dict) and "max_model_len" in c]
    if engines:
        known = catalog.engine_kwargs()
        key = rng.choice(list(known))
        fitting = _of_type(known[key]["type"], rng)
        value = rng.choice((known[key]["default"], rng.choice(_WORDS), fitting))
        rng.choice(engines)[key] = copy.deepcopy(value)


def _of_type(kind: Any, rng: random.Random) -> Any:
    """A value that fits a type of the snapshot."""
    if isinstance(kind, str):
        return {"bool": True, "int": 4, "float": 0.5, "str": "x"}.get(kind)
    if "choice" in kind:
        return rng.choice(kind["choice"])
    if "number" in kind:
        return rng.choice((kind.get("ge", 1), kind.get("le", 2), 0, 1))
    if "union" in kind:
        return _of_type(rng.choice(kind["union"]), rng)
    return [] if "list" in kind else {}


def _deployment_option(document: Any, rng: random.Random) -> None:
    holders = [c for c in _containers(document) if isinstance(c, dict) and "num_replicas" in c]
    if holders:
        key = rng.choice([*catalog.deployment_options(), "placement_group_config"])
        rng.choice(holders)[key] = copy.deepcopy(rng.choice(_WORDS))


def _role_key(document: Any, rng: random.Random) -> None:
    holders = [c for c in _containers(document) if isinstance(c, dict) and "engine_kwargs" in c]
    if holders:
        key = rng.choice([*catalog.objects()["LLMConfig"], "kv_transfer_config", "bundles"])
        rng.choice(holders)[key] = copy.deepcopy(rng.choice(_WORDS))


def _kv_key(document: Any, rng: random.Random) -> None:
    holders = [c for c in _containers(document) if isinstance(c, dict) and "kv_connector" in c]
    if holders:
        key = rng.choice(list(catalog.objects()["KVTransferConfig"]))
        rng.choice(holders)[key] = copy.deepcopy(rng.choice(_WORDS))


_MUTATIONS = (
    _delete, _rename, _replace, _replace, _misspell, _move, _wrap, _engine_argument,
    _engine_argument, _deployment_option, _role_key, _kv_key,
)  # fmt: skip


def _typo(word: str, rng: random.Random) -> str:
    if not word:
        return "x"
    at = rng.randrange(len(word))
    return rng.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word.upper(),
            word.replace("_", "-"),
            word[:at] + rng.choice("abcxyz_ ") + word[at + 1 :],
            word + "s",
        )
    )


def mutate_text(text: str, rng: random.Random) -> str:
    """One to three changes to the text of a good file."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        lines = text.splitlines(keepends=True) or ["\n"]
        at = rng.randrange(len(lines))
        column = rng.randrange(max(len(lines[at]), 1))
        kind = rng.randrange(9)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines[at] = lines[at].lstrip(" ")
        elif kind == 2:
            lines[at] = rng.choice(("  ", "\t", " ")) + lines[at]
        elif kind == 3:
            lines.insert(at, rng.choice(lines))
        elif kind == 4:
            lines[at] = lines[at][:column] + lines[at][column + 1 :]
        elif kind == 5:
            odd = rng.choice("\t\x00\x07\u2028\ufeff{}[]&*!|>'\"%@`#:,-?$é\U0001f600")
            lines[at] = lines[at][:column] + odd + lines[at][column:]
        elif kind == 6:
            lines = lines[:at]
        elif kind == 7:
            other = rng.choice((":", " = ", ":  &a ", ": *a ", ": !t "))
            lines[at] = lines[at].replace(": ", other, 1)
        else:
            lines = [line.lstrip(" ") for line in lines]
        text = "".join(lines)
    return text
