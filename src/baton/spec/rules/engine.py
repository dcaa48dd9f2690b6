"""Engine arguments that contradict each other, or name something that cannot be imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.spec.faults import shown
from baton.spec.rules.registry import Finding, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from baton.spec.view import AppView

# Names of classes or modules, which vLLM and Ray import when the engine starts.
_CLASS_PATHS = ("worker_cls", "worker_extension_cls", "scheduler_cls")


@rule("BTN-170", "error", "a class path that cannot be one")
def class_paths(app: AppView) -> Iterator[Finding]:
    """Classes are named by module and name, `package.module.Class`.

    Source: vLLM 0.29 `utils/import_utils.py`, `resolve_obj_by_qualname`; ray 2.60
    `common/utils/import_utils.py`, `load_class`.
    """
    for role in app.roles:
        named = [
            (role.engine_at(key), role.engine.get(key))
            for key in _CLASS_PATHS
            if role.engine.get(key) not in ("auto", "")
        ]
        named.append((role.at("server_cls"), role.config.get("server_cls")))
        for path, value in named:
            if value is None or _is_class_path(value):
                continue
            yield Finding(
                path,
                f"`{path[-1]}` must name a class",
                found=shown(value),
                allowed="package.module.Class",
                cure="remove it, or write the full name",
                at_value=True,
            )


def _is_class_path(value: object) -> bool:
    if not isinstance(value, str):
        return False
    parts = value.replace(":", ".").split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)
