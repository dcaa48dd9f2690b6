"""The HTTP face: vLLM's routes, plain ASGI, and the side channel between simulated engines."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING, Any

from baton.engine.simulated.answers import (
    Answer,
    ChatAnswer,
    CompletionAnswer,
    dumps,
    last_event,
)
from baton.engine.simulated.faults import EXPIRE_LEASES, Faults, Plan
from baton.engine.simulated.metrics import CONTENT_TYPE, exposition
from baton.engine.simulated.prompts import chat_job, completion_job, detokenized, tokenized
from baton.engine.simulated.requests import Refusal, error_body, read_json
from baton.engine.simulated.writing import EVENTS, Line, Writing, send_answer, until_gone
from baton.errors import ConfigRefused
from baton.spec.transfer import EngineFacts, WorkerFacts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Receive, Scope, Send

    from baton.engine.simulated.core import Core
    from baton.engine.simulated.prompts import Job
    from baton.engine.simulated.requests import ChatRequest, CompletionRequest

    AnyJob = Job[ChatRequest] | Job[CompletionRequest]

    _Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger(__name__)


class EngineApp:
    """The engine's ASGI app, and `side_channel`, the one for its peers.

    Args:
        core: The engine.
        on_kill: Ends the process, or what stands for it.
    """

    def __init__(self, core: Core, *, on_kill: Callable[[], None]) -> None:
        self.faults = Faults()
        self._core = core
        self._on_kill = on_kill
        self._loading = 0
        self._started_at = int(time.time())
        self._routes: dict[str, dict[str, _Handler]] = {
            "/health": {"GET": self._health},
            "/version": {"GET": self._version},
            "/load": {"GET": self._load},
            "/baton/evidence": {"GET": self._evidence},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completions},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/sim/faults": {"GET": self._show_faults, "POST": self._set_faults},
        }
        self._side_routes: dict[str, dict[str, _Handler]] = {
            "/sim/kv": {"GET": self._kv_handshake},
            "/sim/kv/read": {"POST": self._kv_read},
            "/sim/kv/notify": {"POST": self._kv_notify},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._dispatch(self._routes, scope, receive, send)

    async def side_channel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What peers ask; it stands for NIXL and knows no secret, as NIXL does not."""
        await self._dispatch(self._side_routes, scope, receive, send)

    async def _dispatch(
        self,
        routes: dict[str, dict[str, _Handler]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        methods = routes.get(scope["path"])
        if methods is None:
            await send_answer(send, 404, b'{"detail":"Not Found"}')
            return
        handler = methods.get(scope["method"])
        if handler is None:
            await send_answer(send, 405, b'{"detail":"Method Not Allowed"}')
            return
        await handler(scope, receive, send)

    # Facts

    async def _health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        bad = self._core.dead or self.faults.unhealthy
        await send_answer(send, 503 if bad else 200, b"", content_type=None)

    async def _version(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_answer(send, 200, dumps({"version": self._core.settings.vllm_version}))

    async def _load(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_answer(send, 200, dumps({"server_load": self._loading}))

    async def _metrics(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        settings, pool = self._core.settings, self._core.pool
        page = exposition(
            self._core.counts,
            model_id=settings.model_id,
            kv_usage=pool.usage,
            kv_expired=pool.expired_requests,
            config={"block_size": settings.block_size, "num_gpu_blocks": settings.kv_blocks},
        )
        await send_answer(send, 200, page, content_type=CONTENT_TYPE)

    async def _evidence(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        settings = self._core.settings
        facts = EngineFacts(
            role=settings.role,
            engine_id=settings.engine_id,
            simulated=True,
            connector="simulated",
            workers=(
                WorkerFacts(
                    connector="simulated",
                    device="cpu",
                    kv_buffer_device="cpu",
                    kv_bytes_per_token=settings.kv_bytes_per_token,
                ),
            ),
        )
        await send_answer(send, 200, facts.model_dump_json().encode())

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        settings = self._core.settings
        permission = {
            "id": "modelperm-simulated",
            "object": "model_permission",
            "created": self._started_at,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        card = {
            "id": settings.model_id,
            "object": "model",
            "created": self._started_at,
            "owned_by": "vllm",
            "root": settings.model_id,
            "parent": None,
            "max_model_len": settings.max_model_len,
            "permission": [permission],
        }
        await send_answer(send, 200, dumps({"object": "list", "data": [card]}))

    async def _tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._plain(tokenized, scope, receive, send)

    async def _detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._plain(detokenized, scope, receive, send)

    async def _plain(
        self, answer: Callable[..., dict[str, Any]], scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            found = read_json(await _body(receive), _header(scope, b"content-type"))
            body = dumps(answer(found, self._core.settings))
        except Refusal as refusal:
            await send_answer(send, refusal.status, refusal.body)
            return
        await send_answer(send, 200, body)

    # Faults

    async def _show_faults(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_answer(send, 200, dumps({"faults": self.faults.listed()}))

    async def _set_faults(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            found = read_json(await _body(receive), _header(scope, b"content-type"))
            specs = [str(spec) for spec in found.get("faults", [])]
            self.faults.set([spec for spec in specs if spec != EXPIRE_LEASES])
        except Refusal as refusal:
            await send_answer(send, refusal.status, refusal.body)
            return
        except ConfigRefused as exc:
            body = error_body(exc.fact, kind="BadRequestError", param="faults", code=400)
            await send_answer(send, 400, body)
            return
        if EXPIRE_LEASES in specs:
            self._core.expire_leases(everything=True)
        await self._show_faults(scope, receive, send)

    # Generation

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(_chat_answer, scope, receive, send)

    async def _completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._generate(_completion_answer, scope, receive, send)

    async def _generate(
        self,
        understand: Callable[[Core, dict[str, Any], str | None], tuple[AnyJob, Answer]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        try:
            plan = self.faults.plan(_header(scope, b"x-sim-fault"))
        except ConfigRefused as exc:
            body = error_body(exc.fact, kind="BadRequestError", param="x-sim-fault", code=400)
            await send_answer(send, 400, body)
            return
        if plan.refuse is not None:
            await self._refuse(plan, scope, send)
            return
        try:
            found = read_json(await _body(receive), _header(scope, b"content-type"))
            job, answer = understand(self._core, found, _header(scope, b"x-request-id") or None)
        except Refusal as refusal:
            if refusal.late and found.get("stream"):
                await send_answer(send, 200, last_event(refusal.body), content_type=EVENTS)
            else:
                await send_answer(send, refusal.status, refusal.body)
            return
        writing = Writing(self._core, job, answer, plan, Line(scope, send, self._on_kill))
        self._loading += 1
        try:
            await until_gone(writing.whole_or_stream(), receive)
        finally:
            self._loading -= 1

    async def _refuse(self, plan: Plan, scope: Scope, send: Send) -> None:
        if plan.refuse == "close":
            Line(scope, send, self._on_kill).cut()
            return
        body = error_body("Simulated refusal", kind="ServiceUnavailableError", param=None, code=503)
        await send_answer(send, 503, body)

    # Side channel

    async def _kv_handshake(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        own = self._core.settings
        who = {"engine_id": own.engine_id, "boot": self._core.boot, "version": own.vllm_version}
        await send_answer(send, 200, dumps(who))

    async def _kv_read(self, _scope: Scope, receive: Receive, send: Send) -> None:
        asked = json.loads(await _body(receive))
        if asked["boot"] != self._core.boot or self._core.dead:
            await send_answer(send, 410, b"{}")
            return
        context = self._core.pool.read(asked["blocks"], asked["length"])
        found = {
            "fingerprint": f"{context.fingerprint:x}",
            "length": context.length,
            "tail": context.tail.hex(),
        }
        await send_answer(send, 200, dumps(found))

    async def _kv_notify(self, _scope: Scope, receive: Receive, send: Send) -> None:
        told = json.loads(await _body(receive))
        if told["boot"] == self._core.boot:
            self._core.pool.heartbeat(told.get("heartbeat", ()))
            self._core.release(told.get("release", []))
        await send_answer(send, 200, b"{}")


def _chat_answer(
    core: Core, found: dict[str, Any], request_id: str | None
) -> tuple[AnyJob, Answer]:
    job = chat_job(found, core.settings, core.reject)
    return job, ChatAnswer(job.request, core.settings.model_id, request_id)


def _completion_answer(
    core: Core, found: dict[str, Any], request_id: str | None
) -> tuple[AnyJob, Answer]:
    job = completion_job(found, core.settings, core.reject)
    return job, CompletionAnswer(job.request, core.settings.model_id, request_id)


async def _body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
    return body


def _header(scope: Scope, name: bytes) -> str:
    for key, value in scope["headers"]:
        if key == name:
            decoded: str = value.decode("latin-1")
            return decoded
    return ""
