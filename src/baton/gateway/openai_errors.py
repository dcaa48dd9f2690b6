"""Errors as OpenAI's clients expect them: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from baton.errors import GatewayError
    from baton.gateway.routes import Dialect

_CONTEXT_MARKS = ("maximum context length", "maximum model length", "longer than the maximum")


def error_body(
    message: str, kind: str, *, param: str | None = None, code: str | int | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_of(error: GatewayError, dialect: Dialect = "openai") -> dict[str, Any]:
    """The JSON answer for one of our own errors. Anthropic's clients also look for `type`."""
    message = error.fact if error.cure is None else f"{error.fact} ({error.cure})"
    body = error_body(message, error.kind, param=error.param, code=error.code)
    return {"type": "error", **body} if dialect == "anthropic" else body


def stream_event(error: GatewayError, dialect: Dialect) -> bytes:
    """The SSE event that ends a stream which broke after its first byte."""
    body = body_of(error, dialect)
    if dialect == "openai":
        return b"data: " + json.dumps(body).encode() + b"\n\n"
    if dialect == "responses":
        # OpenAI's `error` event has message, code and param beside its type; `error` makes
        # client libraries raise, as they do for chat streams.
        body = {
            "type": "error",
            "message": body["error"]["message"],
            "code": body["error"]["code"],
            "param": None,
            **body,
        }
    return b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"


def rejection_event(body: bytes, dialect: Dialect) -> bytes:
    """An engine's error answer as the SSE event that ends a stream."""
    head = b"" if dialect == "openai" else b"event: error\n"
    return head + b"data: " + body.replace(b"\n", b" ") + b"\n\n"


def reshape(status: int, raw: bytes) -> bytes:
    """An engine's error answer, kept when it is OpenAI-shaped and put into shape when not.

    vLLM's own errors have the right shape; FastAPI's (`{"detail": …}`) and proxies' have not. A
    prompt that does not fit gets OpenAI's code for that, which vLLM 0.29 leaves at 400.
    """
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError):
        body = None
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        error = body["error"]
        message = error.get("message")
        if isinstance(message, str) and any(mark in message for mark in _CONTEXT_MARKS):
            changed = {**body, "error": {**error, "code": "context_length_exceeded"}}
            return msgspec.json.encode(changed)
        return raw
    detail = body.get("detail") if isinstance(body, dict) else None
    message = detail if isinstance(detail, str) else f"The engine answered {status}."
    kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004
    return msgspec.json.encode(error_body(message, kind, code=status))
