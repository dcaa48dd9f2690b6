"""A replica's life beside its engine: a lease, an HTTP face, scaling signals, and a good end.

Ray Serve sees engine replicas idle, because requests reach them over HTTP. So what Serve would do
for an ordinary deployment is done here, the same for real and simulated engines:

    starting   the lease is there, so that people see it; nobody chooses it
    ready      the lease is renewed about every second, with the load
    draining   the lease says so at once; open requests and held KV are waited for (`drain`)
    gone       the lease is taken back, the listener closed, and only then the engine ended

Serve awaits `__del__` before it kills the replica's process, on the event loop that also runs the
HTTP face (ray 2.60, serve/_private/replica.py: `perform_graceful_shutdown`, `call_destructor`), and
kills it after `graceful_shutdown_timeout_s` (serve/_private/deployment_state.py, `stop`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

import uvicorn

from baton.engine.access import AccessLog
from baton.engine.drain import Holding, prefill_may_send, reason_to_stay
from baton.engine.guard import EngineGuard
from baton.engine.signals import Signals
from baton.spec.lease import DirectorySnapshot, EngineLease, EngineLoad

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from baton.engine.load import EngineCounts
    from baton.spec.schema import Engines

log = logging.getLogger("baton.engine.life")

# Each renewal may be lost four times before the lease ends.
RENEWALS_PER_LEASE = 5
# While the engine starts nothing renews, so the first entry must outlive a long load.
STARTING_LEASE_S = 3_600.0
# How long one word with the directory may take while the replica drains.
LAST_CALL_S = 2.0
DRAIN_LOOK_S = 0.1
# What is left open when the listener closes is at its last bytes, or past the drain limit.
CLOSE_S = 3.0


class Directory(Protocol):
    """What a replica says to the directory; the actor of `baton.serve.registry`, or a fake."""

    async def renew(self, lease: dict[str, Any], lease_s: float) -> str:
        """Store the lease; returns the secret that guards engine ports."""

    async def leave(self, replica_id: str) -> None:
        """Forget the replica."""

    async def snapshot(self) -> dict[str, Any]:
        """All leases."""


class ActorDirectory:
    """The directory behind a Ray actor handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def renew(self, lease: dict[str, Any], lease_s: float) -> str:
        """See `Directory`."""
        secret: str = await self._actor.renew.remote(lease, lease_s)
        return secret

    async def leave(self, replica_id: str) -> None:
        """See `Directory`."""
        await self._actor.leave.remote(replica_id)

    async def snapshot(self) -> dict[str, Any]:
        """See `Directory`."""
        found: dict[str, Any] = await self._actor.snapshot.remote()
        return found


class _EmbeddedServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process belongs to Ray."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


class ReplicaLife:
    """One replica's lease, HTTP face, signals and end.

    Args:
        lease: What is known before the engine is up; its state is `starting`.
        directory: Where the lease is kept.
        engines: The block's `engines` part: lease and drain times.
        counts: Reads the engine's own counts.
        check_engine: Raises when the engine is dead.
    """

    def __init__(
        self,
        lease: EngineLease,
        directory: Directory,
        engines: Engines,
        *,
        counts: Callable[[], EngineCounts],
        check_engine: Callable[[], Awaitable[None]],
    ) -> None:
        self.lease = lease
        self._directory = directory
        self._engines = engines
        self._counts = counts
        self._check_engine = check_engine
        self._access: AccessLog | None = None
        self._signals: Signals | None = None
        self._server: _EmbeddedServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    # -- a beginning -------------------------------------------------------------------------------

    async def enter(self) -> str:
        """Enter the directory as `starting`; returns the secret that guards engine ports."""
        return await self._renew()

    async def serve(self, app: Any, listener: socket.socket, secret: str, *, slots: int) -> None:
        """Serve the engine's ASGI app behind the guard; returns once it takes requests.

        Args:
            app: The engine's ASGI app.
            listener: A socket that listens already.
            secret: What gateways must say.
            slots: Sequences that the engine runs at once at most.
        """
        access = self._access = AccessLog(app, role=self.lease.role)
        self._signals = Signals(
            self._counts, access.occupancy.seen, now=time.monotonic, slots=slots
        )
        config = uvicorn.Config(
            EngineGuard(access, secret),
            lifespan="off",
            http="httptools",
            access_log=False,
            log_config=None,
            # Longer than any gateway keeps an idle connection, so that the gateway closes first
            # and never sends a request into a connection that is just being closed.
            timeout_keep_alive=75,
        )
        self._server = _EmbeddedServer(config)
        self._serving = asyncio.create_task(
            self._server.serve(sockets=[listener]), name="baton-engine-http"
        )
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0.005)

    async def be_ready(self, lease: EngineLease) -> None:
        """Enter the directory with everything that is known now, and stay there."""
        self.lease = lease.model_copy(update={"state": "ready"})
        await self._renew()
        self._renewing = asyncio.create_task(self._renew_forever(), name="baton-lease")

    # -- a middle ----------------------------------------------------------------------------------

    def stats(self) -> dict[str, float]:
        """The scaling signals, for Ray Serve's `record_autoscaling_stats`."""
        return {} if self._signals is None else self._signals.stats()

    def check_tasks(self) -> None:
        """Raises when the HTTP face or the lease has ended by itself; Serve starts another."""
        for task in (self._serving, self._renewing):
            if task is not None and task.done():
                raise RuntimeError(f"{task.get_name()} has ended")

    async def _renew(self) -> str:
        load = EngineLoad() if self._signals is None else self._signals.look()
        lease = self.lease.model_copy(update={"load": load})
        starting = lease.state == "starting"
        span_s = STARTING_LEASE_S if starting else self._engines.lease_s
        return await self._directory.renew(lease.model_dump(), span_s)

    async def _renew_forever(self) -> None:
        interval_s = self._engines.lease_s / RENEWALS_PER_LEASE
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._check_engine()
            except Exception as exc:  # noqa: BLE001  # vLLM raises several kinds for a dead engine
                log.error("engine is dead: leaving the directory", extra={"reason": repr(exc)})  # noqa: TRY400
                await self._leave()
                return
            try:
                # Not `wait_for`: Python 3.11's forgets a cancellation that comes with the answer,
                # and a lease that is renewed after it was taken back sends requests to nobody.
                async with asyncio.timeout(self._engines.lease_s):
                    await self._renew()
            except Exception as exc:  # noqa: BLE001  # the directory may be restarting: try again
                log.warning("lease was not renewed", extra={"reason": repr(exc)})

    # -- an end ------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Leave in good order: out of the choice, finish what runs, out of the directory, close.

        After it the engine can be shut down. Safe to call for a replica that never became ready.
        """
        if self.lease.state == "ready" and await self._lives():
            self.lease = self.lease.model_copy(update={"state": "draining"})
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LAST_CALL_S):
                    await self._renew()
            await self._drain()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing}, timeout=LAST_CALL_S)
        await self._leave()
        await self._close()

    async def _lives(self) -> bool:
        try:
            await self._check_engine()
        except Exception:  # noqa: BLE001  # vLLM raises several kinds for a dead engine
            return False
        return True

    async def _leave(self) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LAST_CALL_S):
                await self._directory.leave(self.lease.replica_id)

    async def _drain(self) -> None:
        """Wait until nothing is left that this replica alone can give, up to the limit."""
        began_s = time.monotonic()
        limit_s = self._engines.drain_timeout_s
        log.info("draining", extra={"limit_s": limit_s})
        reason: str | None = "it has just begun"
        while reason is not None and time.monotonic() - began_s < limit_s:
            if not await self._lives():
                return  # nobody can get anything from it any more
            holding = Holding(
                since_s=time.monotonic() - began_s,
                open_requests=0 if self._access is None else self._access.count,
                kv_usage=self._counts().kv_usage,
            )
            reason = reason_to_stay(holding)
            if reason is None and await self._prefill_may_send():
                reason = "prefill has work that no other decode engine could take"
            if reason is not None:
                await asyncio.sleep(DRAIN_LOOK_S)
        took_s = round(time.monotonic() - began_s, 3)
        if reason is None:
            log.info("drained", extra={"drain_s": took_s})
        else:
            log.warning("drain limit reached", extra={"drain_s": took_s, "reason": reason})

    async def _prefill_may_send(self) -> bool:
        if self.lease.role != "decode":
            return False
        try:
            async with asyncio.timeout(LAST_CALL_S):
                found = await self._directory.snapshot()
        except Exception:  # noqa: BLE001  # without a directory nobody is sent here any more
            return False
        return prefill_may_send(self.lease, DirectorySnapshot.model_validate(found))

    async def _close(self) -> None:
        """Refuse new connections, let what is open finish for a moment, then cut."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait({self._serving}, timeout=CLOSE_S)
        if not done:
            self._server.force_exit = True
            await asyncio.wait({self._serving}, timeout=CLOSE_S)
