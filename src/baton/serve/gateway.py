"""The gateway as a Ray Serve deployment: the ingress of the application.

It holds the handles of both engine deployments only so that Serve deploys them with it; requests
go to the engines over HTTP, by the addresses in the directory.
"""

from __future__ import annotations

import logging
from typing import Any

from ray import serve

from baton.gateway.app import build_gateway_app
from baton.gateway.caller_wire import SEND
from baton.gateway.directory import LeaseDirectory
from baton.heap import collect_rarely
from baton.observe.logs import configure
from baton.serve.registry import directory_actor
from baton.spec.lease import DirectorySnapshot
from baton.spec.schema import BatonBlock

log = logging.getLogger("baton.serve.gateway")

# How old a gateway's picture of the engines may be. Half a lease renewal.
DIRECTORY_INTERVAL_S = 0.5

# Serve runs a replica's code in a thread of its own, so that code which blocks cannot make it look
# dead, and hands every part of an answer over to the thread that writes it (ray 2.60,
# serve/_private/replica.py, `call_http_entrypoint`). The gateway never blocks: in the replica's own
# loop its parts are written at once (bench/results/gateway_one_loop.json). Not for the engines:
# vLLM's start does block.
ONE_LOOP = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0"}

# Requests are limited by the gateway's own admission: Serve's limit must never be what refuses.
UNLIMITED_ONGOING = 1_000_000


def gateway_deployment(settings: BatonBlock) -> Any:
    """The gateway's deployment.

    `max_surge_percent: 100`: in a rolling update the new gateways are up before the old ones go. A
    gateway takes no accelerator and no logical CPU, so there is always room; without it Serve stops
    one first (ray 2.60, serve/_private/deployment_state.py), and of one gateway nothing would be
    left to answer.
    """
    return serve.deployment(
        GatewayReplica,
        name="Gateway",
        num_replicas=settings.gateway.num_replicas,
        max_ongoing_requests=UNLIMITED_ONGOING,
        max_surge_percent=100,
        ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": ONE_LOOP}},
    )


@serve.ingress()
class GatewayReplica:
    """One gateway. Serve asks for its ASGI app once, after the constructor."""

    def __init__(self, *, settings: dict[str, Any], model_id: str, engines: list[Any]) -> None:
        self._settings = BatonBlock.model_validate(settings)
        configure(self._settings.logging)
        auth = self._settings.auth
        if auth.is_unsaid:
            # Where the endpoint listens is in the Serve file's `http_options` and, for a cluster
            # that runs already, nowhere an application can see. So it is said, and not refused.
            log.warning(
                "no key is asked for: whoever reaches Ray Serve's HTTP address can use this"
                " endpoint (baton.auth.api_keys_env or api_keys_file; allow_anonymous: true if"
                " it is meant to be open)"
            )
        self._model_id = model_id
        self._actor = directory_actor(serve.get_replica_context().app_name)
        self._engines = engines

    async def __serve_build_asgi_app__(self) -> Any:  # Ray Serve's own name
        """The gateway's ASGI app; Serve mounts it under the application's route_prefix."""
        collect_rarely()
        logging.getLogger("ray.serve").addFilter(not_serves_access_line)
        app = build_gateway_app(
            self._settings,
            LeaseDirectory(
                self._fetch,
                interval_s=DIRECTORY_INTERVAL_S,
                lease_s=self._settings.engines.lease_s,
            ),
            model_ids=[self._model_id],
        )
        return _WithoutRequestId(app)

    async def _fetch(self) -> DirectorySnapshot:
        return DirectorySnapshot.model_validate(await self._actor.snapshot.remote())


def not_serves_access_line(record: logging.LogRecord) -> bool:
    """Whether a record is other than Serve's line for each request.

    The gateway writes one of its own, with all of it and more. Serve's `enable_access_log: false`
    would be a setting of the whole logging config, and put the user's own aside (ray 2.60,
    serve/_private/logging_utils.py, `log_access_log_filter`).
    """
    return not getattr(record, "serve_access_log", False)


class _WithoutRequestId:
    """Drops the gateway's `x-request-id` answer header: Serve adds the same one itself.

    Ray 2.60, serve/_private/http_util.py, RequestIdMiddleware; it also fills in a missing id
    before the gateway sees the request, so both are always the same.

    And says where uvicorn's own `send` is, so that pieces of a stream need not go through Serve's
    wrappers (`gateway.caller_wire`).
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def without(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
                message = {**message, "headers": headers}
            await send(message)

        if scope["type"] == "http":
            scope = {**scope, SEND: _unwrapped(send)}
        await self._app(scope, receive, without)


# What Ray 2.60 puts around uvicorn's `send` of a replica that HAProxy talks to. Both look at the
# first and the last message of an answer and let the others pass as they are.
_SERVES_OWN = frozenset({
    "Replica._direct_ingress_asgi.<locals>.send_user_message",  # serve/_private/replica.py
    "RequestIdMiddleware.__call__.<locals>.send_with_request_id",  # serve/_private/http_util.py
})  # fmt: skip


def _unwrapped(send: Any) -> Any:
    """The `send` behind Serve's own wrappers; a wrapper that is not known stays."""
    for _ in _SERVES_OWN:
        if getattr(send, "__qualname__", None) not in _SERVES_OWN:
            break
        names = send.__code__.co_freevars
        if "send" not in names:
            break
        send = send.__closure__[names.index("send")].cell_contents
    return send
