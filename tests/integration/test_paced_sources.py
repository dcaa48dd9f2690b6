"""What `nixl_pace` and `shm_pace` change is there in the installed NIXL and vLLM.

A new version that waits in another way fails here, and not on a user's laptop.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("vllm")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_real_nixl_has_what_is_wrapped() -> None:
    """If a new NIXL names it differently, this fails and not a user's laptop."""
    from nixl_cu13._api import nixlBind

    assert hasattr(nixlBind.nixlAgentConfig, "pthrDelay")


def test_the_real_vllm_has_what_is_replaced() -> None:
    """If a new vLLM waits differently, this fails and not a user's laptop."""
    from vllm.distributed.device_communicators import shm_broadcast

    assert callable(shm_broadcast.sched_yield)
    assert "sched_yield" in shm_broadcast.SpinCondition.wait.__code__.co_names


@pytest.mark.parametrize(
    ("pace", "module", "paced"),
    [
        (
            "shm_pace.pace_shared_memory",
            "vllm.distributed.device_communicators.shm_broadcast",
            "module.sched_yield.__module__ == 'baton.engine.shm_pace'",
        ),
        ("nixl_pace.pace_nixl", "nixl_cu13._api", "module.nixlBind.nixlAgentConfig.baton_paced"),
    ],
)
def test_the_real_module_is_paced_when_it_is_imported_and_not_imported_for_it(
    pace: str, module: str, paced: str
) -> None:
    """In a process of its own, as vLLM's processes are."""
    name, call = pace.split(".")
    program = (
        f"import sys, importlib\nfrom baton.engine import {name}\n"
        f"assert {name}.{call}()\nassert {module!r} not in sys.modules\n"
        f"module = importlib.import_module({module!r})\nassert {paced}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]
