"""A replica's life: lease, HTTP face and a good end, with a real HTTP server and a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
import pytest

from baton.engine import life as life_module
from baton.engine.drain import reason_to_stay
from baton.engine.life import ReplicaLife
from baton.engine.load import EngineCounts
from baton.engine.simulated import SimulatedEngine
from baton.engine.simulated.life import SimulatedLife
from baton.spec.lease import EngineLease
from baton.spec.schema import Engines

SECRET = {"x-baton-engine-secret": "open"}
PROMPT = "a prompt of some length, so that it fills a few blocks of KV"


@dataclass
class FakeDirectory:
    """Keeps every word that it was told."""

    said: list[str] = field(default_factory=list)
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    others: list[dict[str, Any]] = field(default_factory=list)
    lost: bool = False

    async def renew(self, lease: dict[str, Any], lease_s: float) -> str:
        if self.lost:
            raise ConnectionError
        if not self.said or self.said[-1] != lease["state"]:
            self.said.append(lease["state"])
        self.leases[lease["replica_id"]] = lease
        return "open"

    async def leave(self, replica_id: str) -> None:
        if self.lost:
            raise ConnectionError
        self.said.append("gone")
        self.leases.pop(replica_id, None)

    async def snapshot(self) -> dict[str, Any]:
        return {"engines": [*self.leases.values(), *self.others], "engine_secret": "open"}


@dataclass
class Replica:
    """A life and what is beside it."""

    life: ReplicaLife
    directory: FakeDirectory
    engine: SimulatedEngine
    url: str

    async def post(self, **body: Any) -> tuple[int, dict[str, Any]]:
        """One completion."""
        asked = {"model": "simulated", "prompt": PROMPT, "max_tokens": 1, **body}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/completions", json=asked, headers=SECRET) as answer,
        ):
            return answer.status, await answer.json()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's view is old here, and what is cut is cut soon."""
    monkeypatch.setattr(life_module, "reason_to_stay", partial(reason_to_stay, settle_s=0.2))
    monkeypatch.setattr(life_module, "CLOSE_S", 0.5)


@contextlib.asynccontextmanager
async def replica(role: str = "decode", drain_s: float = 20.0, **engine: Any) -> Any:
    directory = FakeDirectory()
    async with SimulatedEngine(role=role, **engine) as simulated:  # type: ignore[arg-type]
        engines = Engines(lease_s=0.5, drain_timeout_s=drain_s)
        life = SimulatedLife(simulated, directory, engines, replica_id="me", node="here")
        await life.begin(lambda: socket.create_server(("127.0.0.1", 0)))
        try:
            yield Replica(life, directory, simulated, life.lease.url)
        finally:
            await life.end()


async def until(check: Any) -> None:
    for _ in range(2000):
        if check():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited in vain")


async def test_the_directory_hears_every_step_in_order() -> None:
    """Starting, ready, draining, and then nothing any more."""
    async with replica() as me:
        assert me.directory.said == ["starting", "ready"]
        await me.life.end()
        assert me.directory.said == ["starting", "ready", "draining", "gone"]
        assert me.directory.leases == {}


async def test_a_request_on_an_old_view_is_still_served_while_the_replica_drains() -> None:
    """A gateway that read the directory a moment before sends it all the same."""
    async with replica() as me:
        ending = asyncio.create_task(me.life.end())
        await until(lambda: "draining" in me.directory.said)
        status, _ = await me.post()
        assert status == 200
        await ending


async def test_a_replica_that_has_gone_refuses_the_connection() -> None:
    """That is a failure which gateways try again elsewhere, with nothing lost."""
    async with replica() as me:
        await me.life.end()
        with pytest.raises(aiohttp.ClientConnectorError):
            await me.post()


async def test_an_open_request_is_finished_before_the_replica_goes() -> None:
    """It ends with every token, and only then the directory forgets the replica."""
    async with replica(latency={"tpot_s": 0.02}) as me:
        asking = asyncio.create_task(me.post(max_tokens=60))
        await until(lambda: me.engine.core.counts.running == 1)
        ending = asyncio.create_task(me.life.end())
        status, answer = await asking
        assert "gone" not in me.directory.said
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 60
        await ending


async def test_prefill_keeps_its_kv_until_decode_has_pulled_it() -> None:
    """The answer is out and no request is open; what decode was promised is still there."""
    async with replica("prefill") as me, SimulatedEngine(role="decode") as decode:
        remote = {"do_remote_decode": True, "do_remote_prefill": False}
        _, offer = await me.post(kv_transfer_params=remote)
        ending = asyncio.create_task(me.life.end())
        done, _ = await asyncio.wait({ending}, timeout=0.8)
        assert not done
        body = {
            "model": "simulated", "prompt": PROMPT, "max_tokens": 3,
            "kv_transfer_params": offer["kv_transfer_params"],
        }  # fmt: skip
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{decode.url}/v1/completions", json=body) as answer,
        ):
            assert answer.status == 200
        await ending
        assert me.engine.core.pool.expired_requests == 0


async def test_the_drain_limit_ends_the_wait_for_a_stream() -> None:
    """A stream without end cannot keep a replica for ever."""
    async with replica(drain_s=0.5, latency={"tpot_s": 0.05}) as me:
        asking = asyncio.create_task(me.post(max_tokens=5000))
        await until(lambda: me.engine.core.counts.running == 1)
        await me.life.end()
        assert me.directory.said[-1] == "gone"
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_the_lease_is_renewed_while_the_replica_drains() -> None:
    """Otherwise a long drain would vanish from people's sight, and from the last resort."""
    async with replica(latency={"tpot_s": 0.02}) as me:
        asking = asyncio.create_task(me.post(max_tokens=80))
        await until(lambda: me.engine.core.counts.running == 1)
        ending = asyncio.create_task(me.life.end())
        await until(lambda: "draining" in me.directory.said)
        me.directory.leases.clear()
        await until(lambda: me.directory.leases.get("me", {}).get("state") == "draining")
        await asking
        await ending


async def test_a_dead_engine_is_not_waited_for() -> None:
    """Nobody can pull from it, and it does not come back into the directory to say so."""
    async with replica("prefill") as me:
        await me.post(kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})
        me.engine.core.dead = True
        await me.life.end()
        assert me.engine.core.pool.usage > 0
        assert "draining" not in me.directory.said


async def test_a_lost_directory_does_not_keep_the_replica_from_draining() -> None:
    """Its open request is finished all the same."""
    async with replica(latency={"tpot_s": 0.02}) as me:
        asking = asyncio.create_task(me.post(max_tokens=40))
        await until(lambda: me.engine.core.counts.running == 1)
        me.directory.lost = True
        await me.life.end()
        status, _ = await asking
        assert status == 200


async def test_a_replica_that_never_was_ready_just_leaves() -> None:
    """Serve calls `__del__` after a constructor that failed as well."""
    directory = FakeDirectory()
    lease = EngineLease.model_validate(
        {
            "replica_id": "me", "role": "decode", "url": "", "engine_id": "", "model_id": "m",
            "state": "starting",
        }
    )  # fmt: skip

    async def check() -> None:
        return

    life = ReplicaLife(lease, directory, Engines(), counts=EngineCounts, check_engine=check)
    await life.enter()
    await life.end()
    assert directory.said == ["starting", "gone"]
    assert life.stats() == {}


async def test_the_lease_carries_what_the_replica_scales_by() -> None:
    """People see the same signals that the policy gets."""
    async with replica("prefill", latency={"prefill_tokens_per_s": 2000}) as me:
        for number in range(3):
            await me.post(prompt=f"{number} {PROMPT}")
        await until(lambda: me.directory.leases["me"]["load"]["prefill_tokens_per_s"] > 0)
        assert me.life.stats()["baton_prefill_tokens_per_s"] > 0


async def test_a_face_that_has_ended_by_itself_is_unhealthy() -> None:
    """Serve then starts another replica."""
    async with replica() as me:
        me.life.check_tasks()
        serving = me.life._serving
        assert serving is not None
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        with pytest.raises(RuntimeError, match="baton-engine-http"):
            me.life.check_tasks()
