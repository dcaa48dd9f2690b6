"""The guard in front of an engine's HTTP port."""

from __future__ import annotations

import hmac
import json

import pytest

from baton.engine import guard
from baton.engine.guard import SECRET_HEADER, EngineGuard
from baton.errors import ConfigRefused

SECRET = "s3cret-é"


class _App:
    """Remembers the scopes that reached it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, scope, receive, send) -> None:
        self.seen.append(scope["type"])


def _http(path="/v1/models", headers=(), kind="http", extensions=None):
    return {
        "type": kind,
        "method": "GET",
        "path": path,
        "headers": [(name.encode(), value) for name, value in headers],
        "extensions": extensions,
    }


async def _call(app, scope):
    sent: list[dict] = []

    async def send(message) -> None:
        sent.append(message)

    async def receive():  # the guard must not wait for a body before it refuses
        raise AssertionError("the guard read from the caller")

    await app(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    "path", ["/", "/health", "/metrics", "/v1/chat/completions", "/v1/load_lora_adapter", "/nope"]
)
@pytest.mark.parametrize(
    "headers",
    [
        (),
        [(SECRET_HEADER, b"wrong")],
        [(SECRET_HEADER, b"")],
        [(SECRET_HEADER, SECRET.encode() + b" ")],
        [("authorization", b"Bearer " + SECRET.encode())],
        [(SECRET_HEADER, SECRET.encode()), (SECRET_HEADER, b"other")],
    ],
    ids=["none", "wrong", "empty", "longer", "other-header", "twice"],
)
async def test_every_path_without_the_secret_is_401_and_never_reaches_the_app(path, headers):
    """A caller that is no gateway gets an OpenAI-shaped 401, whatever it asks for."""
    app = _App()
    start, body = await _call(EngineGuard(app, SECRET), _http(path, headers))
    assert app.seen == []
    assert start["status"] == 401
    assert (b"content-type", b"application/json") in start["headers"]
    error = json.loads(body["body"])["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_engine_secret"
    assert (b"content-length", str(len(body["body"])).encode()) in start["headers"]


@pytest.mark.parametrize("name", [SECRET_HEADER, SECRET_HEADER.upper()])
async def test_the_right_secret_opens_every_path(name):
    """A gateway's request reaches the app untouched."""
    app = _App()
    assert await _call(EngineGuard(app, SECRET), _http("/any", [(name, SECRET.encode())])) == []
    assert app.seen == ["http"]


async def test_no_secret_configured_lets_everybody_through():
    """`baton gateway` with a fixed directory may run without secrets."""
    app = _App()
    await _call(EngineGuard(app, None), _http())
    await _call(EngineGuard(app, None), _http(kind="websocket"))
    assert app.seen == ["http", "websocket"]


async def test_a_websocket_without_the_secret_is_denied_with_401_where_the_server_can():
    """Servers with the denial extension say 401 and why."""
    app = _App()
    scope = _http(kind="websocket", extensions={"websocket.http.response": {}})
    start, body = await _call(EngineGuard(app, SECRET), scope)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
    assert body["type"] == "websocket.http.response.body"
    assert app.seen == []


async def test_a_websocket_without_the_secret_is_closed_before_the_accept_elsewhere():
    """Servers without the extension turn the close into a refusal of the handshake."""
    app = _App()
    (message,) = await _call(EngineGuard(app, SECRET), _http(kind="websocket"))
    assert (message["type"], message["code"]) == ("websocket.close", 1008)
    assert app.seen == []


async def test_lifespan_passes_without_a_secret():
    """The engine's own start-up must run behind the guard."""
    app = _App()
    await _call(EngineGuard(app, SECRET), {"type": "lifespan"})
    assert app.seen == ["lifespan"]


async def test_the_secret_is_compared_in_constant_time(monkeypatch):
    """A comparison that stops at the first wrong byte would tell the secret away."""
    calls = []
    compare_digest = hmac.compare_digest

    def spy(given, wanted):
        calls.append((given, wanted))
        return compare_digest(given, wanted)

    monkeypatch.setattr(guard.hmac, "compare_digest", spy)
    await _call(EngineGuard(_App(), SECRET), _http(headers=[(SECRET_HEADER, b"guess")]))
    assert calls == [(b"guess", SECRET.encode())]


def test_an_empty_secret_is_refused():
    """An empty text would admit whoever sends an empty header."""
    with pytest.raises(ConfigRefused, match="empty"):
        EngineGuard(_App(), "")
