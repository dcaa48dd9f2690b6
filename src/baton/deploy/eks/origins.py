"""Where each setting comes from: flag over environment over file over default.

All faults are found in one run, each with the place that the value came from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from baton.deploy.eks.config import (
    EksSettings,
    choices,
    contradictions,
    env_name,
    flag_name,
)
from baton.errors import ConfigRefused
from baton.spec.check import refusal
from baton.spec.faults import Fault, Place, Spot, shown
from baton.spec.loaded import fault_of, resolved
from baton.spec.suggest import nearest
from baton.spec.yaml_tree import parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Kind = Literal["flag", "environment", "file", "default"]


@dataclass(frozen=True)
class Origin:
    """Where one value comes from."""

    kind: Kind
    where: str
    """`--region`, `REGION`, `eks.yaml:3:1`, or nothing for a default."""
    place: Place = field(default_factory=Place)

    def __str__(self) -> str:
        return f"{self.kind} {self.where}".strip()


@dataclass(frozen=True)
class SettingsFile:
    """A settings file as it was read: values by name, and where each stands."""

    path: str
    values: dict[str, Any]
    spots: Mapping[tuple[Any, ...], Spot]

    def place(self, name: str, *, at_value: bool = False) -> Place:
        """Where a setting stands."""
        spot = self.spots.get((name,))
        if spot is None:
            return Place(self.path)
        return Place(self.path, *(spot.value if at_value else spot.key))


@dataclass(frozen=True)
class Resolved:
    """The settings, and where each value comes from."""

    settings: EksSettings
    origins: Mapping[str, Origin]

    def fault(
        self,
        rule_id: str,
        names: tuple[str, ...],
        message: str,
        *,
        allowed: str | None = None,
        cure: str | None = None,
    ) -> Fault:
        """A fault of one or more settings, at the place of the first."""
        first, *others = names
        origin = self.origins[first]
        related = tuple(
            (f"{name} ({self.origins[name]})", self.origins[name].place) for name in others
        )
        return Fault(
            rule_id,
            "error",
            message,
            origin.place.file or str(origin),
            origin.place.line,
            origin.place.column,
            first,
            found=shown(getattr(self.settings, first)),
            allowed=allowed,
            cure=cure,
            related=related,
        )


def read_settings(path: Path, env: Mapping[str, str]) -> SettingsFile:
    """Reads a settings file: a mapping of names to values, `${NAME}` resolved.

    Raises:
        ConfigRefused: with every fault of the text.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = getattr(exc, "strerror", None) or "it is not UTF-8"
        raise ConfigRefused(
            f"the settings file cannot be read: {reason}",
            place=str(path),
            cure="name a YAML file of settings; `baton eks config` lists their names",
        ) from exc
    trees = parse(text)
    tree = trees[0]
    faults = [fault_of(problem, str(path)) for problem in tree.problems]
    values = resolved(tree, str(path), env, faults)
    if not tree.empty and not isinstance(values, dict):
        faults.append(
            Fault(
                "EKS-004",
                "error",
                "a settings file holds `name: value` lines",
                str(path),
                1,
                1,
                found=shown(values),
                allowed="a mapping",
                cure="`baton eks config` lists the names",
            )
        )
    if any(fault.severity == "error" for fault in faults):
        raise refusal(tuple(faults))
    return SettingsFile(str(path), values if isinstance(values, dict) else {}, tree.spots)


def resolve(
    flags: Mapping[str, Any], env: Mapping[str, str], file: SettingsFile | None = None
) -> Resolved:
    """Puts the settings together.

    Args:
        flags: By name; None where the flag was not given.
        env: The environment. An empty variable counts as not set.
        file: The settings file, if there is one.

    Raises:
        ConfigRefused: with every setting that is unknown, wrong, or contradicts another.
    """
    faults = [] if file is None else list(_unknown(file))
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for name in EksSettings.model_fields:
        value, origin = _one(name, flags, env, file)
        origins[name] = origin
        if origin.kind != "default":
            values[name] = value
    try:
        settings = EksSettings.model_validate(values)
    except ValidationError as exc:
        faults += [_wrong(error, values, origins) for error in exc.errors(include_url=False)]
        raise refusal(tuple(faults)) from exc
    found = Resolved(settings, origins)
    faults += [
        found.fault("EKS-003", c.names, c.message, allowed=c.allowed, cure=c.cure)
        for c in contradictions(settings)
    ]
    if faults:
        raise refusal(tuple(faults))
    return found


def _one(
    name: str, flags: Mapping[str, Any], env: Mapping[str, str], file: SettingsFile | None
) -> tuple[Any, Origin]:
    if flags.get(name) is not None:
        return flags[name], Origin("flag", flag_name(name))
    variable = env_name(name)
    if env.get(variable):
        return env[variable], Origin("environment", variable)
    if file is not None and file.values.get(name) is not None:
        place = file.place(name)
        return file.values[name], Origin("file", str(place), file.place(name, at_value=True))
    return None, Origin("default", "")


def _unknown(file: SettingsFile) -> list[Fault]:
    names = list(EksSettings.model_fields)
    faults = []
    for name in file.values:
        if name in names:
            continue
        near = nearest(name, names)
        place = file.place(name)
        faults.append(
            Fault(
                "EKS-001",
                "error",
                f"there is no setting `{name}`",
                place.file,
                place.line,
                place.column,
                str(name),
                found=str(name),
                allowed="a setting that `baton eks config` lists",
                cure=f"did you mean `{near}`?" if near else "remove it",
            )
        )
    return faults


def _wrong(error: Any, values: Mapping[str, Any], origins: Mapping[str, Origin]) -> Fault:
    name = str(error["loc"][0])
    origin = origins[name]
    words = choices(name)
    wanted = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    wanted = ", ".join(words) if words else wanted
    near = nearest(values[name], words) if words else None
    cure = f"did you mean `{near}`?" if near else f"write {wanted}"
    return Fault(
        "EKS-002",
        "error",
        f"`{name}` must be {wanted}",
        origin.place.file or str(origin),
        origin.place.line,
        origin.place.column,
        name,
        found=shown(values[name]),
        allowed=wanted,
        cure=cure,
    )
