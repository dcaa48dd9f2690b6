"""Reads `known_issues.toml` and matches its entries against an application."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

from baton.spec.faults import Path, Severity, shown
from baton.spec.matched import MATCHED
from baton.spec.rules.registry import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from baton.spec.view import AppView, RoleView

_ROLE_FACTS = ("on_cpu", "uses_nixl", "backends", "num_replicas", "tp", "pp")


@dataclass(frozen=True)
class Issue:
    """One entry of the file."""

    issue_id: str
    title: str
    severity: Severity
    versions: dict[str, str]
    when: tuple[dict[str, Any], ...]
    at: str
    message: str
    cure: str
    source: str

    @property
    def why(self) -> str:
        """The explanation, as a rule's docstring would give it."""
        seen = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{self.message[:1].upper()}{self.message[1:]}.\n\n" + (
            f"Seen with {seen}.\n\n" if seen else ""
        ) + f"Source: {self.source}."  # fmt: skip


@cache
def issues() -> tuple[Issue, ...]:
    """All entries whose versions are those of the matched set."""
    text = (resources.files("baton.spec") / "known_issues.toml").read_text(encoding="utf-8")
    return tuple(issue for issue in map(_issue, tomllib.loads(text)["issue"]) if _applies(issue))


def _issue(entry: dict[str, Any]) -> Issue:
    return Issue(
        issue_id=entry["id"],
        title=entry["title"],
        severity=cast("Severity", entry["severity"]),
        versions=dict(entry.get("versions", {})),
        when=tuple(entry["when"]),
        at=entry.get("at", entry["when"][0]["key"]),
        message=entry["message"],
        cure=entry["cure"],
        source=entry["source"],
    )


def _applies(issue: Issue) -> bool:
    return all(fnmatch(MATCHED[name], pattern) for name, pattern in issue.versions.items())


def findings(issue: Issue, app: AppView) -> Iterator[Finding]:
    """Where an entry holds: once for each role if it speaks of roles, else once."""
    by_role = any(c["key"].split(".")[0] in {"role", "env"} for c in issue.when)
    roles = app.roles if by_role else (app.prefill,)
    for role in roles:
        if not all(_holds(condition, app, role) for condition in issue.when):
            continue
        path, value = _place(issue.at, app, role)
        allowed = "nothing, or another value" if issue.severity == "error" else None
        yield Finding(path, issue.message, found=value, allowed=allowed, cure=issue.cure)
        if issue.at.split(".")[0] not in {"role", "env"}:
            return


def _holds(condition: dict[str, Any], app: AppView, role: RoleView) -> bool:
    value = _value(condition["key"], app, role)
    checks: dict[str, Callable[[Any], bool]] = {
        # 1 and true are the same to pydantic, and so they are here.
        "is": lambda wanted: value == wanted,
        "is_not": lambda wanted: value != wanted,
        "in": lambda wanted: value in wanted,
        "contains": lambda wanted: isinstance(value, (str, list)) and wanted in value,
        "set": lambda wanted: (value is not None) == wanted,
        "above": lambda wanted: isinstance(value, (int, float)) and value > wanted,
    }
    return all(checks[name](wanted) for name, wanted in condition.items() if name != "key")


def _value(key: str, app: AppView, role: RoleView) -> Any:
    head, _, rest = key.partition(".")
    if head == "env":
        return role.env_vars.get(rest)
    if head == "app":
        return getattr(app, rest)
    if head == "model":
        return None if app.facts is None else getattr(app.facts, rest)
    if head == "role" and rest in _ROLE_FACTS:
        return getattr(role, rest)
    here: Any = {
        "role": role.config,
        "prefill": app.prefill.config,
        "decode": app.decode.config,
        "baton": app.baton.model_dump(),
    }[head]
    for part in rest.split("."):
        here = here.get(part) if isinstance(here, dict) else None
    return here


def _place(key: str, app: AppView, role: RoleView) -> tuple[Path, str | None]:
    head, _, rest = key.partition(".")
    value = _value(key, app, role)
    found = None if value is None or isinstance(value, dict) else shown(value)
    if head == "env":
        return role.env_at(rest), found
    if head == "baton":
        return (*app.baton_path, *rest.split(".")), found
    holder = {"prefill": app.prefill, "decode": app.decode}.get(head, role)
    return holder.at(*rest.split(".")), found
