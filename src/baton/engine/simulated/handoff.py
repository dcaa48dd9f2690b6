"""How simulated engines pass KV on: a small HTTP side channel in the place of NIXL.

`GET /sim/kv` says who listens (NIXL's handshake), `POST /sim/kv/read` gives what stands in the
blocks (its READ), `POST /sim/kv/notify` releases offers and brings heartbeats (its notifications).
Only simulated engines answer there, on the host and port that their `kv_transfer_params` name.

The decode side keeps vLLM's habits (0.29, nixl/base_worker.py), the bad ones too: a peer is known
by its `engine_id` alone once it has been met, and a peer that has gone stays known.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from baton.engine.simulated.text import Context

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

    from baton.engine.simulated.metrics import Counts
    from baton.engine.simulated.settings import EngineSettings

logger = logging.getLogger(__name__)


class KvLoadFailed(Exception):
    """The KV of a handoff did not come. Like vLLM's, the reason is in the log only."""


@dataclass(frozen=True)
class RemoteKv:
    """Where the KV of a prompt waits: what decode reads of `kv_transfer_params`."""

    engine_id: str
    request_id: str
    host: str
    port: int
    blocks: tuple[int, ...]

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> RemoteKv | None:
        """None where vLLM says "Got invalid KVTransferParams": a name is missing."""
        names = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
        if any(params.get(name) is None for name in names):
            return None
        engine_id, request_id, host, port = (params[name] for name in names)
        try:
            # One group: there are no sliding windows here.
            blocks = tuple(int(block) for block in (params.get("remote_block_ids") or [[]])[0])
            return cls(str(engine_id), str(request_id), str(host), int(port), blocks)
        except (TypeError, ValueError, KeyError, IndexError):
            return None


@dataclass(frozen=True)
class _Peer:
    url: str
    boot: str


class Peers:
    """The other engines, as a decode engine sees them."""

    def __init__(self, settings: EngineSettings, counts: Counts) -> None:
        self._counts = counts
        self._timeout_s = settings.handshake_timeout_s
        self._version = settings.vllm_version
        self._heartbeat_s = settings.kv_lease_s / 6
        # A notification waits in NIXL's queue while its peer does not run, for as long as it takes;
        # behind the end of the lease it would change nothing.
        self._notice_timeout = aiohttp.ClientTimeout(total=settings.kv_lease_s)
        self._known: dict[str, _Peer] = {}
        self._session: aiohttp.ClientSession | None = None
        self._notices: set[asyncio.Task[None]] = set()
        self._parked: list[RemoteKv] = []

    async def close(self) -> None:
        for notice in self._notices:
            notice.cancel()
        if self._session is not None:
            await self._session.close()

    async def read(
        self, remote: RemoteKv, blocks: list[int], length: int, *, fail: bool = False
    ) -> Context:
        """The KV of `length` tokens out of these blocks.

        Raises:
            KvLoadFailed: The peer is not there, is somebody else, or was started anew; or that is
                what was asked for.
        """
        if fail:
            raise KvLoadFailed("a fault on request")
        peer = await self._meet(remote)
        body = {"boot": peer.boot, "blocks": blocks, "length": length}
        try:
            async with self._http().post(f"{peer.url}/read", json=body) as answer:
                if answer.status != 200:  # noqa: PLR2004
                    raise KvLoadFailed(f"{remote.engine_id} says {answer.status}")
                found = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise KvLoadFailed(f"{remote.engine_id} does not answer: {exc}") from exc
        return Context(int(found["fingerprint"], 16), found["length"], bytes.fromhex(found["tail"]))

    def release(self, remote: RemoteKv) -> None:
        """Tell the prefill side that its blocks are no longer needed. Nobody waits for it."""
        self._notify(remote, {"release": [remote.request_id]})

    def reject(self, remote: RemoteKv) -> None:
        """Release an offer that is not read here.

        Where the prefill side was never met, the handshake comes first and the release goes out
        with this engine's next step (`step`): vLLM 0.29, `_ready_requests` in nixl/pull_worker.py.
        """
        if remote.engine_id in self._known:
            self.release(remote)
        else:
            self._keep(self._meet_and_park(remote))

    async def _meet_and_park(self, remote: RemoteKv) -> None:
        try:
            await self._meet(remote)
        except KvLoadFailed as exc:
            self._counts.failed_notifications += 1
            logger.warning("%s was not notified: %s", remote.engine_id, exc)
        else:
            self._parked.append(remote)

    def step(self) -> None:
        """The engine computes something: what waited for a handshake goes out."""
        parked, self._parked = self._parked, []
        for remote in parked:
            self.release(remote)

    @contextlib.contextmanager
    def heartbeats(self, remote: RemoteKv) -> Iterator[None]:
        """Keep the offer alive while the request waits here."""
        beating = asyncio.get_running_loop().create_task(self._beat(remote))
        try:
            yield
        finally:
            beating.cancel()

    async def _beat(self, remote: RemoteKv) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._notify(remote, {"heartbeat": [remote.request_id]})

    def _notify(self, remote: RemoteKv, message: dict[str, list[str]]) -> None:
        self._keep(self._send(remote, message))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        notice = asyncio.get_running_loop().create_task(work)
        self._notices.add(notice)
        notice.add_done_callback(self._notices.discard)

    async def _send(self, remote: RemoteKv, message: dict[str, list[str]]) -> None:
        try:
            peer = await self._meet(remote)
            body = {"boot": peer.boot, **message}
            try:
                await self._post_notice(peer, body)
            except aiohttp.ClientError:
                # A kept connection that the peer was closing: NIXL has none, and loses nothing.
                await self._post_notice(peer, body)
        except (aiohttp.ClientError, TimeoutError, KvLoadFailed) as exc:
            self._counts.failed_notifications += 1
            logger.warning("%s was not notified: %s", remote.engine_id, exc)

    async def _post_notice(self, peer: _Peer, body: dict[str, Any]) -> None:
        url = f"{peer.url}/notify"
        async with self._http().post(url, json=body, timeout=self._notice_timeout) as answer:
            await answer.read()

    async def _meet(self, remote: RemoteKv) -> _Peer:
        peer = self._known.get(remote.engine_id)
        if peer is None:
            peer = await self._handshake(remote)
            self._known[remote.engine_id] = peer
        return peer

    async def _handshake(self, remote: RemoteKv) -> _Peer:
        url = f"http://{remote.host}:{remote.port}/sim/kv"
        patience = asyncio.get_running_loop().create_task(asyncio.sleep(self._timeout_s))
        try:
            async with self._http().get(url) as answer:
                found = await answer.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
            # A ZeroMQ socket does not learn that nobody listens: the whole time passes.
            await patience
            raise KvLoadFailed(f"no handshake with {remote.host}:{remote.port}: {exc}") from exc
        finally:
            patience.cancel()
        if found["engine_id"] != remote.engine_id:
            raise KvLoadFailed(f"expected engine {remote.engine_id}, met {found['engine_id']}")
        if found["version"] != self._version:
            # A part of the hash that vLLM's handshake compares.
            raise KvLoadFailed(f"{remote.engine_id} is vLLM {found['version']}: not compatible")
        return _Peer(url, found["boot"])

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=0),
            )
        return self._session
