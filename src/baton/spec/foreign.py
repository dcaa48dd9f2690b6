"""What to say of an application whose import path is none of the two that Baton has rules for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from baton.spec.rules.registry import Finding
from baton.spec.suggest import nearest
from baton.spec.view import BATON_IMPORT_PATH, PD_IMPORT_PATHS, RAY_IMPORT_PATH, mapping

if TYPE_CHECKING:
    from baton.spec.faults import Path

# Ray 2.60 `serve/llm/__init__.py`, `__all__`: what can stand behind `ray.serve.llm:`.
_RAY_BUILDERS = (
    "build_pd_openai_app",
    "build_openai_app",
    "build_dp_openai_app",
    "build_dp_deployment",
    "build_llm_deployment",
)


def foreign(import_path: str, path: Path, args: Any) -> Finding:
    """What is said of an import path without rules, from a note to a refusal."""
    module, _, name = import_path.replace(":", ".").rpartition(".")
    if module == "ray.serve.llm" and name not in _RAY_BUILDERS:
        return _nothing_there(import_path, path, RAY_IMPORT_PATH, _RAY_BUILDERS)
    if module == "ray.serve.llm" and {"prefill_config", "decode_config"} & set(mapping(args)):
        return Finding(
            (*path, "import_path"),
            f"`{import_path}` takes no prefill_config and no decode_config",
            found=import_path,
            allowed=", ".join(PD_IMPORT_PATHS),
            at_value=True,
            severity="error",
            cure=f"set import_path: {BATON_IMPORT_PATH}",
        )
    if module == "ray.serve.llm":
        return Finding(
            (*path, "import_path"),
            f"`{import_path}` does not split prefill and decode: Baton has"
            " no rules for it and passes it on",
            found=import_path,
            allowed=", ".join(PD_IMPORT_PATHS),
            at_value=True,
            cure=f"for P/D set import_path: {BATON_IMPORT_PATH} and give args a prefill_config"
            " and a decode_config",
        )
    if module == "baton":
        return _nothing_there(import_path, path, BATON_IMPORT_PATH, ())
    near = nearest(import_path, PD_IMPORT_PATHS)
    if near is not None:
        return Finding(
            (*path, "import_path"),
            f"Baton has no rules for `{import_path}`, which is nearly `{near}`",
            found=import_path,
            allowed=", ".join(PD_IMPORT_PATHS),
            cure=f"did you mean `{near}`?",
            severity="warning",
            at_value=True,
        )
    return Finding(
        (*path, "import_path"),
        f"Baton has no rules for `{import_path}` and passes it on",
        found=import_path,
        allowed=", ".join(PD_IMPORT_PATHS),
        at_value=True,
    )


def _nothing_there(import_path: str, path: Path, ours: str, others: tuple[str, ...]) -> Finding:
    near = nearest(import_path.replace(":", ".").rpartition(".")[2], others)
    meant = ours if near is None else f"{ours.partition(':')[0]}:{near}"
    return Finding(
        (*path, "import_path"),
        f"there is no `{import_path}`",
        found=import_path,
        allowed=", ".join(f"{ours.partition(':')[0]}:{name}" for name in others) or ours,
        cure=f"did you mean `{meant}`?",
        severity="error",
        at_value=True,
    )
