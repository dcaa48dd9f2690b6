"""Keeps the rules: a decorator that registers them, and the way to find one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.spec.view import AppView

if TYPE_CHECKING:
    from baton.spec.faults import Path, Severity

_MODULES = (
    "reading",
    "slips",
    "shape",
    "engine",
    "connector",
    "pair",
    "parallel",
    "environment",
    "serving",
    "bundles",
    "scaling",
    "lora",
    "resources",
    "block",
    "placement",
    "exposure",
    "model",
    "defaults",
    "adapting",
    "known",
)


@dataclass(frozen=True)
class Finding:
    """What a rule says; the check adds the place."""

    path: Path
    message: str
    found: str | None = None
    allowed: str | None = None
    cure: str | None = None
    severity: Severity | None = None
    related: tuple[tuple[str, Path], ...] = ()
    at_value: bool = False


RuleFunction = Callable[[AppView], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """One rule. `run` is None for what is found while reading or adapting, outside the rules."""

    rule_id: str
    severity: Severity
    title: str
    why: str
    run: RuleFunction | None = None


RULES: dict[str, Rule] = {}


def rule(rule_id: str, severity: Severity, title: str) -> Callable[[RuleFunction], RuleFunction]:
    """Registers a function as a rule; its docstring is the explanation."""

    def register(function: RuleFunction) -> RuleFunction:
        _add(Rule(rule_id, severity, title, inspect.getdoc(function) or "", function))
        return function

    return register


def describe(rule_id: str, severity: Severity, title: str, why: str) -> None:
    """Registers what is found elsewhere, so that it can be explained as well."""
    _add(Rule(rule_id, severity, title, inspect.cleandoc(why)))


def add(rule_id: str, severity: Severity, title: str, why: str, run: RuleFunction | None) -> None:
    """Registers a rule that comes from data."""
    _add(Rule(rule_id, severity, title, why, run))


def _add(new: Rule) -> None:
    if new.rule_id in RULES:
        raise ValueError(f"two rules are called {new.rule_id}")
    RULES[new.rule_id] = new


def all_rules() -> list[Rule]:
    """Every rule, by id."""
    for name in _MODULES:
        importlib.import_module(f"baton.spec.rules.{name}")
    return [RULES[key] for key in sorted(RULES)]


def find_rule(rule_id: str) -> Rule | None:
    """A rule by its id, in any case."""
    all_rules()
    return RULES.get(rule_id.upper())
