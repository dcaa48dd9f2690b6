"""`${NAME}` in values: looked up in the environment when a file is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from baton.spec.faults import Path
from baton.spec.scalars import resolve

_VARIABLE = re.compile(
    r"\$(?P<escaped>\$)?\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"
)
_UNCLOSED = re.compile(r"\$\{[^}]*$")
# `$NAME`, `${NAME:?…}`, `${{ … }}`: what shells and pipelines resolve, and nothing here does.
_OTHER_FORM = re.compile(r"(?<!\$)\$\{")

Report = Callable[[Path, str, str, str], None]
"""Called with path, value, message and cure for each variable that cannot be resolved."""


def resolve_variables(
    value: Any,
    env: Mapping[str, str],
    report: Report,
    plain: Callable[[Path], bool] = lambda _where: False,
    where: Path = (),
) -> Any:
    """Replaces `${NAME}` and `${NAME:-default}` in every text value; `$${` stays `${`.

    An unset or empty variable is reported and the text kept. A value that was nothing but an
    unquoted variable is read again as YAML, so `${TP}` can be a number. What stands under
    `runtime_env` is left alone: Ray itself expands `${NAME}` there, on the node where the worker
    starts (ray 2.60 `_private/utils.py`, `update_envs`).
    """
    if isinstance(value, dict):
        return {
            key: item
            if key == "runtime_env"
            else resolve_variables(item, env, report, plain, (*where, key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            resolve_variables(item, env, report, plain, (*where, index))
            for index, item in enumerate(value)
        ]
    if not isinstance(value, str) or "$" not in value:
        return value
    wrong = list(_wrong(value, env))
    for message, cure in wrong:
        report(where, value, message, cure)
    if wrong:
        return value
    text = _VARIABLE.sub(lambda match: _replacement(match, env), value)
    return resolve(text) if plain(where) and _VARIABLE.fullmatch(value) else text


def _wrong(value: str, env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Message and cure for each variable that cannot be resolved."""
    for match in _VARIABLE.finditer(value):
        name = match["name"]
        if match["escaped"] or env.get(name) or match["default"]:
            continue
        state = "empty" if name in env else "not set"
        yield f"`${{{name}}}` is {state}", f"export {name}=… before you start"
    if _UNCLOSED.search(value):
        yield "`${` is never closed", "write ${NAME}, or $${ for the text itself"
    elif _OTHER_FORM.search(_VARIABLE.sub("", value)):
        cure = "write ${NAME} or ${NAME:-default}, or $${ for the text itself"
        yield "this form of a variable is not resolved", cure


def _replacement(match: re.Match[str], env: Mapping[str, str]) -> str:
    if match["escaped"]:
        return match[0][1:]
    return env.get(match["name"]) or str(match["default"])
