"""Reads a JSON body once, strictly. What passes here cannot surprise an engine.

Strict because two parsers that disagree are a hole: an engine must never see a key that was not
checked here. So the body is decoded here and encoded anew for every leg.
"""

from __future__ import annotations

from typing import Any

import msgspec

from baton.errors import RequestRefused

MAX_DEPTH = 100
"""Deeper than any schema or conversation that we have seen, far below every parser's own limit."""

# These name a host and the memory to read from it. Only the gateway may set them.
GATEWAY_ONLY_KEYS = ("kv_transfer_params", "ec_transfer_params")
_SUSPICIOUS = b"_transfer_params"

Body = dict[str, Any]

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parse_body(raw: bytes) -> Body:
    """The body as a dict.

    Raises:
        RequestRefused: Not JSON (NaN, lone surrogates and numbers out of range are not), not an
            object, too deeply nested, or with a key that only the gateway may set.
    """
    try:
        body = _decode(raw)
    except RecursionError as exc:
        raise _too_deep() from exc
    except (msgspec.DecodeError, UnicodeError, ValueError) as exc:
        raise RequestRefused(
            f"The body is not valid JSON: {exc}", code="invalid_json", cure="send UTF-8 JSON"
        ) from exc
    if not isinstance(body, dict):
        raise RequestRefused("The body must be a JSON object.", code="invalid_json")
    _inspect(raw, body)
    return body


def encode_body(body: Body) -> bytes:
    """The body as bytes for an engine."""
    return _encode(body)


def _inspect(raw: bytes, body: Body) -> None:
    """Refuse what is too deep or not a caller's to set.

    The walk costs Python time for each value, so it is skipped when a look at the bytes shows that
    it cannot find anything: a key can hide only behind an escape.
    """
    shallow = raw.count(b"{") + raw.count(b"[") <= MAX_DEPTH
    if shallow and _SUSPICIOUS not in raw and b"\\u" not in raw:
        return
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if type(value) is dict:
                for name in GATEWAY_ONLY_KEYS:
                    if name in value:
                        raise RequestRefused(
                            f"`{name}` is set by the gateway and not accepted from callers.",
                            param=name,
                            code="parameter_not_allowed",
                        )
                below += [v for v in value.values() if type(v) is dict or type(v) is list]
            else:
                below += [v for v in value if type(v) is dict or type(v) is list]
        if not below:
            return
        level = below
    raise _too_deep()


def _too_deep() -> RequestRefused:
    return RequestRefused(
        f"The body is nested deeper than {MAX_DEPTH} levels.", code="body_too_deep"
    )
