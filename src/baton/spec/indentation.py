"""Rebuilds a file that lost its indentation, when its keys allow one shape only.

Copied out of a web page or a chat, every line starts at the left. Which mapping a key belongs to is
then known only from its name: `dtype` is an engine argument, `kv_role` belongs in
`kv_transfer_config`. All assignments of lines to the mappings that are open above them are tried;
exactly one that fits is the file. Lines keep their numbers, so that every place stays right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from baton.spec import catalog
from baton.spec.schema import BatonBlock
from baton.spec.yaml_tree import parse

if TYPE_CHECKING:
    from collections.abc import Iterator

_LINE = re.compile(r"(?P<dash>-\s+)?(?P<key>[A-Za-z_][A-Za-z0-9_./-]*)\s*:(?:\s+(?P<rest>.*))?$")
_ANCHOR = re.compile(r"&\S+\s*(?:#.*)?")
_ALIAS = re.compile(r"\*\S+\s*(?:#.*)?")
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
# A file needs at least these many keys that cannot stand at the root to be recognised.
_SIGNS = 3
_STEP_LIMIT = 20_000


@dataclass(frozen=True)
class _Entry:
    """One line: a key, and what stands behind it."""

    number: int
    dash: bool
    key: str
    rest: str

    @property
    def opens(self) -> bool:
        """Whether the value is on the lines below."""
        return not self.rest or self.rest.startswith("#") or bool(_ANCHOR.fullmatch(self.rest))

    @property
    def is_whole(self) -> bool:
        """Whether the value ends on its line; text in blocks and open brackets do not."""
        if self.opens or _ALIAS.fullmatch(self.rest):
            return True
        if self.rest[0] in "|>":
            return False
        trees = parse(f"- {self.rest}\n")
        return len(trees) == 1 and not trees[0].broken and isinstance(trees[0].value, list)


@dataclass(frozen=True)
class Rebuilt:
    """The outcome: the text with its indentation, or the line where the shape is not certain."""

    text: str | None
    uncertain_line: int = 0
    reason: str = "this line is not a key with a value"


def looks_flat(text: str) -> bool:
    """Whether every line starts at the left and the keys belong to a deeper file."""
    signs = 0
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if line[0] in " \t":
            return False
        match = _LINE.match(line)
        if match and match["key"] in _deep_keys() and not match["dash"]:
            signs += 1
    return signs >= _SIGNS


def rebuild(text: str) -> Rebuilt:
    """Gives a flat text its indentation back."""
    lines = text.splitlines()
    entries = []
    for number, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line.rstrip())
        if match is None:
            if not re.match(r"-\s+\S", line):
                return Rebuilt(None, number + 1)
            entries.append(_Entry(number, dash=True, key="", rest=line[1:].strip()))
            continue
        entries.append(_Entry(number, bool(match["dash"]), match["key"], match["rest"] or ""))
    for entry in entries:
        if not entry.is_whole:
            reason = "the value on this line goes on below it"
            return Rebuilt(None, entry.number + 1, reason)
    search = _Search(entries)
    shapes = search.run()
    if len(shapes) != 1:
        number = _first_difference(shapes, entries, search.furthest)
        reason = "fits nowhere" if not shapes else "can stand in more than one place"
        return Rebuilt(None, number, f"the key on this line {reason}")
    return Rebuilt(_written(lines, entries, shapes[0]))


def _first_difference(shapes: list[tuple[int, ...]], entries: list[_Entry], furthest: int) -> int:
    if len(shapes) > 1:
        pairs = zip(*shapes, strict=True)
        index = next((i for i, depths in enumerate(pairs) if len(set(depths)) > 1), 0)
        return entries[index].number + 1
    return entries[min(furthest, len(entries) - 1)].number + 1 if entries else 1


def _written(lines: list[str], entries: list[_Entry], columns: tuple[int, ...]) -> str:
    column_of = {entry.number: column for entry, column in zip(entries, columns, strict=True)}
    written: list[str] = []
    column = 0
    for number in range(len(lines) - 1, -1, -1):
        # From the bottom, so that a comment takes the column of the line it stands above.
        column = column_of.get(number, column)
        text = lines[number].strip()
        written.append(" " * column + text if text else "")
    return "\n".join(reversed(written)) + "\n"


@dataclass(frozen=True)
class _Open:
    """A mapping that is open: what it may hold, the column of its keys, and the keys it has."""

    kind: str
    column: int
    keys: frozenset[str] = frozenset()


class _Search:
    """Tries every assignment of lines to open mappings; stops at the second that fits."""

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.furthest = 0
        self.steps = 0
        self.found: list[tuple[int, ...]] = []

    def run(self) -> list[tuple[int, ...]]:
        self._step(0, (_Open("root", 0),), ())
        return self.found

    def _step(self, index: int, stack: tuple[_Open, ...], columns: tuple[int, ...]) -> None:
        self.steps += 1
        if len(self.found) > 1 or self.steps > _STEP_LIMIT:
            return
        self.furthest = max(self.furthest, index)
        if index == len(self.entries):
            self.found.append(columns)
            return
        for column, after in self._ways(self.entries[index], stack):
            self._step(index + 1, after, (*columns, column))

    def _ways(
        self, entry: _Entry, stack: tuple[_Open, ...]
    ) -> Iterator[tuple[int, tuple[_Open, ...]]]:
        for depth in range(len(stack) - 1, -1, -1):
            holder = stack[depth]
            if entry.dash:
                yield from _dashed(entry, holder, stack[:depth])
            elif entry.key not in holder.keys:
                kind = _child(holder.kind, entry.key)
                if kind is not None and not (kind == "nest" and entry.opens):
                    yield holder.column, _opened(entry, holder, kind, stack[:depth])


def _dashed(
    entry: _Entry, holder: _Open, below: tuple[_Open, ...]
) -> Iterator[tuple[int, tuple[_Open, ...]]]:
    """A list item: in the list that is open, or the next one of it."""
    if not holder.kind.startswith("list:"):
        return
    item = holder.kind.removeprefix("list:")
    if not entry.key:
        yield holder.column, (*below, holder)
        return
    kind = _child(item, entry.key)
    if kind is not None and not (kind == "nest" and entry.opens):
        inner = _Open(item, holder.column + 2)
        yield holder.column, _opened(entry, inner, kind, (*below, holder))


def _opened(entry: _Entry, holder: _Open, kind: str, below: tuple[_Open, ...]) -> tuple[_Open, ...]:
    filled = _Open(holder.kind, holder.column, holder.keys | {entry.key})
    if not entry.opens or kind in {"leaf", "nest"}:
        return (*below, filled)
    # A list stands at the column of its key, as in the examples.
    column = holder.column if kind.startswith("list:") else holder.column + 2
    return (*below, filled, _Open(kind, column))


def _child(kind: str, key: str) -> str | None:
    """What a key opens in a mapping of some kind, or None when it cannot stand there.

    `leaf` is a plain value. `nest` may be a mapping or a list whose keys are not known here: such a
    value has to stand on its own line, because what is below it could be anything.
    """
    if kind == "env_vars":
        return "leaf" if _ENV_NAME.fullmatch(key) else None
    return _grammar().get(kind, {}).get(key)


@cache
def _grammar() -> dict[str, dict[str, str]]:
    objects = catalog.objects()

    def leaves(names: Any, **special: str) -> dict[str, str]:
        fields = names if isinstance(names, dict) else {}
        kinds = {
            name: "nest" if _may_nest(fields.get(name, {}).get("type", "str")) else "leaf"
            for name in names
        }
        return {**kinds, **special}

    grammar = {
        "root": leaves(
            objects["ServeDeploySchema"], applications="list:app", http_options="http_options"
        ),
        "http_options": leaves(objects["HTTPOptionsSchema"]),
        "app": leaves(objects["ServeApplicationSchema"], args="args", runtime_env="runtime_env"),
        "args": {"prefill_config": "role", "decode_config": "role", "baton": "baton"},
        "role": leaves(
            objects["LLMConfig"],
            model_loading_config="loading",
            engine_kwargs="engine",
            deployment_config="deployment",
            placement_group_config="placement",
            runtime_env="runtime_env",
        ),
        "loading": leaves(objects["ModelLoadingConfig"]),
        "engine": leaves(catalog.engine_kwargs(), kv_transfer_config="kv"),
        "kv": leaves(objects["KVTransferConfig"], kv_connector_extra_config="kv_extra"),
        "kv_extra": leaves(
            (*catalog.vllm()["nixl_extra_config"], "enable_cross_layers_blocks"),
            backends="list:text",
        ),
        "deployment": {
            **dict.fromkeys(catalog.deployment_options(), "nest"),
            **dict.fromkeys(("num_replicas", "max_ongoing_requests", "name"), "leaf"),
            "autoscaling_config": "autoscaling",
        },
        "autoscaling": leaves(objects["AutoscalingConfig"]),
        "placement": {"bundles": "list:bundle", "bundle_per_worker": "bundle", "strategy": "leaf"},
        "bundle": leaves(("CPU", "GPU", "memory")),
        "runtime_env": {
            "working_dir": "leaf",
            "pip": "nest",
            "py_modules": "nest",
            "env_vars": "env_vars",
        },
        "baton": {name: f"baton.{name}" for name in BatonBlock.model_fields},
    }
    for name, field in BatonBlock.model_fields.items():
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        model: Any = next(c for c in candidates if hasattr(c, "model_fields"))
        grammar[f"baton.{name}"] = leaves(list(model.model_fields))
    return grammar


def _may_nest(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind == "any"
    if "union" in kind:
        return any(_may_nest(part) for part in kind["union"])
    return bool({"list", "dict", "object"} & set(kind))


@cache
def _deep_keys() -> frozenset[str]:
    grammar = _grammar()
    return frozenset({*grammar["args"], *grammar["role"], *grammar["kv"], *grammar["loading"]})
