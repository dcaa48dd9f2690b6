"""From a caller's bytes to what is asked of the engines. Everything wrong is refused here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from baton.errors import ModelUnknown, RequestRefused
from baton.gateway.ask import Ask, engine_path
from baton.gateway.decode import tag_in
from baton.gateway.eligibility import prompt_size, why_decode_alone
from baton.gateway.request_body import parse_body

if TYPE_CHECKING:
    from baton.gateway.caller import Caller
    from baton.gateway.eligibility import Mode
    from baton.gateway.request_body import Body
    from baton.gateway.routes import Route
    from baton.gateway.ways import Ways

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
    ways: Ways,
) -> Ask:
    """What the caller asks of the engines.

    Args:
        caller: For its method, query and headers.
        route: A route of kind `pd` or `decode_only`.
        ident: The `{id}` in the path.
        raw: The body.
        mode: The deployment's `disaggregate.mode`; the caller's header goes before it.
        known_models: Names that `model` may have; empty when nothing is known yet.
        ways: Chooses where `auto` leaves a choice.

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
    ask = Ask(
        route=route,
        method=method,
        path=path,
        body=body,
        streamed=_streamed(body),
        headers={"content-type": "application/json", **headers},
        why_alone=why_decode_alone(body, mode) if route.kind == "pd" else "route",
        tag=tag_in(previous) if isinstance(previous, str) else None,
    )
    return ask if route.kind != "pd" else _with_a_way(ask, body, mode, ways)


def _with_a_way(ask: Ask, body: Body, mode: Mode, ways: Ways) -> Ask:
    """The way of a request that generates: told, forced, or chosen by what both ways cost."""
    unfit = ask.why_alone
    if unfit == "mode_never":  # said before anything else was looked at
        unfit = why_decode_alone(body, "always")
    if unfit is None:  # only what could go both ways teaches what they take
        size = prompt_size(body)
        ask = replace(ask, size=size)
        if mode == "auto":
            choice = ways.choose(size, streamed=ask.streamed)
            alone = choice.reason if choice.way == "local" else None
            ask = replace(ask, choice=choice, why_alone=alone)
    ways.count("pd" if ask.why_alone is None else "local", ask.reason)
    return ask


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
