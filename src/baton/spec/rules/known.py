"""Known-fatal combinations, from data: every entry of `known_issues.toml` is a rule of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec.known_issues import Issue, findings, issues
from baton.spec.rules.registry import Finding, RuleFunction, add

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView


def _as_rule(issue: Issue) -> RuleFunction:
    def run(app: AppView) -> Iterator[Finding]:
        return findings(issue, app)

    return run


for _issue in issues():
    add(_issue.issue_id, _issue.severity, _issue.title, _issue.why, _as_rule(_issue))
