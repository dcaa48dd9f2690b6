"""Flags for the settings of `baton eks`, shared by its verbs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from baton.deploy.eks.config import EksSettings, choices, env_name, flag_name
from baton.deploy.eks.origins import Resolved, read_settings, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

SETTINGS_FILE = "eks.yaml"


def _help(name: str) -> str:
    field = EksSettings.model_fields[name]
    return f"{field.description or ''} [{env_name(name)}]".strip()


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Adds a flag for each setting, and `--settings`. Values arrive as text, by name."""
    for name in reversed(EksSettings.model_fields):
        words = choices(name)
        function = click.option(
            flag_name(name),
            name,
            metavar="|".join(words) if words else "TEXT",
            default=None,
            help=_help(name),
        )(function)
    return click.option(
        "--settings",
        "settings_file",
        type=click.Path(path_type=Path),
        default=None,
        help=f"Settings file; {SETTINGS_FILE} beside FILE when it is there.",
    )(function)


def found_settings(
    settings_file: Path | None, beside: Path | None, flags: dict[str, Any]
) -> Resolved:
    """The settings of this call."""
    path = settings_file
    if path is None:
        near = (beside.parent if beside is not None else Path()) / SETTINGS_FILE
        path = near if near.is_file() else None
    file = None if path is None else read_settings(path, os.environ)
    return resolve(flags, os.environ, file)
