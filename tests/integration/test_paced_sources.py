"""What `nixl_pace` and `shm_pace` change is there in the installed NIXL and vLLM.

A new version that waits in another way fails here, and not on a user's laptop.
"""

from __future__ import annotations

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
