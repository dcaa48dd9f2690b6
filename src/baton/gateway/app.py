"""The gateway as an ASGI app: the way of a request, from the first byte to the last.

    admit    key, size, body, tokens, place    auth, caller, request_body, entrance, admission
    route    P/D, or decode alone              routes, eligibility, routing
    prefill  one token, an offer of KV         prefill
    handoff  decode takes the offer            handoff, recovery
    decode   an answer begins                  decode
    stream   its bytes pass through            stream

Works with a server that sends lifespan events and with one that does not: what is needed starts
with the first request then.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from baton.errors import (
    GatewayError,
    MethodRefused,
    RouteUnknown,
)
from baton.gateway import own_routes
from baton.gateway.admission import Admission, HeldBodies
from baton.gateway.answers import answer_error
from baton.gateway.ask import Parts, leg_headers
from baton.gateway.auth import Keys
from baton.gateway.books import Books
from baton.gateway.caller import Caller
from baton.gateway.caller_wire import Outbox
from baton.gateway.console import PAGE_ROUTES, Console
from baton.gateway.engine_client import EngineClient
from baton.gateway.entrance import Entrance
from baton.gateway.federation import Federation
from baton.gateway.lease_guard import LeaseGuard
from baton.gateway.lifespan import lifespan
from baton.gateway.links import Links
from baton.gateway.overflow import Overflow
from baton.gateway.prefixes import PrefixIndex
from baton.gateway.proofs import PROOF_ROUTES, Proofs
from baton.gateway.recovery import RetryBudget
from baton.gateway.releases import Releases
from baton.gateway.routes import local_path, lookup
from baton.gateway.routing import InFlight, Router, release_takers
from baton.gateway.serving import Serving
from baton.gateway.ways import Ways
from baton.observe.metrics import GatewayMetrics
from baton.observe.otlp import Tracer
from baton.observe.timeline import TimelineRing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from baton.gateway.auth import Holder
    from baton.gateway.caller import Header, Receive, Scope, Send
    from baton.gateway.directory import Directory
    from baton.gateway.routes import Route
    from baton.spec.schema import BatonBlock

SETTLES_S = 30.0
"""So long a gateway that has just started waits for prefill before it calls itself ready."""
OPEN_ROUTES = PAGE_ROUTES | {"/health", "/ready"}


def build_gateway_app(
    settings: BatonBlock,
    directory: Directory,
    *,
    model_ids: Sequence[str] | None = None,
    route_prefix: str = "/",
) -> GatewayApp:
    """The gateway for one deployment.

    Args:
        settings: The `baton:` block.
        directory: Knows the engines. The app starts and closes it.
        model_ids: Names that `model` may have; those of the directory's engines when None.
        route_prefix: Where the app is mounted, as in the Serve file.

    Raises:
        ConfigRefused: Keys of callers, or the overflow provider's, are not there.
    """
    return GatewayApp(
        settings,
        directory,
        keys=Keys.from_settings(settings.auth),
        model_ids=None if model_ids is None else frozenset(model_ids),
        route_prefix=route_prefix,
    )


class GatewayApp:
    """An ASGI 3 app. `close` ends it where no lifespan does."""

    def __init__(
        self,
        settings: BatonBlock,
        directory: Directory,
        *,
        keys: Keys,
        model_ids: frozenset[str] | None,
        route_prefix: str,
    ) -> None:
        self.settings = settings
        self.directory = directory
        self.metrics = GatewayMetrics(settings.slo)
        self.timelines = TimelineRing()
        self.federation = Federation()
        self._tracer = Tracer(settings.tracing, self.metrics)
        self._books = Books(self.metrics, self.timelines, self._tracer)
        self.admission = Admission(settings.admission)
        self.overflow = (
            None if settings.overflow is None else Overflow(settings.overflow, self.metrics)
        )
        self.keys = keys
        keys.forget = self.metrics.forget_key
        self.inflight = InFlight()
        self.router = Router(
            self.inflight,
            random.Random(),  # noqa: S311 - no secret; each gateway draws its own
            PrefixIndex() if settings.routing.prefix_affinity else None,
            settings.gateway.num_replicas,
        )
        self.ways = Ways(directory, self.inflight, self.metrics.costs)
        self.links = Links(self.ways.model.prefill_seconds)
        self.ways.links = self.links
        self._entrance = Entrance(settings, self.admission, self.overflow, self.metrics)
        self._outbox = Outbox()
        self._bodies = HeldBodies(settings.admission.max_body_bytes_held)
        self._proofs = Proofs(self, self._bodies)
        self._serving = Serving(self, self._entrance, self._books, self._tracer, self._bodies)
        self.console = Console(self, self._bodies)
        self._model_ids = model_ids
        self._prefix = route_prefix
        self._client: EngineClient | None = None
        self._parts: Parts | None = None
        self._start_lock: asyncio.Lock | None = None
        self._settles_at = time.monotonic() + SETTLES_S

    def settle(self) -> None:
        """A pair could serve: from now on decode alone is enough to be ready."""
        self._settles_at = 0.0

    def has_settled(self) -> bool:
        """Whether a pair was seen, or has been waited for long enough."""
        return time.monotonic() >= self._settles_at

    # -- life ------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await lifespan(receive, send, start=self.start, close=self.close)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "not served"})

    async def start(self) -> Parts:
        """Start the directory and the HTTP client, once, in the running loop."""
        if self._parts is not None:
            return self._parts
        if self._start_lock is None:
            self._start_lock = asyncio.Lock()
        async with self._start_lock:
            if self._parts is None:
                await self.directory.start()
                self.keys.start()
                client = self._client = EngineClient()

                def headers(leg_id: str) -> dict[str, str]:
                    return leg_headers(self.directory, {"content-type": "application/json"}, leg_id)

                releases = Releases(
                    client, lambda: release_takers(self.directory), headers, self.metrics
                )
                self._parts = Parts(
                    client,
                    self.directory,
                    self.inflight,
                    self.router,
                    releases,
                    self.metrics,
                    self.settings.recovery,
                    RetryBudget(),
                    LeaseGuard(client, headers, self.settings.recovery.kv_lease_s),
                    self.links,
                )
        return self._parts

    async def close(self) -> None:
        """Let go of what is held, then close the directory and the connections."""
        if self._parts is not None:
            await self._parts.releases.close()
            await self.directory.close()
        await self.keys.close()
        if self.overflow is not None:
            await self.overflow.close()
        if self._client is not None:
            await self._client.close()
        self.federation.close()
        await self._tracer.close()
        self._parts = self._client = None

    @property
    def model_ids(self) -> frozenset[str]:
        """Names that `model` may have. Empty while no engine is known."""
        return self.directory.model_ids() if self._model_ids is None else self._model_ids

    # -- one request -----------------------------------------------------------------------------

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = Caller(scope, receive, send, self._outbox)
        path = local_path(scope["path"], scope.get("root_path", ""), self._prefix)
        found = None if path is None else lookup(path)
        if found is None or self.console.hides(found[0]):
            await self._refuse(
                caller, RouteUnknown(f"Unknown request URL: {scope['method']} {scope['path']}.")
            )
            return
        route, ident = found
        if scope["method"] not in route.methods:
            allow = ", ".join(sorted(route.methods)).encode()
            error = MethodRefused(f"{scope['method']} is not allowed on {scope['path']}.")
            await self._refuse(caller, error, headers=[(b"allow", allow)])
            return
        try:
            holder = (
                self.keys.anonymous
                if route.path in OPEN_ROUTES
                else self.keys.holder_of(
                    caller.header(b"authorization"), caller.header(b"x-api-key")
                )
            )
            parts = await self.start()
        except GatewayError as error:
            await self._refuse(caller, error, route)
            return
        if route.path in PROOF_ROUTES:
            await self._proofs.answer(caller, route, parts)
            return
        if route.kind == "own":
            await own_routes.answer(self, caller, route, ident)
            return
        try:
            holder.begin()
        except GatewayError as error:
            await self._refuse(caller, error, route, holder=holder)
            return
        try:
            await self._serving.serve(parts, caller, route, ident, holder)
        except GatewayError as error:
            await self._refuse(caller, error, route, holder=holder)
        finally:
            holder.end()
            self._bodies.give_back(caller.held)

    async def _refuse(
        self,
        caller: Caller,
        error: GatewayError,
        route: Route | None = None,
        headers: Sequence[Header] = (),
        holder: Holder | None = None,
    ) -> None:
        """Answer with one of our own errors before any engine was asked."""
        self._books.refused(error, caller, route, None if holder is None else holder.name)
        await answer_error(caller, error, route, headers)
