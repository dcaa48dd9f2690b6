"""One engine replica: Ray Serve LLM's server, vLLM's own HTTP app, and a lease in the directory.

`LLMServer` brings the engine up: placement, tensor parallelism, model download are Ray's. Baton
then serves vLLM's HTTP application from the replica's own event loop, behind a guard that only
gateways pass. Lease, scaling signals and the way out are `ReplicaLife`'s.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray._common.usage.usage_lib import usage_stats_enabled
from ray.serve.llm import LLMServer

from baton.engine.continues import continues_of
from baton.engine.evidence import (
    WORKER_EXTENSION,
    compatibility,
    gather_evidence,
    kv_bytes_per_token,
    kv_lease_s,
)
from baton.engine.life import ActorDirectory, ReplicaLife
from baton.engine.load import read_counts
from baton.engine.ports import bind_first_free, hold_port
from baton.engine.proof import Proof
from baton.engine.startup import engine_start
from baton.engine.ucx_notes import note_ucx_choices
from baton.heap import collect_rarely
from baton.observe.logs import configure
from baton.spec.lease import EngineLease
from baton.spec.schema import BatonBlock
from baton.version import __version__

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ray.serve.llm import LLMConfig

    from baton.spec.schema import Role

log = logging.getLogger("baton.engine.replica")


class EngineReplica(LLMServer):  # type: ignore[misc]  # Ray carries no types
    """A prefill or decode engine as a Ray Serve replica."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        llm_config: LLMConfig,
        *,
        role: Role,
        settings: dict[str, Any],
        directory: Callable[[str], Any],
    ) -> None:
        """Bring the engine up, serve its HTTP app, and enter the directory.

        Args:
            llm_config: Ray Serve LLM's config of this role, unchanged by Baton but for
                `engine_id` and `worker_extension_cls`.
            role: `prefill` or `decode`.
            settings: the checked `baton:` block, as plain data.
            directory: finds the directory actor of an application by the application's name.
        """
        self._marks = {"constructed_at": time.time()}
        self._settings = BatonBlock.model_validate(settings)
        configure(self._settings.logging)
        self._role: Role = role
        context = serve.get_replica_context()
        started_s = time.monotonic()
        # The node's address; a deployment that stays on one machine names the loopback instead.
        self._host: str = os.environ.get("BATON_ENGINE_HOST") or ray.util.get_node_ip_address()

        llm_config = llm_config.model_copy(deep=True)
        self._prepare(llm_config)
        self._life = ReplicaLife(
            EngineLease(
                replica_id=context.replica_id.unique_id,
                role=role,
                url="",
                engine_id="",
                model_id=llm_config.model_id,
                state="starting",
                node=self._host,
                pid=os.getpid(),
            ),
            ActorDirectory(directory(context.app_name)),
            self._settings.engines,
            counts=read_counts,
            check_engine=super().check_health,
        )
        secret = await self._life.enter()

        await super().__init__(llm_config)
        self._marks["engine_at"] = time.time()

        listener = bind_first_free(
            self._host, self._settings.engines.port_min, self._settings.engines.port_max
        )
        vllm_config = self.engine._engine_client.vllm_config  # noqa: SLF001  # no public way to it
        app = Proof(
            await self.engine.build_asgi_app(),
            self.engine.collective_rpc,
            vllm_config,
            role=role,
            node=self._host,
        )
        await self._life.serve(
            app,
            listener,
            secret,
            slots=vllm_config.scheduler_config.max_num_seqs,
        )
        lease = await self._full_lease(llm_config, vllm_config, listener)
        collect_rarely()
        await self._life.be_ready(lease)
        log.info(
            "engine is ready",
            extra={
                "role": role,
                "url": lease.url,
                "engine_id": lease.engine_id,
                "start_s": round(time.monotonic() - started_s, 3),
            },
        )

    def _prepare(self, llm_config: LLMConfig) -> None:
        """Give this replica its own side channel and engine_id, whatever else shares the node."""
        engines = self._settings.engines
        note_ucx_choices()  # here as well: the workers inherit it where no plugin is installed
        if "VLLM_NIXL_SIDE_CHANNEL_PORT" not in os.environ:
            # vLLM 0.29 adds the data-parallel index to this port (nixl/base_scheduler.py).
            self._side_channel = hold_port(
                self._host, engines.side_channel_port_min, engines.side_channel_port_max
            )
            os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(self._side_channel.port)
        os.environ.setdefault("VLLM_NIXL_SIDE_CHANNEL_HOST", self._host)
        kwargs = dict(llm_config.engine_kwargs)
        kv_transfer = kwargs.get("kv_transfer_config")
        if kv_transfer is not None:
            # A new id for each start: a decode engine that still knows the engine that was here
            # before must not mistake this one's memory for the old one's.
            base = kv_transfer.get("engine_id") or self._role
            kwargs["kv_transfer_config"] = {
                **kv_transfer,
                "engine_id": f"{base}-{uuid.uuid4().hex[:8]}",
            }
        kwargs.setdefault("worker_extension_cls", WORKER_EXTENSION)
        llm_config.update_engine_kwargs(**kwargs)

    async def _full_lease(
        self, llm_config: LLMConfig, vllm_config: Any, listener: socket.socket
    ) -> EngineLease:
        from vllm import __version__ as vllm_version

        kv_transfer = llm_config.engine_kwargs.get("kv_transfer_config")
        workers = await self.engine.collective_rpc("baton_transfer_evidence")
        notes = await self.engine.collective_rpc("baton_start_notes")
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        of_vllm = vllm_config.kv_transfer_config
        self._marks["ready_at"] = time.time()
        return self._life.lease.model_copy(
            update={
                "url": f"http://{host}:{port}",
                "engine_id": of_vllm.engine_id if of_vllm else "",
                "max_model_len": vllm_config.model_config.max_model_len,
                "block_size": vllm_config.cache_config.block_size,
                "kv_lease_s": kv_lease_s(kv_transfer),
                "kv_bytes_per_token": kv_bytes_per_token(workers),
                "tensor_parallel_size": vllm_config.parallel_config.tensor_parallel_size,
                "continues": continues_of(llm_config.engine_kwargs, vllm_config.model_config),
                "vllm_version": vllm_version,
                "baton_version": __version__,
                "compatibility": compatibility(workers),
                "evidence": gather_evidence(workers, kv_transfer),
                "start": engine_start(self._marks, notes, model=vllm_config.model_config.model),
            }
        )

    async def _start_engine(self) -> None:
        """As in `LLMServer` (ray 2.60), without the report where Ray may not report.

        Ray starts an actor for that report first, and the engine waits for it.
        """
        if usage_stats_enabled():
            await super()._start_engine()
        else:
            await self.engine.start()

    async def check_health(self) -> None:
        """Fail when the engine is dead or its HTTP server has ended: Serve replaces the replica."""
        await super().check_health()
        self._life.check_tasks()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What the policies of `baton.serve.scaling` read; Ray Serve's own name for it."""
        return self._life.stats()

    async def __del__(self) -> None:
        """Leave in good order: out of the directory, finish what runs, then end the engine."""
        # A replica that failed in its constructor comes here as well, with a part of its fields.
        life = getattr(self, "_life", None)
        if life is None:
            return
        await life.end()
        await super().__del__()
        client = getattr(getattr(self, "engine", None), "_engine_client", None)
        if client is not None:
            # Ray's own shutdown leaves the EngineCore process to notice its parent's death.
            with contextlib.suppress(Exception):
                client.shutdown()
