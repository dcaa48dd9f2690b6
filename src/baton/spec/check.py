"""Checks a file before anything starts: all faults in one run.

The order is read, put slips right, compare with what vLLM and Ray know, apply the rules, fill in
defaults. `check_args` does the same for plain arguments when Ray calls the builder without a file.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from baton.errors import ConfigRefused
from baton.spec.checked import CheckedApp, CheckedFile
from baton.spec.faults import Change, Edit, Fault, Path, Place, Severity, Spot, dotted, shown
from baton.spec.foreign import foreign
from baton.spec.frame import check_frame
from baton.spec.loaded import LoadedFile
from baton.spec.model_facts import ModelFacts, find_model, is_local, read_facts
from baton.spec.resolve import defaults, late_defaults
from baton.spec.rules import Finding, all_rules
from baton.spec.rules.exposure import exposure
from baton.spec.slips import Slip, apply_edit, correct, outside_args
from baton.spec.variables import resolve_variables
from baton.spec.view import BATON_IMPORT_PATH, PD_IMPORT_PATHS, AppView, mapping, text
from baton.spec.written import as_written, odd_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from baton.spec.machine import Machine

_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclass
class _Run:
    """What one check has found so far."""

    loaded: LoadedFile
    machine: Machine | None
    on: str | None
    spots: dict[Path, Spot]
    online: bool = False
    starting: bool = False
    look_for_model: bool = True
    faults: list[Fault] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    written: dict[Path, str] = field(default_factory=dict)
    """How a value is written, where YAML makes something else of it."""

    def place(self, path: Path, *, at_value: bool = False) -> Place:
        here = path
        while here and here not in self.spots:
            here = here[:-1]
        spot = self.spots.get(here)
        if spot is None:
            return Place(self.loaded.path)
        exact = here == path and at_value
        return Place(self.loaded.path, *(spot.value if exact else spot.key))

    def add(self, rule_id: str, severity: Severity, finding: Finding) -> None:
        place = self.place(finding.path, at_value=finding.at_value)
        found, cure = as_written(finding, self.written.get(finding.path))
        self.faults.append(
            Fault(
                rule_id,
                finding.severity or severity,
                finding.message,
                place.file,
                place.line,
                place.column,
                dotted(finding.path),
                found,
                finding.allowed,
                cure,
                tuple((what, self.place(path)) for what, path in finding.related),
            )
        )

    def moved(self, edit: Edit, base: Path) -> None:
        """Keeps places right after a slip was put right."""
        if edit.kind != "move":
            return
        start, goal = (*base, *edit.path), (*base, *edit.to)
        size = len(start)
        for path, spot in list(self.spots.items()):
            if path[:size] == start:
                self.spots[(*goal, *path[size:])] = spot
        for path, word in list(self.written.items()):
            if path[:size] == start:
                self.written[(*goal, *path[size:])] = word
        for length in range(len(base) + 1, len(goal)):
            # A mapping that the move created stands where the moved key stands.
            if goal[:length] not in self.spots and start in self.spots:
                self.spots[goal[:length]] = self.spots[start]

    def slip(self, slip: Slip, base: Path) -> None:
        path: Path = (*base, *slip.edit.path)
        place = self.place(path)
        self.faults.append(
            Fault(
                slip.rule_id,
                "warning",
                slip.summary,
                place.file,
                place.line,
                place.column,
                dotted(path),
                found=slip.before,
                allowed=slip.after,
                cure="put right for this run; `baton validate --fix` writes it",
            )
        )
        self.changes.append(
            Change(
                slip.rule_id,
                slip.summary,
                dotted(path),
                slip.before,
                slip.after,
                _below(slip.edit, base),
                place,
            )
        )
        self.moved(slip.edit, base)


def _below(edit: Edit, base: Path) -> Edit:
    to = (*base, *edit.to) if edit.to else ()
    return replace(edit, path=(*base, *edit.path), to=to)


@dataclass(frozen=True)
class Report:
    """The outcome of a check: faults of every kind, and the file when nothing forbids it."""

    loaded: LoadedFile
    faults: tuple[Fault, ...]
    checked: CheckedFile | None
    changes: tuple[Change, ...] = ()

    @property
    def errors(self) -> tuple[Fault, ...]:
        """What must not start."""
        return tuple(fault for fault in self.faults if fault.severity == "error")

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """What was put right or has no effect."""
        return tuple(fault for fault in self.faults if fault.severity == "warning")


def check(
    loaded: LoadedFile, *, on: str | None = None, machine: Machine | None = None
) -> CheckedFile:
    """Checks a file that is about to be started, or refuses it with all of its faults.

    Args:
        loaded: What `load_file` gave.
        on: `cpu` when the file is about to be adapted to this machine's CPU.
        machine: Where it would run; None leaves out what depends on a machine.

    Raises:
        ConfigRefused: With `.faults`; the message holds the first one.
    """
    report = examine(loaded, on=on, machine=machine, starting=True)
    if report.checked is None:
        raise refusal(report.faults)
    return report.checked


def refusal(faults: tuple[Fault, ...]) -> ConfigRefused:
    """The exception for a file with faults: all of them in `.faults`."""
    errors = [fault for fault in faults if fault.severity == "error"]
    first = errors[0]
    place = str(first.place) or first.key_path or None
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return ConfigRefused(first.message + more, place=place, cure=first.cure, faults=faults)


def examine(
    loaded: LoadedFile,
    *,
    on: str | None = None,
    machine: Machine | None = None,
    online: bool = False,
    starting: bool = False,
    look_for_model: bool = True,
) -> Report:
    """Like `check`, and gives every fault instead of raising.

    Args:
        loaded: What `load_file` gave.
        on: As in `check`.
        machine: As in `check`.
        online: Whether a model's config may be read from its hub.
        starting: Whether engines are about to start: a model folder that is missing is then refused
            rather than warned about.
        look_for_model: False where the outcome must not depend on which models lie on this machine:
            then nothing is known of the model.
    """
    run = _Run(
        loaded,
        machine,
        on,
        dict(loaded.spots),
        online,
        starting,
        look_for_model,
        list(loaded.faults),
    )
    run.written.update(loaded.written)
    document = copy.deepcopy(loaded.document)
    for finding in odd_numbers(loaded.written, document):
        run.add("BTN-014", "warning", finding)
    apps: list[CheckedApp] = []
    if document is not None:
        for finding in check_frame(document):
            run.add("BTN-012", "error", finding)
        entries = document.get("applications") if isinstance(document, dict) else None
        for index, app in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(app, dict):
                apps.append(_application(run, app, ("applications", index)))
        for rule_id, finding in exposure(document, apps):
            run.add(rule_id, "warning", finding)
    faults = _sorted(run.faults)
    if document is None or any(fault.severity == "error" for fault in faults):
        return Report(loaded, faults, None, tuple(run.changes))
    checked = CheckedFile(loaded, document, tuple(apps), faults, tuple(run.changes))
    return Report(loaded, faults, checked, tuple(run.changes))


def check_args(
    args: dict[str, Any],
    *,
    env: Mapping[str, str] | None = None,
    machine: Machine | None = None,
) -> CheckedApp:
    """The same rules for the arguments of the builder, when there is no file; places are key paths.

    Raises:
        ConfigRefused: With `.faults`.
    """
    env = os.environ if env is None else env
    faults: list[Fault] = []

    def report(where: Path, value: str, message: str, cure: str) -> None:
        faults.append(
            Fault("BTN-101", "error", message, key_path=dotted(where), found=value, cure=cure)
        )

    resolved = resolve_variables(args, env, report)
    loaded = LoadedFile("", document=resolved, kind="args")
    run = _Run(loaded, machine, None, {}, starting=True, faults=faults)
    app = _application(run, {"import_path": BATON_IMPORT_PATH, "args": resolved}, (), ())
    found = _sorted(run.faults)
    if any(fault.severity == "error" for fault in found):
        raise refusal(found)
    return app


def _sorted(faults: list[Fault]) -> tuple[Fault, ...]:
    """In the order of the file. Of a variable that is not set nothing else can be said."""
    open_values = {fault.key_path for fault in faults if fault.rule_id == "BTN-101"}
    faults = [f for f in faults if f.rule_id == "BTN-101" or f.key_path not in open_values]
    return tuple(sorted(faults, key=lambda f: (_ORDER[f.severity], f.line, f.column, f.rule_id)))


def _application(
    run: _Run, app: dict[Any, Any], path: Path, args_path: Path | None = None
) -> CheckedApp:
    import_path = text(app.get("import_path"))
    if import_path is not None and import_path not in PD_IMPORT_PATHS and ":" not in import_path:
        # Ray takes `module.name` for `module:name` (ray 2.60 `_common/utils.py`, `import_attr`).
        with_colon = ":".join(import_path.rsplit(".", 1))
        if with_colon in PD_IMPORT_PATHS:
            import_path = app["import_path"] = with_colon
    if import_path not in PD_IMPORT_PATHS:
        if import_path is not None:
            run.add("BTN-013", "note", foreign(import_path, path, app.get("args")))
        view = AppView(app, path, mapping(app.get("args")), (*path, "args"))
        return CheckedApp.of(view, None, known=False)
    if args_path is None:
        for slip in list(outside_args(app)):
            apply_edit(app, slip.edit)
            run.slip(slip, path)
        args_path = (*path, "args")
    args = app.get("args")
    if not isinstance(args, dict):
        run.add(
            "BTN-102",
            "error",
            Finding(
                args_path,
                "`args` must hold prefill_config and decode_config",
                found=shown(args) if "args" in app else "nothing",
                allowed="a mapping",
                cure="add args: {prefill_config: …, decode_config: …}",
            ),
        )
        return CheckedApp.of(AppView(app, path, {}, args_path), None, known=False)
    size = len(args_path)
    written = {p[size:]: text for p, text in run.written.items() if p[:size] == args_path}
    corrected = correct(args, written)
    for slip in corrected.slips:
        run.slip(slip, args_path)
    view = AppView(app, path, corrected.args, args_path, run.machine, run.on, starting=run.starting)
    _fill_in(run, corrected.args, args_path, defaults(view))
    view = replace(view, facts=_facts(run, view))
    _fill_in(run, corrected.args, args_path, late_defaults(view))
    view = replace(view)  # roles are cached: look again
    for finding, rule_id, severity in _apply_rules(view):
        run.add(rule_id, severity, finding)
    app["args"] = corrected.args
    return CheckedApp.of(view, view.facts, known=True)


def _fill_in(
    run: _Run, args: dict[Any, Any], base: Path, found: Iterator[tuple[Slip, Severity]]
) -> None:
    for slip, severity in list(found):
        apply_edit(args, slip.edit)
        run.changes.append(_default_change(run, slip, base))
        finding = Finding(
            (*base, *slip.edit.path), slip.summary, found=slip.before, allowed=slip.after
        )
        run.add(slip.rule_id, severity, finding)


def _default_change(run: _Run, slip: Slip, base: Path) -> Change:
    path: Path = (*base, *slip.edit.path)
    return Change(
        slip.rule_id,
        slip.summary,
        dotted(path),
        slip.before,
        slip.after,
        _below(slip.edit, base),
        run.place(path),
    )


def _facts(run: _Run, view: AppView) -> ModelFacts | None:
    source = view.prefill.model_source
    if not source or not run.look_for_model:
        return None
    folder = find_model(source)
    if folder is not None:
        return read_facts(folder)
    if not run.online or is_local(source):
        return None
    from baton.spec.hub import Unreachable, fetch_facts  # noqa: PLC0415 - only with --online

    try:
        return fetch_facts(source, text(view.prefill.engine.get("revision")))
    except Unreachable as exc:
        path = view.prefill.at("model_loading_config")
        run.add("BTN-203", "note", Finding(path, f"the model's config could not be read: {exc}"))
        return None


def _apply_rules(view: AppView) -> Iterator[tuple[Finding, str, Severity]]:
    for rule in all_rules():
        if rule.run is None:
            continue
        for finding in rule.run(view):
            yield finding, rule.rule_id, rule.severity
