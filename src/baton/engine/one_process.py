"""Runs a CPU engine's one worker inside its EngineCore, as vLLM does on one GPU.

vLLM 0.29 gives the worker of a CPU engine a process of its own, because threads that it binds to
cores are bound by variables which OpenMP reads before the process starts (`platforms/cpu.py`,
`check_and_update_config`; `utils/ompmultiprocessing.py`). With `VLLM_CPU_OMP_THREADS_BIND=nobind`
nothing is bound, and that process brings only its price: vLLM is imported once more at the start,
its memory is taken once more, and each step goes there and back through shared memory.

So on CPU-only vLLM, where nothing is bound and the engine has one worker, the executor is the one
that vLLM takes for one GPU (`UniProcExecutor`). `BATON_CPU_WORKER_PROCESS=1` leaves vLLM alone.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from baton.engine.late_patches import change_of, change_when_imported, replace_once
from baton.engine.nixl_pace import cpu_only

log = logging.getLogger("baton.engine.one_process")

SWITCH = "BATON_CPU_WORKER_PROCESS"
BINDING = "VLLM_CPU_OMP_THREADS_BIND"
_MODULE = "vllm.v1.executor.abstract"


def keep_worker_in_core() -> bool:
    """Have CPU engines with one unbound worker run it in EngineCore; True when that was arranged.

    Takes effect when vLLM imports its executors, and looks at each engine's config then. Does
    nothing beside a GPU build of vLLM, or with `BATON_CPU_WORKER_PROCESS=1`. Safe to call again.
    """
    if os.environ.get(SWITCH, "0") not in {"", "0"} or not cpu_only():
        return False
    return change_when_imported({_MODULE: _patch}, _cannot)


def _cannot(module: str, why: str) -> None:
    log.warning("the worker keeps its own process", extra={"reason": f"{module}: {why}"})


@change_of(_MODULE, _cannot)
def _patch(module: Any) -> None:
    replace_once(module.Executor, "get_class", _without_a_process)


def _without_a_process(plain: Any) -> Any:
    def get_class(vllm_config: Any) -> Any:
        chosen = plain(vllm_config)
        if chosen.__name__ != "MultiprocExecutor" or not alone(vllm_config.parallel_config):
            return chosen
        from vllm.v1.executor.uniproc_executor import UniProcExecutor

        return UniProcExecutor

    return get_class


def alone(parallel_config: Any) -> bool:
    """Whether this is an engine's only worker, and its threads are bound to no cores."""
    return parallel_config.world_size == 1 and os.environ.get(BINDING) == "nobind"
