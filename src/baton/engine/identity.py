"""An engine that starts anew is another engine.

Decode knows a peer by its `engine_id` alone. When prefill is started again in the same place with
the same id, a decode engine that had not shaken hands with it before takes an offer of the process
that died for one of the process that lives: it reads the blocks that the offer names out of memory
that holds something else, and answers 200. One that had shaken hands fails every handoff, because
it keeps talking to the dead one. With another id vLLM 0.29 does the right thing in both cases: the
handshake compares ids (`_nixl_handshake`, nixl/base_worker.py), and a new id is shaken hands with.

Replicas under Ray get a new id for each start in any case (`replica.py`). This does it for every
engine in an environment with Baton: what the user wrote, and eight hex digits of this process.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from baton.engine.late_patches import change_of, change_when_imported, replace_once

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger("baton.engine.identity")

ARGUMENTS = "vllm.engine.arg_utils"
_THIS_START = uuid.uuid4().hex[:8]


def name_each_start() -> bool:
    """Give engines that this process configures an id of their own; True when that is possible.

    Called through vLLM's plugin entry point. Safe to call again.
    """
    return change_when_imported({ARGUMENTS: patch_arguments}, _cannot)


def _cannot(module: str, why: str) -> None:
    log.error(
        "this vLLM is not known: an engine that is started again keeps its engine_id, and decode "
        "may take old KV for new (%s: %s)",
        module,
        why,
    )


@change_of(ARGUMENTS, _cannot)
def patch_arguments(module: ModuleType) -> None:
    """Have the finished config carry an `engine_id` that no other start has."""
    replace_once(module.EngineArgs, "create_engine_config", _renaming)


def _renaming(plain: Any) -> Any:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = plain(self, *args, **kwargs)
        transfer = config.kv_transfer_config
        # Several nodes configure one engine each for itself, and must agree on its id.
        alone = getattr(config.parallel_config, "nnodes", 1) == 1
        if transfer is not None and transfer.engine_id and alone:
            transfer.engine_id = renamed(transfer.engine_id)
        return config

    return create_engine_config


def renamed(engine_id: str, start: str = _THIS_START) -> str:
    """The id with this start's digits behind it, once."""
    return engine_id if engine_id.endswith(f"-{start}") else f"{engine_id}-{start}"
