"""One engine replica: Ray Serve LLM's server, vLLM's own HTTP app, and a lease in the directory.

`LLMServer` brings the engine up: placement, tensor parallelism, model download are Ray's. Baton
then serves vLLM's HTTP application from the replica's own event loop, behind a guard that only
gateways pass, and renews a lease about every second. Requests reach the engine over HTTP, so Ray
Serve sees the replica idle; leaving in good order is therefore done here (`__del__`, which Serve
awaits).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

import ray
import uvicorn
from ray import serve
from ray.serve.llm import LLMServer

from baton.engine.access import AccessLog
from baton.engine.evidence import WORKER_EXTENSION, gather_evidence, kv_lease_s
from baton.engine.guard import EngineGuard
from baton.engine.load import read_load
from baton.engine.ports import bind_first_free, hold_port
from baton.observe.logs import configure
from baton.spec.lease import EngineLease, EngineLoad
from baton.spec.schema import BatonBlock

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ray.serve.llm import LLMConfig

    from baton.spec.schema import Role

log = logging.getLogger("baton.engine.replica")

# Each renewal may be lost four times before the lease ends.
RENEWALS_PER_LEASE = 5


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process belongs to Ray."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


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
        self._settings = BatonBlock.model_validate(settings)
        configure(self._settings.logging)
        self._role: Role = role
        context = serve.get_replica_context()
        self._directory = directory(context.app_name)
        self._replica_id: str = context.replica_id.unique_id
        self._started_s = time.monotonic()
        # The node's address; a deployment that stays on one machine names the loopback instead.
        self._host: str = os.environ.get("BATON_ENGINE_HOST") or ray.util.get_node_ip_address()
        self._in_flight: AccessLog | None = None
        self._server: _EmbeddedServer | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._state = "starting"
        self._lease: EngineLease | None = None

        llm_config = llm_config.model_copy(deep=True)
        self._prepare(llm_config)
        self._lease = self._first_lease(llm_config)
        secret = await self._renew_once()

        await super().__init__(llm_config)

        listener = bind_first_free(
            self._host, self._settings.engines.port_min, self._settings.engines.port_max
        )
        await self._serve_http(listener, secret)
        self._lease = await self._full_lease(llm_config, listener)
        self._state = "ready"
        await self._renew_once()
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._renew_forever(), name="baton-lease"))
        log.info(
            "engine is ready",
            extra={
                "role": role,
                "url": self._lease.url,
                "engine_id": self._lease.engine_id,
                "start_s": round(time.monotonic() - self._started_s, 3),
            },
        )

    def _prepare(self, llm_config: LLMConfig) -> None:
        """Give this replica its own side channel and engine_id, whatever else shares the node."""
        engines = self._settings.engines
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

    def _first_lease(self, llm_config: LLMConfig) -> EngineLease:
        return EngineLease(
            replica_id=self._replica_id,
            role=self._role,
            url="",
            engine_id="",
            model_id=llm_config.model_id,
            state="starting",
            node=self._host,
            pid=os.getpid(),
        )

    async def _full_lease(self, llm_config: LLMConfig, listener: socket.socket) -> EngineLease:
        from vllm import __version__ as vllm_version

        client = self.engine._engine_client  # noqa: SLF001  # Ray has no public way to it
        config = client.vllm_config
        kv_transfer = llm_config.engine_kwargs.get("kv_transfer_config")
        workers = await self.engine.collective_rpc("baton_transfer_evidence")
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        return EngineLease(
            replica_id=self._replica_id,
            role=self._role,
            url=f"http://{host}:{port}",
            engine_id=config.kv_transfer_config.engine_id if config.kv_transfer_config else "",
            model_id=llm_config.model_id,
            state="ready",
            node=self._host,
            pid=os.getpid(),
            max_model_len=config.model_config.max_model_len,
            block_size=config.cache_config.block_size,
            kv_lease_s=kv_lease_s(kv_transfer),
            tensor_parallel_size=config.parallel_config.tensor_parallel_size,
            vllm_version=vllm_version,
            evidence=gather_evidence(workers, kv_transfer),
        )

    async def _serve_http(self, listener: socket.socket, secret: str) -> None:
        app = await self.engine.build_asgi_app()
        self._in_flight = AccessLog(app, role=self._role)
        config = uvicorn.Config(
            EngineGuard(self._in_flight, secret),
            lifespan="off",
            http="httptools",
            access_log=False,
            log_config=None,
            # Longer than any gateway keeps an idle connection, so that the gateway closes first
            # and never sends a request into a connection that is just being closed.
            timeout_keep_alive=75,
        )
        self._server = _EmbeddedServer(config)
        loop = asyncio.get_running_loop()
        self._tasks.append(
            loop.create_task(self._server.serve(sockets=[listener]), name="baton-engine-http")
        )
        while not self._server.started:
            if self._tasks[-1].done():
                await self._tasks[-1]
            await asyncio.sleep(0.005)

    async def _renew_once(self) -> str:
        if self._lease is None:
            raise RuntimeError("there is no lease to renew yet")
        lease = self._lease.model_copy(update={"state": self._state, "load": self._load()})
        lease_s = self._settings.engines.lease_s
        # While the engine starts nothing renews, so the first entry must outlive a long load.
        span_s = lease_s if self._state == "ready" else 3_600.0
        secret: str = await self._directory.renew.remote(lease.model_dump(), span_s)
        return secret

    async def _renew_forever(self) -> None:
        interval_s = self._settings.engines.lease_s / RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(interval_s)
            try:
                await super().check_health()
            except Exception as exc:  # noqa: BLE001  # vLLM raises several kinds for a dead engine
                log.error("engine is dead: leaving the directory", extra={"reason": repr(exc)})  # noqa: TRY400
                with contextlib.suppress(Exception):
                    await self._directory.leave.remote(self._replica_id)
                return
            try:
                await asyncio.wait_for(self._renew_once(), timeout=self._settings.engines.lease_s)
            except Exception as exc:  # noqa: BLE001  # the directory may be restarting: try again
                log.warning("lease was not renewed", extra={"reason": repr(exc)})

    def _load(self) -> EngineLoad:
        return read_load() if self._state == "ready" else EngineLoad()

    async def check_health(self) -> None:
        """Fail when the engine is dead or its HTTP server has ended: Serve replaces the replica."""
        await super().check_health()
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"{task.get_name()} has ended")

    async def __del__(self) -> None:
        """Leave in good order: out of the directory, finish what runs, then end the engine."""
        # Serve calls this once it has stopped routing; a replica that failed in its constructor
        # comes here as well, with only a part of its fields.
        directory = getattr(self, "_directory", None)
        if directory is None:
            return
        self._state = "draining"
        with contextlib.suppress(Exception):
            await asyncio.wait_for(directory.leave.remote(self._replica_id), timeout=2)
        for task in self._tasks:
            if task.get_name() == "baton-lease":
                task.cancel()
        await self._drain()
        if self._server is not None:
            self._server.should_exit = True
        engine = getattr(self, "engine", None)
        client = getattr(engine, "_engine_client", None)
        if client is not None:
            # Ray's own shutdown leaves the EngineCore process to notice its parent's death.
            with contextlib.suppress(Exception):
                client.shutdown()

    async def _drain(self) -> None:
        """Wait for open requests, and for KV that decode has yet to pull, up to the limit."""
        try:
            await super().check_health()
        except Exception:  # noqa: BLE001  # a dead engine has nothing to wait for
            return
        deadline_s = time.monotonic() + self._settings.engines.drain_timeout_s
        while time.monotonic() < deadline_s:
            open_requests = self._in_flight.count if self._in_flight is not None else 0
            held = read_load().kv_usage if self._server is not None else 0.0
            if open_requests == 0 and held <= 0.0:
                return
            await asyncio.sleep(0.1)
        log.warning(
            "drain limit reached", extra={"drain_s": self._settings.engines.drain_timeout_s}
        )
