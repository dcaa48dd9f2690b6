"""From a caller's bytes to what is asked of the engines. Everything wrong is refused here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from baton.errors import ModelUnknown, RequestRefused
from baton.gateway.decode import tag_in
from baton.gateway.eligibility import why_decode_alone
from baton.gateway.journey import Ask, engine_path
from baton.gateway.request_body import parse_body

if TYPE_CHECKING:
    from baton.gateway.caller import Caller
    from baton.gateway.eligibility import Mode
    from baton.gateway.request_body import Body
    from baton.gateway.routes import Route

_MODES: dict[bytes, Mode] = {b"always": "always", b"never": "never"}
# What engines get of the caller's headers. Not the key, not cookies, and none of the headers that
# steer an engine (x-baton-*, X-data-parallel-rank, X-Vllm-Priority, X-Session-ID).
_PASSED_ON = tuple((n, n.decode()) for n in (b"accept", b"traceparent", b"tracestate"))


def understand(
    caller: Caller,
    route: Route,
    ident: str | None,
    raw: bytes,
    *,
    mode: Mode,
    known_models: frozenset[str],
) -> Ask:
    """What the caller asks of the engines.

    Args:
        caller: For its method, query and headers.
        route: A route of kind `pd` or `decode_only`.
        ident: The `{id}` in the path.
        raw: The body.
        mode: The deployment's `disaggregate.mode`; the caller's header goes before it.
        known_models: Names that `model` may have; empty when nothing is known yet.

    Raises:
        RequestRefused: The body, `stream`, `model` or a header is wrong.
        ModelUnknown: A model that is not served here.
    """
    method = caller.scope["method"]
    headers: dict[str, str] = {}
    for name, text in _PASSED_ON:
        value = caller.header(name)
        if value is not None:
            headers[text] = value.decode("latin-1")
    mode = _mode(caller, mode)
    path = engine_path(route, ident)
    if ident is not None:
        if raw:
            parse_body(raw)
        if caller.scope.get("query_string"):
            path += "?" + caller.scope["query_string"].decode("latin-1")
        return Ask(route, method, path, None, False, headers, "route", tag_in(ident))
    body = parse_body(raw)
    _check_model(body, known_models)
    previous = body.get("previous_response_id")
    return Ask(
        route=route,
        method=method,
        path=path,
        body=body,
        streamed=_streamed(body),
        headers={"content-type": "application/json", **headers},
        why_alone=why_decode_alone(body, mode) if route.kind == "pd" else "route",
        tag=tag_in(previous) if isinstance(previous, str) else None,
    )


def _mode(caller: Caller, configured: Mode) -> Mode:
    asked = caller.header(b"x-baton-disaggregate")
    if asked is None:
        return configured
    if asked not in _MODES:
        raise RequestRefused(
            "x-baton-disaggregate must be `always` or `never`.", param="x-baton-disaggregate"
        )
    return _MODES[asked]


def _check_model(body: Body, known: frozenset[str]) -> None:
    model = body.get("model")
    if model is None:
        return
    if not isinstance(model, str):
        raise RequestRefused("`model` must be a string.", param="model")
    if known and model not in known:
        raise ModelUnknown(f"The model `{model[:200]}` does not exist.")


def _streamed(body: Body) -> bool:
    stream = body.get("stream")
    if stream is None or isinstance(stream, bool):
        return bool(stream)
    # vLLM's parser would also take "true": the gateway must know which kind of answer comes.
    raise RequestRefused("`stream` must be true or false.", param="stream")
