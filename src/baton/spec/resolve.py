"""Fills in what the user left open: paths, engine ids, the connector.

Ports are not resolved here: each replica takes free ones of `baton.engines` when it starts.
"""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from baton.spec.faults import Edit, Severity, shown
from baton.spec.rules.model import STATE_LAYOUT
from baton.spec.slips import Slip
from baton.spec.view import AppView, mapping, text

if TYPE_CHECKING:
    from collections.abc import Iterator

_KV_ROLE = {"prefill": "kv_producer", "decode": "kv_consumer"}


def defaults(app: AppView) -> Iterator[tuple[Slip, Severity]]:
    """What is filled in, as edits below `args`, each with how loudly to say so."""
    for role in app.roles:
        key = f"{role.role}_config"
        for name in ("model_source", "tokenizer_source"):
            value = text(role.loading.get(name))
            if value is not None and value.startswith("~"):
                full = _expanded(value)
                if full is not None:
                    edit = Edit("set", (key, "model_loading_config", name), value=full)
                    yield Slip("BTN-210", f"`{name}` is expanded", value, full, edit), "note"
        if not role.config or not isinstance(role.config.get("engine_kwargs", {}), dict):
            continue
        if app.is_rays:
            continue
        if role.engine.get("kv_transfer_config") is None:
            value_of = {
                "kv_connector": "NixlConnector",
                "kv_role": _KV_ROLE[role.role],
                "engine_id": role.role,
            }
            if "engine_kwargs" not in role.config:
                edit = Edit("set", (key, "engine_kwargs"), value={"kv_transfer_config": value_of})
            else:
                edit = Edit("set", (key, "engine_kwargs", "kv_transfer_config"), value=value_of)
            yield (
                Slip(
                    "BTN-211",
                    f"{role.role} has no `kv_transfer_config`; Baton supplies one",
                    "nothing",
                    shown(value_of),
                    edit,
                ),
                "warning",
            )
        elif role.kv and role.uses_nixl and role.kv.get("engine_id") is None:
            edit = Edit(
                "set", (key, "engine_kwargs", "kv_transfer_config", "engine_id"), value=role.role
            )
            yield (
                Slip(
                    "BTN-212",
                    f"{role.role} has no `engine_id`; it is called `{role.role}`",
                    "nothing",
                    role.role,
                    edit,
                ),
                "note",
            )


def late_defaults(app: AppView) -> Iterator[tuple[Slip, Severity]]:
    """What is filled in once the model is known, or is known to be unknown."""
    if app.is_rays or (app.facts is not None and not app.facts.has_mamba):
        return
    for role in app.roles:
        if not role.uses_nixl or role.on_cpu or STATE_LAYOUT in role.env_vars:
            continue
        own = role.config.get("runtime_env")
        if not isinstance(own, (dict, type(None))) or not isinstance(
            mapping(own).get("env_vars", {}), dict
        ):
            continue
        key = f"{role.role}_config"
        env_vars = {**role.own_env_vars, STATE_LAYOUT: "DS"}
        edit = Edit("set", (key, *role.env_where), value=env_vars)
        if len(role.env_where) == len(("runtime_env", "env_vars")):
            value = {**mapping(own), "env_vars": env_vars}
            edit = Edit("set", (key, "runtime_env"), value=value)
        summary = f"{role.role} gets {STATE_LAYOUT}=DS, which NIXL wants for state layers"
        yield Slip("BTN-213", summary, "nothing", "DS", edit), "note"


def _expanded(value: str) -> str | None:
    try:
        return str(FilePath(value).expanduser())
    except (RuntimeError, ValueError):
        return None
