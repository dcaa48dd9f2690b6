"""The directory as a Ray actor: who serves, in which role, where, and until when.

One detached actor for each application keeps the leases. Engine replicas renew theirs about every
second; a lease that is not renewed in time is gone from the next snapshot. Nothing else is stored,
so an actor that Ray restarts is complete again after one round of renewals; until then gateways
keep the engines that they knew (`awake_s`). An actor that was stopped for a while had nobody renew
meanwhile: it gives all leases that time on top. The engines' secret is an argument of the actor's
constructor: Ray passes the same one after a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import ray

from baton.spec.lease import DirectorySnapshot, EngineLease

if TYPE_CHECKING:
    from collections.abc import Callable

NAMESPACE = "baton"
# An actor that nobody has called for this long belongs to an application that is gone.
IDLE_EXIT_S = 900.0
TICK_S = 0.5
STOPPED_S = 1.5
"""An actor whose ticks are so far apart did not run in between."""


class LeaseBook:
    """Leases by replica, each with the time it ends. Pure but for the clock that is passed in."""

    def __init__(self) -> None:
        self._leases: dict[str, tuple[EngineLease, float]] = {}

    def renew(self, lease: EngineLease, *, lease_s: float, now_s: float) -> None:
        """Store or replace the lease of one replica; it ends at `now_s + lease_s`."""
        self._leases[lease.replica_id] = (lease, now_s + lease_s)

    def leave(self, replica_id: str) -> None:
        """Forget a replica at once."""
        self._leases.pop(replica_id, None)

    def postpone(self, seconds: float) -> None:
        """Every lease ends so much later: nobody could have renewed it."""
        self._leases = {
            key: (lease, end_s + seconds) for key, (lease, end_s) in self._leases.items()
        }

    def alive(self, *, now_s: float) -> tuple[EngineLease, ...]:
        """Leases that have not ended, ordered by role and replica; ended ones are dropped."""
        ended = [key for key, (_, end_s) in self._leases.items() if end_s <= now_s]
        for key in ended:
            del self._leases[key]
        leases = (lease for lease, _ in self._leases.values())
        return tuple(sorted(leases, key=lambda lease: (lease.role, lease.replica_id)))


class DirectoryActor:
    """The lease book behind Ray calls."""

    def __init__(self, engine_secret: str, now: Callable[[], float] = time.monotonic) -> None:
        self._book = LeaseBook()
        self._engine_secret = engine_secret
        self._now = now
        self._last_call_s = self._awake_since_s = self._last_tick_s = now()
        self._watch: asyncio.Task[None] | None = None

    async def renew(self, lease: dict[str, Any], lease_s: float) -> str:
        """Renew one lease; returns the secret that guards the engines' HTTP ports."""
        self._touch()
        self._book.renew(EngineLease.model_validate(lease), lease_s=lease_s, now_s=self._now())
        return self._engine_secret

    async def leave(self, replica_id: str) -> None:
        """Take one replica out at once: it drains or dies."""
        self._touch()
        self._book.leave(replica_id)

    async def snapshot(self) -> dict[str, Any]:
        """All leases that are alive, and the secret, as plain data."""
        self._touch()
        now_s = self._now()
        return DirectorySnapshot(
            engines=self._book.alive(now_s=now_s),
            engine_secret=self._engine_secret,
            awake_s=now_s - self._awake_since_s,
        ).model_dump()

    def _touch(self) -> None:
        if self._watch is None:
            self._last_tick_s = self._now()
            self._watch = asyncio.get_running_loop().create_task(self._tick())
        self._notice_a_stop()
        self._last_call_s = self._now()

    def _notice_a_stop(self) -> None:
        """Calls that came while this process was stopped are read before its next tick."""
        now_s = self._now()
        stopped_s = now_s - self._last_tick_s
        if stopped_s > STOPPED_S:
            self._book.postpone(stopped_s)
            self._awake_since_s = now_s
        self._last_tick_s = now_s

    async def _tick(self) -> None:
        while self._now() - self._last_call_s < IDLE_EXIT_S:
            await asyncio.sleep(TICK_S)
            self._notice_a_stop()
        ray.actor.exit_actor()


def actor_name(app_name: str) -> str:
    """The name of an application's directory actor in the namespace `baton`."""
    return f"directory:{app_name}"


def directory_actor(app_name: str) -> Any:
    """The directory of an application: found, or made when it is not there yet."""
    # `get_if_exists` makes this safe when replicas and gateways start side by side.
    options = {
        "name": actor_name(app_name),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_task_retries": -1,
        "num_cpus": 0,
        # Not inside the placement group of the replica that happens to make it.
        "scheduling_strategy": "DEFAULT",
        # It must outlive any worker node, so it sits with the controller on the head node when
        # there is one that takes actors (Ray marks the head with this resource).
        "resources": {"node:__internal_head__": 0.001},
    }
    remote = ray.remote(DirectoryActor)
    return remote.options(**options).remote(secrets.token_urlsafe(32))


def find_directory_actor(app_name: str) -> Any | None:
    """The directory of an application when it is there, else None."""
    with contextlib.suppress(ValueError):
        return ray.get_actor(actor_name(app_name), namespace=NAMESPACE)
    return None
