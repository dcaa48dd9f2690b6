"""Asks vLLM about the arguments that only vLLM can judge, for `validate` and `up`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.check import Report
    from baton.spec.checked import CheckedApp, CheckedFile
    from baton.spec.faults import Fault
    from baton.spec.schema import Role

RULE = "BTN-107"


def judged(report: Report) -> Report:
    """The same report, with what vLLM refuses as errors in place of the notes that it decides."""
    if report.checked is None:
        return report
    faults = _answered(report.checked, report.faults)
    if faults is None:
        return report
    refused = any(fault.severity == "error" for fault in faults)
    return replace(report, faults=faults, checked=None if refused else report.checked)


def judged_file(checked: CheckedFile) -> CheckedFile:
    """The same file when vLLM takes it, without the notes that vLLM has answered.

    Raises:
        ConfigRefused: With what vLLM refuses in `.faults`.
    """
    faults = _answered(checked, checked.warnings)
    if faults is None:
        return checked
    if any(fault.severity == "error" for fault in faults):
        from baton.spec.check import refusal

        raise refusal(faults)
    return replace(checked, warnings=faults)


def _answered(checked: CheckedFile, faults: tuple[Fault, ...]) -> tuple[Fault, ...] | None:
    """The faults after vLLM has been asked; None when there was nothing to ask it."""
    open_notes = _open_notes(checked, faults)
    if not open_notes:
        return None
    from baton.engine.arguments import Question, ask, can_judge

    questions = []
    for path, role, app in _roles(checked):
        if app.facts is None or path not in open_notes:
            continue
        config = app.args.get(f"{role}_config") or {}
        question = Question(
            role=path,
            engine_kwargs=dict(config.get("engine_kwargs") or {}),
            model=app.facts.source,
            on_cpu=app.roles[role].on_cpu,
        )
        if can_judge(question):
            questions.append(question)
    if not questions:
        return None
    click.echo("asking vLLM about the arguments that it alone can judge …", err=True)
    found = list(faults)
    for verdict in ask(questions):
        mine = open_notes[verdict.role]
        found = [fault for fault in found if fault not in mine]
        if verdict.refusal is not None:
            found.append(_error(mine, verdict.refusal))
    found.sort(key=lambda fault: ("error", "warning", "note").index(fault.severity))
    return tuple(found)


def _open_notes(checked: CheckedFile, faults: tuple[Fault, ...]) -> dict[str, list[Fault]]:
    """The notes of each role about arguments that are still there: `--on cpu` removes some."""
    notes = [fault for fault in faults if fault.rule_id == RULE]
    found: dict[str, list[Fault]] = {}
    for path, role, app in _roles(checked) if notes else ():
        engine = (app.args.get(f"{role}_config") or {}).get("engine_kwargs") or {}
        left = {f"{path}engine_kwargs.{key}" for key in engine}
        mine = [n for n in notes if n.key_path.startswith(path) and _within(n.key_path, left)]
        if mine:
            found[path] = mine
    return found


def _within(key_path: str, paths: set[str]) -> bool:
    return any(key_path == path or key_path.startswith(f"{path}.") for path in paths)


def _roles(checked: CheckedFile) -> Iterator[tuple[str, Role, CheckedApp]]:
    for index, app in enumerate(checked.applications):
        if app.has_rules:
            for role in app.roles:
                yield f"applications[{index}].args.{role}_config.", role, app


def _error(notes: list[Fault], refusal: str) -> Fault:
    """At the argument that vLLM's message names, or else at the first that it was asked about."""
    named = [note for note in notes if note.key_path.rsplit(".", 1)[-1] in refusal]
    return replace(
        (named or notes)[0], severity="error", message=f"vLLM refuses it: {refusal}", cure=None
    )
