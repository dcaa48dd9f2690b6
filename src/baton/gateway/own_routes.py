"""What the gateway answers itself: models, health, readiness, metrics, timelines, engines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from baton.errors import ModelUnknown
from baton.gateway.engines_view import engines_view
from baton.gateway.openai_errors import body_of

if TYPE_CHECKING:
    from baton.gateway.app import GatewayApp
    from baton.gateway.caller import Caller
    from baton.gateway.routes import Route

_STARTED = int(time.time())
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


async def answer(app: GatewayApp, caller: Caller, route: Route, ident: str | None) -> None:
    """Answer one of our own routes."""
    if route.path == "/health":
        await caller.answer_json(200, {"status": "ok"})
    elif route.path == "/ready":
        missing = missing_for_ready(app)
        # Decode alone serves everybody, slower: a readiness probe must not take that away. Only a
        # gateway that has just started waits a while for the other half.
        serves = not missing or (bool(app.directory.decode_engines()) and app.has_settled())
        if not missing:
            app.settle()
        said = "not ready" if not serves else "degraded" if missing else "ready"
        await caller.answer_json(200 if serves else 503, {"status": said, "missing": missing})
    elif route.path in ("/v1/models", "/v1/models/{id}"):
        await _models(app, caller, ident)
    elif route.path == "/metrics":
        await caller.answer(200, render_metrics(app), content_type=_METRICS)
    elif route.path == "/baton/engines/metrics":
        page = await app.federation.page(await app.start())
        await caller.answer(200, page, content_type=_METRICS)
    elif route.path == "/baton/requests":
        await caller.answer_json(200, {"requests": app.timelines.as_list()})
    elif route.path == "/baton/engines":
        await caller.answer_json(200, engines_view(app))
    else:
        await app.console.answer(caller, route, ident)


async def _models(app: GatewayApp, caller: Caller, ident: str | None) -> None:
    if ident is None:
        cards = [model_card(app, name) for name in sorted(app.model_ids)]
        await caller.answer_json(200, {"object": "list", "data": cards})
    elif ident in app.model_ids:
        await caller.answer_json(200, model_card(app, ident))
    else:
        error = ModelUnknown(f"The model `{ident[:200]}` does not exist.")
        await caller.answer_json(404, body_of(error))


def missing_for_ready(app: GatewayApp) -> list[str]:
    """What a pair still needs, in words. Empty when it can serve."""
    missing = []
    if not app.directory.decode_engines():
        missing.append("no decode engine is ready")
    if app.settings.disaggregate.mode != "never" and not app.directory.prefill_engines():
        missing.append("no prefill engine is ready")
    return missing


def model_card(app: GatewayApp, name: str) -> dict[str, Any]:
    """One model as OpenAI lists it, with vLLM's `max_model_len`: the least of all engines."""
    lengths = [e.max_model_len for e in app.directory.all_engines() if e.max_model_len > 0]
    return {
        "id": name,
        "object": "model",
        "created": _STARTED,
        "owned_by": "baton",
        "root": name,
        "parent": None,
        "max_model_len": min(lengths) if lengths else None,
    }


def render_metrics(app: GatewayApp) -> bytes:
    """The metrics, with the gauges set to what is so now."""
    metrics, directory = app.metrics, app.directory
    metrics.inflight.set(app.admission.inflight)
    metrics.queued.set(app.admission.queued)
    for pool in app.admission.pools:
        metrics.pool_inflight.labels(pool.name).set(pool.inflight)
        metrics.pool_queued.labels(pool.name).set(pool.queued)
        metrics.pool_tokens.labels(pool.name).set(pool.tokens)
    metrics.keys_stale.set(app.keys.stale)
    metrics.set_key_failures(app.keys.failures)
    metrics.overflow_inflight.set(0 if app.overflow is None else app.overflow.inflight)
    metrics.engines.labels("prefill").set(len(directory.prefill_engines()))
    metrics.engines.labels("decode").set(len(directory.decode_engines()))
    metrics.generations.set(len(directory.generations.members))
    for role in ("prefill", "decode"):
        metrics.unpaired.labels(role).set(directory.generations.unpaired(role))
    metrics.set_circuits(
        (e.replica_id, e.role, directory.breakers.state(e)) for e in directory.all_engines()
    )
    metrics.directory_age.set(-1 if directory.age_s is None else directory.age_s)
    metrics.set_directory_failures(directory.failures)
    engines = directory.all_engines()
    metrics.pools.set(engines)
    metrics.handoffs.forget_all_but({engine.replica_id for engine in engines})
    app.ways.show()
    show_links(app)
    return metrics.render()


def show_links(app: GatewayApp) -> None:
    """Set the gauges of each pair's transfers."""
    engines = {engine.replica_id: engine for engine in app.directory.all_engines()}
    app.links.keep(engines)

    def speed(prefill: str, rate: float | None) -> float | None:
        size = engines[prefill].kv_bytes_per_token
        return rate * size if rate is not None and size > 0 else None

    app.metrics.transport.show(
        (prefill, decode, ok, speed(prefill, rate))
        for prefill, decode, ok, rate in app.links.pairs()
    )
