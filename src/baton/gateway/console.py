"""The console: a page at `/console`, its files below it, and what it shows at `/baton/console`.

The page and its files hold no data and need no key, so that a browser can open them; it asks for
the key itself and sends it with each request for data. Nothing may run in the page but its own
script: the policy forbids inline code, foreign origins, frames, and turning text into markup at all
(`require-trusted-types-for`). Decision 0024 says why.

There may be several gateways behind one address, and each knows the requests that it served itself.
So an answer says whose it is, and a page says up to which request it has read each gateway it met
(`?seen=GATEWAY.NUMBER,…`): what it gets is what is new.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from baton.errors import ConsoleNotBuilt, GatewayError, MediaTypeRefused, RouteUnknown
from baton.gateway.caller import CallerGone
from baton.gateway.engines_view import engines_list
from baton.gateway.openai_errors import body_of
from baton.gateway.request_body import parse_body
from baton.gateway.verdicts import Verdicts
from baton.observe.console.bundle import PAGE, read_bundle
from baton.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton.gateway.admission import HeldBodies
    from baton.gateway.app import GatewayApp
    from baton.gateway.caller import Caller, Header
    from baton.gateway.routes import Route
    from baton.observe.console.bundle import File

log = logging.getLogger("baton.gateway.console")

PAGE_ROUTES = frozenset({"/console", "/console/{id}"})
DATA, TOLD = "/baton/console", "/baton/verify/verdicts"
CONSOLE_ROUTES = PAGE_ROUTES | {DATA, TOLD}

MOST_REQUESTS = 100
"""Timelines in one answer: a busy gateway must not stand still for a page that looks on."""
MOST_AT_FIRST = 400
"""The same for a page that was just opened."""
MOST_TOLD_BYTES = 1024 * 1024
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    b" base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    b" require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Console:
    """This gateway's part of the console."""

    def __init__(self, app: GatewayApp, bodies: HeldBodies) -> None:
        self._app = app
        self._bodies = bodies
        self._files: Mapping[str, File] | None = None
        self._id = os.urandom(6).hex()
        self._began = time.time()
        self.verdicts = Verdicts()
        if app.settings.console.enabled:
            try:
                self._files = read_bundle()
            except ConsoleNotBuilt as missing:
                log.warning("%s", missing.fact, extra={"cure": missing.cure})

    def hides(self, route: Route) -> bool:
        """Whether a route is not there, because the console is switched off."""
        return route.path in CONSOLE_ROUTES and not self._app.settings.console.enabled

    async def answer(self, caller: Caller, route: Route, ident: str | None) -> None:
        """Answer one of the console's routes."""
        try:
            if route.path == DATA:
                seen = _seen(caller.scope.get("query_string", b""))
                await caller.answer_json(200, self._view(seen), HEADERS)
            elif route.path == TOLD:
                kept = self.verdicts.take(await self._told(caller))
                await caller.answer_json(200, {"kept": kept}, HEADERS)
            elif ident == "":
                # One slash too many: the page finds its files beside its own address.
                await caller.answer(308, b"", headers=[(b"location", b"../console"), *HEADERS])
            else:
                await self._file(caller, PAGE if ident is None else ident)
        except GatewayError as error:
            await caller.answer_json(error.status, body_of(error), HEADERS)
        except CallerGone:
            log.debug("a caller went away before it had told its verdicts")

    async def _file(self, caller: Caller, name: str) -> None:
        if self._files is None:
            self._files = read_bundle()  # perhaps it was built meanwhile
        file = self._files.get(name)
        if file is None:
            raise RouteUnknown(f"The console has no file {name[:100]!r}.")
        await caller.answer(200, file.body, content_type=file.content_type, headers=HEADERS)

    async def _told(self, caller: Caller) -> dict[str, Any]:
        if not caller.header(b"content-type"):
            # A page of another site can have a browser send this without asking the gateway first.
            raise MediaTypeRefused("A body without a type is not taken here.")
        try:
            limit_s = self._app.settings.admission.body_timeout_s
            return parse_body(await caller.read_body(MOST_TOLD_BYTES, limit_s, self._bodies))
        finally:
            self._bodies.give_back(caller.held)
            caller.held = 0

    # -- what is shown -----------------------------------------------------------------------------

    def _view(self, seen: Mapping[str, int]) -> dict[str, Any]:
        app, settings = self._app, self._app.settings
        engines = engines_list(app)
        sizes = {engine["replica_id"]: engine["kv_bytes_per_token"] for engine in engines}
        ring = app.timelines
        last = seen.get(self._id)
        ended = ring.after(last or 0, MOST_AT_FIRST if last is None else MOST_REQUESTS)
        left_out = 0 if last is None else max(0, ring.added - last - len(ended))
        return {
            "gateway": {
                "id": self._id,
                "of": settings.gateway.num_replicas,
                "version": __version__,
                "now": round(time.time(), 3),
                "began": round(self._began, 3),
                "mode": settings.disaggregate.mode,
                "require": settings.transport.require,
                "slo": settings.slo.model_dump(mode="json"),
            },
            "directory": {"age_s": app.directory.age_s, "failures": app.directory.failures},
            "models": sorted(app.model_ids),
            "engines": engines,
            "pairs": [
                {**pair, "gb_per_s": _gb_per_s(pair["tokens_per_s"], sizes.get(pair["prefill"], 0))}
                for pair in app.links.as_list()
                if pair["prefill"] in sizes and pair["decode"] in sizes
            ],
            "verdicts": self.verdicts.as_list(set(sizes)),
            "load": {
                "inflight": app.admission.inflight,
                "queued": app.admission.queued,
                "max_inflight": settings.admission.max_inflight,
                "max_queue": settings.admission.max_queue,
            },
            "requests": {"added": ring.added, "left_out": left_out, "ended": ended},
        }


def _gb_per_s(tokens_per_s: float | None, kv_bytes_per_token: int) -> float | None:
    if tokens_per_s is None or kv_bytes_per_token <= 0:
        return None
    return tokens_per_s * kv_bytes_per_token / 1e9


def _seen(query: bytes) -> dict[str, int]:
    """Gateways and numbers of `seen`; what cannot be read is as if it were not there."""
    found = {}
    for part in parse_qs(query.decode("latin-1")).get("seen", [""])[0].split(","):
        name, _, number = part.partition(".")
        if number.isascii() and number.isdigit() and len(number) < 16:  # noqa: PLR2004
            found[name] = int(number)
    return found
