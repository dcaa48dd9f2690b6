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


# Arguments that vLLM checks against each other, against the model or against the platform, in ways
# that no list of names and types can hold. Found by comparing this check with the real classes for
# every argument (`tests/integration/test_spec_against_sources.py` holds it there).
JUDGED_BY_VLLM = frozenset(
    {
        "batch_invariant",
    }
)


@rule("BTN-107", "note", "an argument that only vLLM itself can judge")
def judged_by_vllm(app: AppView) -> Iterator[Finding]:
    """Some arguments are checked against others, the model or the platform when an engine is built.

    `baton validate` and `baton up` ask the installed vLLM about them, when it is one for the
    hardware that the file is for and the model is on this machine; that takes some seconds. What
    vLLM then refuses is an error of this rule.

    Source: vLLM 0.29 `vllm/engine/arg_utils.py`, `create_engine_config`, and the validators of
    `vllm/config/*.py`.
    """
    for role in app.roles:
        for key in role.engine:
            if key in JUDGED_BY_VLLM and role.engine[key] is not None:
                yield Finding(
                    role.engine_at(key),
                    f"`{key}` is judged by vLLM itself, when it is asked or when the engine starts",
                    found=shown(role.engine[key]),
                )
