"""Asks vLLM about the arguments that only vLLM can judge, for `validate` and `up`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from baton.spec.check import Report
    from baton.spec.checked import CheckedApp
    from baton.spec.faults import Fault

RULE = "BTN-107"


def judged(report: Report) -> Report:
    """The same report, with what vLLM refuses as errors in place of the notes that it decides."""
    notes = [fault for fault in report.faults if fault.rule_id == RULE]
    if report.checked is None or not notes:
        return report
    from baton.engine.arguments import Question, ask, can_judge
    from baton.spec.check import Report as NewReport

    questions = {}
    for index, app in enumerate(report.checked.applications):
        for role, config in _configs(app):
            path = f"applications[{index}].args.{role}_config."
            if app.facts is None or not any(note.key_path.startswith(path) for note in notes):
                continue
            question = Question(
                role=path,
                engine_kwargs=dict(config.get("engine_kwargs") or {}),
                model=app.facts.source,
                on_cpu=app.roles[role].on_cpu,
            )
            if can_judge(question):
                questions[path] = question
    if not questions:
        return report
    click.echo("asking vLLM about the arguments that it alone can judge …", err=True)
    faults = list(report.faults)
    for verdict in ask(list(questions.values())):
        mine = [note for note in notes if note.key_path.startswith(verdict.role)]
        faults = [fault for fault in faults if fault not in mine]
        if verdict.refusal is not None:
            faults.append(_error(mine, verdict.refusal))
    faults.sort(key=lambda fault: ("error", "warning", "note").index(fault.severity))
    refused = any(fault.severity == "error" for fault in faults)
    return NewReport(
        report.loaded, tuple(faults), None if refused else report.checked, report.changes
    )


def _configs(app: CheckedApp) -> list[tuple[Any, dict[str, Any]]]:
    if not app.has_rules:
        return []
    return [(role, app.args.get(f"{role}_config") or {}) for role in app.roles]


def _error(notes: list[Fault], refusal: str) -> Fault:
    """At the argument that vLLM's message names, or else at the first that it was asked about."""
    named = [note for note in notes if note.key_path.rsplit(".", 1)[-1] in refusal]
    return replace(
        (named or notes)[0], severity="error", message=f"vLLM refuses it: {refusal}", cure=None
    )
