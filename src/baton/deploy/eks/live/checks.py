"""The checks before anything is changed: how a rule is written, and what it may say.

Each rule is a function of the layout and the facts. What it needs and is unknown makes its verdict
`unknown`, which is never a pass: where a rule `must` hold, an unknown verdict stops as a failure
does, unless the person accepts that rule by its id.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from baton.deploy.eks import findings
from baton.deploy.eks.live.facts import Fact, Facts, Unknown

if TYPE_CHECKING:
    from collections.abc import Collection

    from baton.deploy.eks.layout import Layout

T = TypeVar("T")
Word = Literal["pass", "warn", "fail", "unknown"]
_MODULES = ("checks_account", "checks_capacity", "checks_files")


@dataclass(frozen=True)
class Verdict:
    """What a rule says."""

    word: Word
    text: str
    cure: str = ""
    rule_id: str = ""
    title: str = ""
    must: bool = True
    accepted: bool = False

    @property
    def stops(self) -> bool:
        """Whether nothing may be changed."""
        return self.word == "fail" or (self.word == "unknown" and self.must and not self.accepted)


RuleFunction = Callable[["Layout", Facts], Verdict]


@dataclass(frozen=True)
class Rule:
    """One rule."""

    rule_id: str
    title: str
    must: bool
    run: RuleFunction


RULES: dict[str, Rule] = {}


class NotKnown(Exception):
    """A rule needs a fact that is unknown."""


def need(fact: Fact[T]) -> T:
    """The value of a fact.

    Raises:
        NotKnown: when it is unknown.
    """
    if isinstance(fact, Unknown):
        raise NotKnown(fact.why)
    return fact.value


def check(rule_id: str, title: str, *, must: bool = True) -> Callable[[RuleFunction], RuleFunction]:
    """Registers a rule; its docstring is what `baton explain` prints."""

    def register(function: RuleFunction) -> RuleFunction:
        findings.kind(rule_id, title, inspect.getdoc(function) or "")
        RULES[rule_id] = Rule(rule_id, title, must, function)
        return function

    return register


def all_checks() -> list[Rule]:
    """Every rule, by id."""
    for name in _MODULES:
        importlib.import_module(f"baton.deploy.eks.live.{name}")
    return [RULES[key] for key in sorted(RULES)]


def judge(layout: Layout, facts: Facts, accepted: Collection[str] = ()) -> list[Verdict]:
    """The verdict of every rule.

    Args:
        layout: What is to be made.
        facts: What is so.
        accepted: Ids of rules whose `unknown` the person takes upon themselves.
    """
    return [verdict_of(rule, layout, facts, accepted) for rule in all_checks()]


def verdict_of(rule: Rule, layout: Layout, facts: Facts, accepted: Collection[str] = ()) -> Verdict:
    """The verdict of one rule; what it needs and is unknown makes it `unknown`."""
    try:
        verdict = rule.run(layout, facts)
    except NotKnown as exc:
        verdict = Verdict("unknown", str(exc))
    return replace(
        verdict, rule_id=rule.rule_id, title=rule.title, must=rule.must,
        accepted=rule.rule_id in accepted,
    )  # fmt: skip
