"""Puts right what can mean one thing only, and says so.

A slip is corrected with a warning that shows the change; `--fix` writes it. Everything with two
possible meanings is left to the rules, which refuse it.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.spec import catalog
from baton.spec.faults import Edit, Path, shown
from baton.spec.owners import OWNERS, known_keys
from baton.spec.schema import BatonBlock
from baton.spec.typecheck import FALSE_WORDS, TRUE_WORDS, fits, number_from_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ROLES = ("prefill_config", "decode_config")


@dataclass(frozen=True)
class Slip:
    """One correction: `edit` on paths below `args`."""

    rule_id: str
    summary: str
    before: str
    after: str
    edit: Edit


@dataclass
class Corrected:
    """Arguments with every slip put right."""

    args: dict[Any, Any]
    slips: list[Slip] = field(default_factory=list)
    written: dict[Path, str] = field(default_factory=dict)

    def apply(self, slip: Slip) -> None:
        apply_edit(self.args, slip.edit)
        self.slips.append(slip)
        start, goal = slip.edit.path, slip.edit.to
        for path in [p for p in self.written if goal and p[: len(start)] == start]:
            self.written[(*goal, *path[len(start) :])] = self.written.pop(path)


def correct(args: dict[Any, Any], written: Mapping[Path, str] | None = None) -> Corrected:
    """Puts the slips of one application's `args` right, on a copy.

    Args:
        args: As read.
        written: How a value is written, by its path below `args`, where YAML changes it.
    """
    result = Corrected(copy.deepcopy(args), written=dict(written or {}))
    for step in (_hyphens, _json_text, _misplaced, _json_text, _hyphens, _types):
        for slip in list(step(result.args)):
            result.apply(slip)
    for role in _ROLES:
        for slip in list(_env_numbers(result.args, role, result.written)):
            result.apply(slip)
    return result


def apply_edit(root: Any, edit: Edit) -> None:
    """Plays one edit on plain values (or on the commented values of `--fix`)."""
    parent = root
    for part in edit.path[:-1]:
        parent = parent[part]
    last = edit.path[-1]
    if edit.kind == "set":
        parent[last] = copy.deepcopy(edit.value)
        return
    value = parent.pop(last)
    if edit.kind == "delete":
        return
    target = root
    for part in edit.to[:-1]:
        if not isinstance(target, list) and target.get(part) is None:
            target[part] = {}
        target = target[part]
    target[edit.to[-1]] = value


# -- where keys belong --------------------------------------------------------------------------


def _misplaced(args: dict[Any, Any]) -> Iterator[Slip]:
    """Keys that stand in the wrong mapping of a role and belong to exactly one other."""
    known = known_keys()
    for role in _ROLES:
        config = args.get(role)
        if not isinstance(config, dict):
            continue
        taken: set[Path] = set()
        for owner, where in OWNERS.items():
            inside = _at(config, where)
            if not isinstance(inside, dict):
                continue
            for key in inside:
                if owner in {"kv_extra", "runtime", "placement"} or key in known[owner]:
                    continue
                target = _only_owner(key, owner, known)
                if target is None or (target, key) in taken:
                    continue
                goal = (*OWNERS[target], key)
                if not _free(config, goal):
                    continue
                taken.add((target, key))
                yield _move(role, (*where, key), goal, inside[key])


def _only_owner(key: Any, owner: str, known: dict[str, set[str]]) -> str | None:
    owners = [name for name, keys in known.items() if name != owner and key in keys]
    return owners[0] if len(owners) == 1 else None


def _free(config: dict[Any, Any], goal: Path) -> bool:
    """Whether the goal is empty and everything on the way to it is a mapping or missing."""
    here: Any = config
    for part in goal[:-1]:
        if not isinstance(here, dict):
            return False
        here = here.get(part)
        if here is None:
            return True
    return isinstance(here, dict) and goal[-1] not in here


def _move(role: str, start: Path, goal: Path, value: Any) -> Slip:
    beside = ".".join(str(part) for part in (role, *start[:-1]))
    inside = ".".join(str(part) for part in (role, *goal[:-1]))
    rule_id = "BTN-110" if len(start) == 1 else "BTN-111"
    return Slip(
        rule_id,
        f"`{goal[-1]}` stands in `{beside}` and belongs in `{inside}`",
        f"{beside}.{start[-1]}: {shown(value, 60)}",
        f"{inside}.{goal[-1]}: {shown(value, 60)}",
        Edit("move", (role, *start), (role, *goal)),
    )


# -- how values are written ---------------------------------------------------------------------


def _hyphens(args: dict[Any, Any]) -> Iterator[Slip]:
    """`max-model-len`, `--max-model-len`: vLLM's command line written into YAML."""
    known = catalog.engine_kwargs()
    for role in _ROLES:
        for where in (("engine_kwargs",), ()):
            inside = _at(args, (role, *where))
            if not isinstance(inside, dict):
                continue
            for key in list(inside):
                if not isinstance(key, str) or "-" not in key:
                    continue
                name = key.lstrip("-").replace("-", "_")
                if name in known and name not in inside:
                    yield Slip(
                        "BTN-115",
                        f"`{key}` is written `{name}` in YAML",
                        key,
                        name,
                        Edit("move", (role, *where, key), (role, *where, name)),
                    )


def _json_text(args: dict[Any, Any]) -> Iterator[Slip]:
    """JSON in quotes where a mapping is wanted, as vLLM's command line takes it."""
    for role in _ROLES:
        for where in (
            (role,),
            (role, "engine_kwargs"),
            (role, "engine_kwargs", "kv_transfer_config"),
        ):
            inside = _at(args, where)
            if not isinstance(inside, dict):
                continue
            for key, value in inside.items():
                if not isinstance(value, str) or not value.lstrip().startswith("{"):
                    continue
                if not str(key).endswith(("_config", "_kwargs", "_overrides", "_per_prompt")):
                    continue
                parsed = _parse_json(value)
                if isinstance(parsed, dict):
                    yield Slip(
                        "BTN-114",
                        f"`{key}` is JSON in quotes; here it is a mapping",
                        shown(value),
                        shown(parsed),
                        Edit("set", (*where, key), value=parsed),
                    )


def _parse_json(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _types(args: dict[Any, Any]) -> Iterator[Slip]:
    """A lone value where a list is wanted; a number, `true` or text in the wrong kind of quotes."""
    objects = catalog.objects()
    for role in _ROLES:
        for where, fields in (
            (("engine_kwargs",), catalog.engine_kwargs()),
            (("engine_kwargs", "kv_transfer_config"), objects["KVTransferConfig"]),
            (("deployment_config",), objects["DeploymentConfig"]),
            (("deployment_config", "ray_actor_options"), objects["RayActorOptionsSchema"]),
            (("placement_group_config",), objects["PlacementGroupConfig"]),
        ):
            inside = _at(args, (role, *where))
            if not isinstance(inside, dict):
                continue
            for key, value in inside.items():
                entry = fields.get(key)
                if entry is not None:
                    yield from _retyped(entry["type"], value, (role, *where, key))
        extra = _at(args, (role, *OWNERS["kv_extra"]))
        if isinstance(extra, dict) and isinstance(extra.get("backends"), str):
            yield from _backends(extra["backends"], (role, *OWNERS["kv_extra"], "backends"))


def _backends(value: str, path: Path) -> Iterator[Slip]:
    """One name becomes a list of it, JSON in quotes the list that it is."""
    parsed = _parse_json(value)
    if isinstance(parsed, list) and parsed and all(isinstance(item, str) for item in parsed):
        yield Slip(
            "BTN-114",
            "`backends` is JSON in quotes; here it is a list",
            shown(value),
            shown(parsed),
            Edit("set", path, value=parsed),
        )
    elif value.isidentifier():
        yield from _listed(value, path)


def _env_numbers(args: dict[Any, Any], role: str, written: Mapping[Path, str]) -> Iterator[Slip]:
    """Ray 2.60 takes text only in `env_vars` (`ray/_private/runtime_env/validation.py`).

    The text is what stands in the file: `010` is not `8`, and `1.10` is not `1.1`.
    """
    where = (role, "runtime_env", "env_vars")
    env_vars = _at(args, where)
    for name, value in (env_vars if isinstance(env_vars, dict) else {}).items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = written.get((*where, name), str(value))
            yield Slip(
                "BTN-113",
                f"`{name}` is an environment variable: its value is text",
                text,
                f'"{text}"',
                Edit("set", (*where, name), value=text),
            )


def _retyped(kind: Any, value: Any, path: Path) -> Iterator[Slip]:
    parts = kind["union"] if isinstance(kind, dict) and "union" in kind else [kind]
    if isinstance(value, str):
        if "str" in parts or "any" in parts:
            return
        if any(isinstance(p, dict) and "choice" in p and value in p["choice"] for p in parts):
            return
        new = _unquoted(parts, value)
        if new is not None:
            yield Slip(
                "BTN-113",
                f"`{path[-1]}` is in quotes and is no text",
                f'"{value}"',
                shown(new),
                Edit("set", path, value=new),
            )
            return
    lists = [p for p in parts if isinstance(p, dict) and p.get("list", "any") != "any"]
    wrong = value is not None and not isinstance(value, list)
    if lists and wrong and not fits(kind, value) and fits(lists[0]["list"], value):
        yield from _listed(value, path)


def _unquoted(parts: list[Any], value: str) -> Any:
    for part in parts:
        name = part.get("number") if isinstance(part, dict) else part
        if name in ("int", "float"):
            number = number_from_text(name, value)
            if number is not None:
                return number
    if "bool" in parts and value.lower() in TRUE_WORDS | FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    return None


def _listed(value: Any, path: Path) -> Iterator[Slip]:
    yield Slip(
        "BTN-112",
        f"`{path[-1]}` is a list, here with one entry",
        shown(value),
        shown([value]),
        Edit("set", path, value=[value]),
    )


def _at(root: Any, path: Path) -> Any:
    here = root
    for part in path:
        if not isinstance(here, dict):
            return None
        here = here.get(part)
    return here


# -- around the application ---------------------------------------------------------------------


def outside_args(app: dict[Any, Any]) -> Iterator[Slip]:
    """Parts of `args` that stand beside it in the application."""
    for key in (*_ROLES, "baton"):
        args = app.get("args")
        if key in app and isinstance(app[key], dict) and (args is None or isinstance(args, dict)):
            if key in (args or {}):
                continue
            yield Slip(
                "BTN-111",
                f"`{key}` stands beside `args` and belongs in it",
                key,
                f"args.{key}",
                Edit("move", (key,), ("args", key)),
            )
    if "args" in app and isinstance(app["args"], dict):
        yield from _block_keys(app["args"])


def _block_keys(args: dict[Any, Any]) -> Iterator[Slip]:
    """`recovery:` and its like directly in `args`: parts of the `baton` block."""
    block = args.get("baton")
    if block is not None and not isinstance(block, dict):
        return
    for key in args:
        if key in BatonBlock.model_fields and key not in (block or {}):
            yield Slip(
                "BTN-111",
                f"`{key}` stands in `args` and belongs in `args.baton`",
                f"args.{key}",
                f"args.baton.{key}",
                Edit("move", ("args", key), ("args", "baton", key)),
            )
