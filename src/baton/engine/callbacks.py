"""Ray Serve LLM callbacks: what happens on a node before an engine starts there."""

from __future__ import annotations

from pathlib import Path

from ray.llm._internal.common.callbacks.base import CallbackBase


class LocalModel(CallbackBase):  # type: ignore[misc]  # Ray carries no types
    """Skips the download step for a model that lies in a folder of this node.

    Ray runs that step in a task of its own, which imports vLLM anew (about ten seconds of CPU) to
    find that a folder needs no download.
    """

    async def on_before_node_init(self) -> None:
        """Called by Ray before the download step."""
        model = self.llm_config.get_engine_config().actual_hf_model_id
        mirrored = self.llm_config.get_engine_config().mirror_config is not None
        if not mirrored and Path(model).expanduser().is_dir():  # noqa: ASYNC240  # one stat, at start
            self.ctx.run_init_node = False
